package jobs

import (
	"os"
	"testing"
	"time"

	"cambium/internal/vcap"
)

func TestStartDue(t *testing.T) {
	start := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name         string
		record       startRecord
		stateWritten time.Time
		want         bool
	}{
		{"never started", startRecord{}, start, false},
		{"monit has not shown it", startRecord{Requested: start}, start.Add(time.Hour), true},
		{"monit has no state file", startRecord{Requested: start, Shown: start.Add(time.Second)}, time.Time{}, true},
		{"the file is older than what monit showed", startRecord{Requested: start, Shown: start.Add(time.Second)}, start, true},
		{"the file was written afterwards", startRecord{Requested: start, Shown: start.Add(time.Second)}, start.Add(time.Minute), false},
	} {
		if got := startDue(c.record, c.stateWritten); got != c.want {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}

func TestStartRequestIsKept(t *testing.T) {
	r := StartRequest{Dirs: vcap.New(t.TempDir())}
	now := time.Now()
	check := func(what string, err error, written time.Time, want bool) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if got := r.Due(written); got != want {
			t.Errorf("%s: due %v, want %v", what, got, want)
		}
	}
	check("nothing recorded", r.shown(now), now, false)
	check("recorded", r.Record(now, ""), now.Add(time.Hour), true)
	check("shown", r.shown(now.Add(time.Minute)), now, true)
	check("shown again, which does not count", r.shown(now.Add(time.Hour)), now.Add(2*time.Minute), false)
	check("started again", r.Record(now, ""), now.Add(time.Hour), true)
	check("forgotten", r.forget(), now, false)
	check("forgotten twice", r.forget(), now, false)
	if err := os.WriteFile(r.Dirs.StartRequested(), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	check("damaged", nil, now, true)
}
