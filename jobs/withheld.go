package jobs

import (
	"context"
	"fmt"

	"cambium/jobs/monit"
)

// Withheld wraps a supervisor, and refuses to start jobs while there is a reason against it. If the supervisor is not
// running, there is nothing to stop or reload.
type Withheld struct {
	Supervisor
	// Reason returns "" when jobs may start.
	Reason func() string
	// Running reports whether the supervisor is running. It may have been started before there was a reason.
	Running func(ctx context.Context) bool
}

func (w Withheld) idle(ctx context.Context) bool { return w.Reason() != "" && !w.Running(ctx) }

// Reload does nothing if the supervisor is not running.
func (w Withheld) Reload(ctx context.Context) error {
	if w.idle(ctx) {
		return nil
	}
	return w.Supervisor.Reload(ctx)
}

// StartAll fails with the reason, if there is one.
func (w Withheld) StartAll(ctx context.Context) error {
	if reason := w.Reason(); reason != "" {
		return withheldError(reason)
	}
	return w.Supervisor.StartAll(ctx)
}

// StopAll does nothing if the supervisor is not running.
func (w Withheld) StopAll(ctx context.Context, wait bool) error {
	if w.idle(ctx) {
		return nil
	}
	return w.Supervisor.StopAll(ctx, wait)
}

// UnmonitorAll does nothing if the supervisor is not running.
func (w Withheld) UnmonitorAll(ctx context.Context) error {
	if w.idle(ctx) {
		return nil
	}
	return w.Supervisor.UnmonitorAll(ctx)
}

// State returns "failing" while there is a reason.
func (w Withheld) State(ctx context.Context) string {
	if w.Reason() != "" {
		return monit.StateFailing
	}
	return w.Supervisor.State(ctx)
}

// Processes returns none if the supervisor is not running.
func (w Withheld) Processes(ctx context.Context) ([]Process, error) {
	if w.idle(ctx) {
		return []Process{}, nil
	}
	return w.Supervisor.Processes(ctx)
}

func withheldError(reason string) error { return fmt.Errorf("no job is started: %s", reason) }

// CheckStart returns the reason why jobs must not start, or nil.
func (i *Instance) CheckStart() error {
	if i.Withheld == nil || i.Withheld() == "" {
		return nil
	}
	return withheldError(i.Withheld())
}
