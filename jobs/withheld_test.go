package jobs

import (
	"context"
	"strings"
	"testing"

	"cambium/jobs/monit"
)

// Without its store an instance is failing, starts nothing, and can be stopped where nothing runs.
func TestWithheldJobs(t *testing.T) {
	reason, running := "the store is not mounted", false
	w := Withheld{Supervisor: &fakeSupervisor{}, Reason: func() string { return reason },
		Running: func(context.Context) bool { return running }}
	ctx := t.Context()
	if err := w.StartAll(ctx); err == nil || !strings.Contains(err.Error(), reason) {
		t.Errorf("StartAll = %v", err)
	}
	if got := w.State(ctx); got != monit.StateFailing {
		t.Errorf("state %q", got)
	}
	if p, err := w.Processes(ctx); err != nil || p == nil || len(p) != 0 {
		t.Errorf("processes %v, %v", p, err)
	}
	for name, err := range map[string]error{"reload": w.Reload(ctx), "stop": w.StopAll(ctx, true),
		"unmonitor": w.UnmonitorAll(ctx)} {
		if err != nil {
			t.Errorf("%s = %v", name, err)
		}
	}
	i := &Instance{Supervisor: w, Withheld: w.Reason}
	if err := i.Start(ctx); err == nil || !strings.Contains(err.Error(), reason) {
		t.Errorf("Start = %v", err)
	}
	reason = ""
	if err := i.CheckStart(); err != nil {
		t.Errorf("without a reason: %v", err)
	}
}
