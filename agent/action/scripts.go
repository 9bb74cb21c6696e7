package action

import (
	"context"
	"errors"
	"fmt"

	"cambium/agent/task"
)

// detached runs f in such a way that the scripts it starts outlive the agent. If the task is canceled, detached waits
// until f has ended. If the agent stops, detached returns at once and the scripts continue, because a restart of the
// agent must not interrupt a deployment's pre-start.
func detached[T any](ctx context.Context, f func(context.Context) (T, error)) (T, error) {
	inner, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	done := RunInBackground(func() (T, error) {
		defer cancel(nil) // not when detached returns: that would end the scripts
		return f(inner)
	})
	select {
	case o := <-done:
		return o.Value, o.Err
	case <-ctx.Done():
	}
	if why := context.Cause(ctx); errors.Is(why, task.ErrCanceled) {
		cancel(why)
		o := <-done
		return o.Value, o.Err
	}
	var none T
	return none, fmt.Errorf("the agent stopped while scripts were running: %w", context.Cause(ctx))
}
