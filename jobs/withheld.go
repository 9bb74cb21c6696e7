package jobs

import (
	"context"
	"fmt"
)

// CheckStart returns an error while jobs are withheld.
func (i *Instance) CheckStart() error {
	if i.Withheld == nil {
		return nil
	}
	if reason := i.Withheld(); reason != "" {
		return fmt.Errorf("no job is started: %s", reason)
	}
	return nil
}

// idle reports whether jobs are withheld and the supervisor is down: it has nothing to stop or reload.
func (i *Instance) idle(ctx context.Context) bool { return i.CheckStart() != nil && !i.Running(ctx) }

// reload makes a running supervisor read the jobs' files again.
func (i *Instance) reload(ctx context.Context) error {
	if i.idle(ctx) {
		return nil
	}
	return i.Supervisor.Reload(ctx)
}
