package status

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

func TestRecorderWritesAndKeepsHistory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "status.json")
	if _, err := Read(path); !errors.Is(err, ErrNone) {
		t.Errorf("no file: got %v, want ErrNone", err)
	}
	for i := range earlierKept + 3 {
		r, err := Open(path, "v1")
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Update(func(d *Document) {
			d.State, d.Verdict, d.Steps = Failed, "ephemeral-disk: absent",
				[]Step{{Name: "ephemeral-disk", Outcome: Broken, Start: int64(i + 1), End: 99, Waits: []Wait{{For: "/dev/sdb"}},
					Evidence: []string{"absent"}}}
		}); err != nil {
			t.Fatal(err)
		}
		d, err := Read(path)
		if err != nil || d.State != Failed || len(d.Earlier) != min(i, earlierKept) {
			t.Fatalf("run %d: state %q, %d earlier runs, %v; want failed and %d", i, d.State, len(d.Earlier), err,
				min(i, earlierKept))
		}
	}
	r, err := Open(path, "v2")
	if err != nil {
		t.Fatal(err)
	}
	last := r.Snapshot().Earlier[earlierKept-1]
	if last.Verdict != "ephemeral-disk: absent" || last.State != Failed {
		t.Errorf("the previous run is %+v, want its verdict", last)
	}
	// Its steps are, too; those of the runs before it would only fill the file.
	if len(last.Steps) != 1 || last.Steps[0].Start != earlierKept+3 || last.Steps[0].Waits[0].For != "/dev/sdb" ||
		last.Steps[0].Evidence[0] != "absent" {
		t.Errorf("the steps of the previous run are %+v", last.Steps)
	}
	for _, e := range r.Snapshot().Earlier[:earlierKept-1] {
		if len(e.Steps) != 0 {
			t.Errorf("an older run has the steps %+v", e.Steps)
		}
	}
}

func TestUnreadableHistoryIsIgnored(t *testing.T) {
	path := filepath.Join(t.TempDir(), "status.json")
	if err := os.WriteFile(path, []byte("{half"), 0o644); err != nil {
		t.Fatal(err)
	}
	r, err := Open(path, "v")
	if err != nil || len(r.Snapshot().Earlier) != 0 {
		t.Errorf("got %v and %d earlier runs, want a fresh start", err, len(r.Snapshot().Earlier))
	}
}

func TestProgressIsSetAndRemoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "status.json")
	r, err := Open(path, "v")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.SetProgress("migrate", Progress{Text: "copying", Done: 5, Total: 10}); err != nil {
		t.Fatal(err)
	}
	if err := r.Flush(); err != nil {
		t.Fatal(err)
	}
	if d, _ := Read(path); d.Progress["migrate"].Done != 5 || d.Progress["migrate"].Updated.IsZero() {
		t.Errorf("progress is %+v", d.Progress)
	}
	if err := r.SetProgress("migrate", Progress{}); err != nil {
		t.Fatal(err)
	}
	if err := r.Flush(); err != nil {
		t.Fatal(err)
	}
	if d, _ := Read(path); len(d.Progress) != 0 {
		t.Errorf("progress is still there: %+v", d.Progress)
	}
}

// TestManyChangesAreOneWriting: a burst of changes is written once, and a change of state at once.
func TestManyChangesAreOneWriting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "status.json")
		r, err := Open(path, "v")
		if err != nil {
			t.Fatal(err)
		}
		for n := range 100 {
			if err := r.Update(func(d *Document) { d.Bus = &Bus{Tries: n} }); err != nil {
				t.Fatal(err)
			}
		}
		if d, _ := Read(path); d.Bus != nil {
			t.Errorf("a burst was written before it ended: %s", d.Bus)
		}
		time.Sleep(writeInterval)
		synctest.Wait()
		if d, _ := Read(path); d.Bus == nil || d.Bus.Tries != 99 {
			t.Errorf("after writeInterval the file says %s, want the last change", d.Bus)
		}
		if err := r.Update(func(d *Document) { d.State = Failed }); err != nil {
			t.Fatal(err)
		}
		if d, _ := Read(path); d.State != Failed {
			t.Errorf("the file says %s, want the new state at once", d.State)
		}
	})
}

func TestWarningIsSetOnceAndRemoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "status.json")
	r, err := Open(path, "v")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Update(func(d *Document) { d.Warnings = []string{"other"} }); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		topic, text string
		changed     bool
		want        string
	}{{"port", "", false, "other"}, {"port", "held", true, "other|port: held"},
		{"port", "held", false, "other|port: held"},
		{"port", "gone", true, "other|port: gone"}, {"clock", "off", true, "other|port: gone|clock: off"},
		{"port", "gone", false, "other|port: gone|clock: off"}, {"clock", "", true, "other|port: gone"},
		{"port", "", true, "other"}} {
		changed, err := r.SetWarning(c.topic, c.text)
		if got := strings.Join(r.Snapshot().Warnings, "|"); err != nil || changed != c.changed || got != c.want {
			t.Errorf("%q: got %v, %v, %s; want %v, %s", c.text, changed, err, got, c.changed, c.want)
		}
	}
}

// The unit begins between init and the process; anything else that systemd says belongs to another start.
func TestOriginOfTheUnit(t *testing.T) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		t.Fatal(err)
	}
	second := int64(time.Second)
	for ago, want := range map[int64]bool{4: true, 2: false, 9: false} {
		o := Origin{Init: -8 * second, Process: -3 * second, BootTime: bootTime()}
		o.SetUnit(time.Duration(now.Nano() - ago*second))
		if (o.Unit != 0) != want || want && (o.Unit < -5*second || o.Unit > -3*second) {
			t.Errorf("a unit of %d s ago begins at %d, want it to be taken: %v", ago, o.Unit, want)
		}
	}
	var o Origin
	if o.SetUnit(0); o.Unit != 0 {
		t.Errorf("an unknown start is %d", o.Unit)
	}
}
