package jobs

import (
	"context"
	"fmt"

	"cambium/jobs/monit"
)

// Withheld is a supervisor that refuses to start jobs while there is a reason against it. While the supervisor itself is not
// running, there is nothing to stop or reload.
type Withheld struct {
	Supervisor
	// Reason is empty when jobs may be started.
	Reason func() string
	// Running reports whether the supervisor runs: it may have been started before the reason was there.
	Running func(ctx context.Context) bool
}

func (w Withheld) idle(ctx context.Context) bool { return w.Reason() != "" && !w.Running(ctx) }

// Reload does nothing while the supervisor is not running.
func (w Withheld) Reload(ctx context.Context) error {
	if w.idle(ctx) {
		return nil
	}
	return w.Supervisor.Reload(ctx)
}

// StartAll fails with the reason.
func (w Withheld) StartAll(ctx context.Context) error {
	if reason := w.Reason(); reason != "" {
		return withheldError(reason)
	}
	return w.Supervisor.StartAll(ctx)
}

// StopAll does nothing while the supervisor is not running.
func (w Withheld) StopAll(ctx context.Context, wait bool) error {
	if w.idle(ctx) {
		return nil
	}
	return w.Supervisor.StopAll(ctx, wait)
}

// UnmonitorAll does nothing while the supervisor is not running.
func (w Withheld) UnmonitorAll(ctx context.Context) error {
	if w.idle(ctx) {
		return nil
	}
	return w.Supervisor.UnmonitorAll(ctx)
}

// State is failing.
func (w Withheld) State(ctx context.Context) string {
	if w.Reason() != "" {
		return monit.StateFailing
	}
	return w.Supervisor.State(ctx)
}

// Processes are none where nothing runs.
func (w Withheld) Processes(ctx context.Context) ([]Process, error) {
	if w.idle(ctx) {
		return []Process{}, nil
	}
	return w.Supervisor.Processes(ctx)
}

func withheldError(reason string) error { return fmt.Errorf("no job is started: %s", reason) }

// CheckStart fails with the reason why no job may be started, if there is one.
func (i *Instance) CheckStart() error {
	if i.Withheld == nil || i.Withheld() == "" {
		return nil
	}
	return withheldError(i.Withheld())
}
