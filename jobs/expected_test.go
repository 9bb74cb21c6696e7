package jobs

import (
	"testing"
	"time"

	"cambium/jobs/monit"
)

// TestExpectedAlerts: monit reports that a process is not there while the agent has it started. Only that is dropped, and only
// while the start is under way.
func TestExpectedAlerts(t *testing.T) {
	begun := time.Date(2026, 11, 16, 4, 0, 10, 700_000_000, time.UTC)
	ended := begun.Add(2 * time.Second)
	second := func(n int) time.Time { return time.Date(2026, 11, 16, 4, 0, n, 0, time.UTC) }
	for _, c := range []struct {
		name  string
		event string
		at    time.Time
		ended time.Time
		want  bool
	}{
		{"before the start", "Does not exist", second(9), ended, false},
		{"in the second of its beginning", "Does not exist", second(10), ended, true},
		{"under way", "Does not exist", second(11), time.Time{}, true},
		{"under way, as an old monit writes it", "does not exist", second(11), time.Time{}, true},
		{"told when it was over", "Does not exist", second(12), ended, true},
		{"after the start", "Does not exist", second(13), ended, false},
		{"another event", "Execution failed", second(11), ended, false},
		{"another event", "Resource limit matched", second(11), time.Time{}, false},
	} {
		i := &Instance{command: command{begun: begun, ended: c.ended}}
		if got := i.Expected(monit.Alert{Service: "s", Event: c.event, Date: c.at}); got != c.want {
			t.Errorf("%s: %q is expected: %v, want %v", c.name, c.event, got, c.want)
		}
	}
	if (&Instance{}).Expected(monit.Alert{Event: "Does not exist"}) {
		t.Error("an alert is expected where nothing was started")
	}
}

// TestStartAndStopAreCommands: an alert is expected while each is under way, and not afterwards.
func TestStartAndStopAreCommands(t *testing.T) {
	m := newMachine(t)
	missing := monit.Alert{Event: "Does not exist"}
	during := false
	m.sup.onReload = func() { during = m.Expected(missing) }
	if err := m.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !during || m.Expected(missing) {
		t.Errorf("an alert is expected during a start: %v, and after it: %v; want true and false", during,
			m.Expected(missing))
	}
	during = false
	m.sup.onStop = func() { during = m.Expected(missing) }
	if err := m.Stop(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if !during || m.Expected(missing) {
		t.Errorf("an alert is expected during a stop: %v, and after it: %v; want true and false", during, m.Expected(missing))
	}
}
