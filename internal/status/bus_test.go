package status

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestBusInOneLine(t *testing.T) {
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct {
		bus               *Bus
		want, wantAccount string
	}{
		{nil, "not started", "not started"},
		{&Bus{State: BusConnecting, Server: "h:1", Since: since},
			"connecting to h:1 since 2026-01-02T03:04:05Z, 0 tries", "connecting to h:1 for 60 seconds, 0 tries"},
		{&Bus{State: BusConnected, Server: "h:1", Since: since}, "connected to h:1 since 2026-01-02T03:04:05Z",
			"connected to h:1 for 60 seconds"},
		{&Bus{State: BusRefused, Server: "h:1", Since: since, Tries: 1, Reason: "no"},
			"refused, h:1 since 2026-01-02T03:04:05Z, 1 try: no", "refused, h:1 for 60 seconds, 1 try: no"},
		{&Bus{State: BusLost, Server: "h:1", Since: since, Tries: 7, Reason: "EOF"},
			"lost, h:1 since 2026-01-02T03:04:05Z, 7 tries: EOF", "lost, h:1 for 60 seconds, 7 tries: EOF"},
		{&Bus{State: BusListening, Server: "0.0.0.0:6868", Since: since},
			"listening at 0.0.0.0:6868 since 2026-01-02T03:04:05Z", "listening at 0.0.0.0:6868 for 60 seconds"},
	} {
		if got, account := c.bus.String(), c.bus.Summary(time.Minute); got != c.want || account != c.wantAccount {
			t.Errorf("got %q and %q, want %q and %q", got, account, c.want, c.wantAccount)
		}
	}
}

// Ready and degraded follow from the warnings and the bus; the other states do not.
func TestDegradedFollowsFromWarningsAndBus(t *testing.T) {
	overdue := &Bus{State: BusLost, Overdue: true}
	for _, c := range []struct {
		state    State
		warnings []string
		bus      *Bus
		want     State
	}{
		{Ready, nil, nil, Ready}, {Ready, []string{"w"}, nil, Degraded}, {Ready, nil, overdue, Degraded},
		{Ready, nil, &Bus{State: BusLost}, Ready},
		{Degraded, nil, nil, Ready}, {Starting, []string{"w"}, overdue, Starting}, {Failed, []string{"w"}, overdue, Failed},
	} {
		r, err := Open(filepath.Join(t.TempDir(), "status.json"), "v")
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Update(func(d *Document) { d.State, d.Warnings, d.Bus = c.state, c.warnings, c.bus }); err != nil {
			t.Fatal(err)
		}
		if got := r.Snapshot().State; got != c.want {
			t.Errorf("%s with %d warnings and bus %+v: %s, want %s", c.state, len(c.warnings), c.bus, got, c.want)
		}
	}
}

// A process that has ended is not running, whatever it wrote last.
func TestObserveTellsADeadAgent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "status.json")
	open := func() *Recorder {
		t.Helper()
		r, err := Open(path, "v")
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Update(func(d *Document) { d.State = Ready }); err != nil {
			t.Fatal(err)
		}
		return r
	}
	killed := startAgent(t, path)
	if d, err := Observe(path); err != nil || d.State != Ready || d.Stopped != nil {
		t.Errorf("a running agent is %s since %v, %v", d.State, d.Stopped, err)
	}
	seen := time.Now().Add(-time.Hour)
	if err := os.Chtimes(path, seen, seen); err != nil {
		t.Fatal(err)
	}
	if err := killed.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	// Nobody has waited for the process yet.
	if err := unix.Waitid(unix.P_PID, killed.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	if d, err := Observe(path); err != nil || d.State != NotRunning || d.LastState != Ready || d.Stopped == nil ||
		!d.Stopped.Equal(seen) {
		t.Errorf("a killed agent is %s, was %s, since %v, %v; want not running since %v", d.State, d.LastState, d.Stopped,
			err, seen)
	}
	stopped := open()
	if err := stopped.Stop(); err != nil {
		t.Fatal(err)
	}
	at := *stopped.Snapshot().Stopped
	if d, err := Observe(path); err != nil || d.State != NotRunning || !d.Stopped.Equal(at) {
		t.Errorf("a stopped agent is %s since %v, %v; want not running since %v", d.State, d.Stopped, err, at)
	}
	again := open()
	if d, err := Observe(path); err != nil || d.State != Ready {
		t.Errorf("an agent that was started again is %s, %v", d.State, err)
	}
	hourAgo := time.Now().Add(-time.Hour)
	if err := errors.Join(os.Chtimes(path, hourAgo, hourAgo), again.Alive()); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(path); err != nil || time.Since(info.ModTime()) > time.Minute {
		t.Errorf("the agent was last seen at %v, %v", info.ModTime(), err)
	}
	for what, c := range map[string]struct {
		change func(*Document)
		want   State
	}{
		"of another machine":          {func(d *Document) { d.BootID, d.PID = "other", 1<<30 }, Ready}, // a copied file
		"whose pid was used again":    {func(d *Document) { d.Origin.Process -= int64(tick) }, NotRunning},
		"whose pid nobody has by now": {func(d *Document) { d.PID = 1 << 30 }, NotRunning},
	} {
		other := filepath.Join(t.TempDir(), "status.json")
		d := again.Snapshot()
		c.change(&d)
		data, err := json.Marshal(d)
		if err == nil {
			err = os.WriteFile(other, data, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		if d, err := Observe(other); err != nil || d.State != c.want {
			t.Errorf("an agent %s is %s, %v; want %s", what, d.State, err, c.want)
		}
	}
}

// TestAClockThatWasSetDoesNotAgeTheBus: the times of day differ by a year, and the connection is an hour old.
func TestAClockThatWasSetDoesNotAgeTheBus(t *testing.T) {
	r, err := Open(filepath.Join(t.TempDir(), "status.json"), "v")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Flush() }()
	d := r.Snapshot()
	d.Origin.BootTime -= int64(2 * time.Hour)
	d.Bus = &Bus{State: BusConnected, Server: "10.0.0.6:4222", Since: time.Now().AddDate(-1, 0, 0),
		SinceNS: int64(time.Hour)}
	if got := d.Bus.Summary(d.BusAge(time.Now())); got != "connected to 10.0.0.6:4222 for 60 minutes" {
		t.Errorf("got %q", got)
	}
}
