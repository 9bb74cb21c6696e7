package jobs

import (
	"context"
	"fmt"
)

// CheckStart returns the reason why jobs must not start, or nil.
func (i *Instance) CheckStart() error {
	if i.Withheld == nil {
		return nil
	}
	if reason := i.Withheld(); reason != "" {
		return fmt.Errorf("no job is started: %s", reason)
	}
	return nil
}

// idle reports whether there is nothing to stop or reload, because jobs are withheld and the supervisor is not running.
func (i *Instance) idle(ctx context.Context) bool { return i.CheckStart() != nil && !i.Running(ctx) }

// reload makes the supervisor read the files of the jobs again.
func (i *Instance) reload(ctx context.Context) error {
	if i.idle(ctx) {
		return nil
	}
	return i.Supervisor.Reload(ctx)
}
