package action

import (
	"context"
	"errors"
	"fmt"

	"cambium/agent/task"
)

// detached is for what runs scripts of releases: these outlive the agent. Only a canceled task
// ends f, which is then waited for. When the agent itself stops, the call returns at once and
// the scripts go on; a service manager that restarts the agent must not break a deployment's
// pre-start in the middle.
func detached[T any](ctx context.Context, f func(context.Context) (T, error)) (T, error) {
	inner, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	done := Beside(func() (T, error) { return f(inner) })
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
	return none, fmt.Errorf("the agent stops while scripts run: %w", context.Cause(ctx))
}
