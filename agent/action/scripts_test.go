package action

import (
	"context"
	"errors"
	"testing"

	"cambium/agent/task"
)

// The context of the scripts ends with the task if that is canceled, and goes on if the agent stops.
func TestDetached(t *testing.T) {
	for name, c := range map[string]struct {
		why  error
		ends bool
	}{
		"canceled task":  {task.ErrCanceled, true},
		"stopping agent": {context.Canceled, false},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			started, finish := make(chan context.Context, 1), make(chan struct{})
			defer close(finish)
			returned := make(chan error, 1)
			go func() {
				_, err := detached(ctx, func(inner context.Context) (int, error) {
					started <- inner
					select {
					case <-inner.Done():
						return 0, context.Cause(inner)
					case <-finish:
						return 0, nil
					}
				})
				returned <- err
			}()
			inner := <-started
			cancel(c.why)
			if err := <-returned; !errors.Is(err, c.why) {
				t.Errorf("got %v, want %v", err, c.why)
			}
			if ended := inner.Err() != nil; ended != c.ends {
				t.Errorf("the context of the scripts has ended: %v, want %v", ended, c.ends)
			}
		})
	}
}
