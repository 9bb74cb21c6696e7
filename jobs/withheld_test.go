package jobs

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"cambium/jobs/monit"
)

// Without its store an instance is failing and starts nothing. It can be changed and stopped, also while its supervisor
// is not running; one that runs is told.
func TestWithheldJobs(t *testing.T) {
	ctx := t.Context()
	m := newMachine(t)
	reason, running := "the store is not mounted", false
	m.Withheld = func() string { return reason }
	m.Running = func(context.Context) bool { return running }
	spec := m.spec(t, map[string]string{"a": "1"}, map[string]string{"a/": "", "a/monit": "check"}, nil)
	for _, told := range []string{"", "reload stop true unmonitor"} {
		for name, err := range map[string]error{"apply": m.Apply(ctx, spec), "stop": m.Stop(ctx, true),
			"unmonitor": m.Unmonitor(ctx)} {
			if err != nil {
				t.Errorf("%s = %v", name, err)
			}
		}
		if got := strings.Join(m.sup.calls, " "); got != told {
			t.Errorf("the supervisor was told to %q, want %q", got, told)
		}
		if got, p, err := m.Observe(ctx); got != monit.StateFailing || len(p) != 0 || err != nil {
			t.Errorf("state %q, processes %v, %v", got, p, err)
		}
		if err := m.Start(ctx); err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("Start = %v", err)
		}
		if files, err := filepath.Glob(m.Dirs.MonitFiles()); err != nil || len(files) > 0 {
			t.Errorf("a refused start has written %v, %v, from which a supervisor would start jobs", files, err)
		}
		running = true
	}
	m.sup.onReload = func() { reason = "the store was unmounted" }
	m.sup.calls, reason = nil, ""
	if err := m.Start(ctx); err == nil || !strings.Contains(err.Error(), reason) ||
		strings.Join(m.sup.calls, " ") != "reload" {
		t.Errorf("a reason that arises during the start: %v, the supervisor was told to %q", err, m.sup.calls)
	}
	m.sup.onReload, reason = nil, ""
	if err := m.Start(ctx); err != nil || m.JobState(ctx) != monit.StateRunning {
		t.Errorf("without a reason: %v, state %q", err, m.JobState(ctx))
	}
}
