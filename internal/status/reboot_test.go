package status

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestPreviousBoot(t *testing.T) {
	began := time.Now().Add(-time.Minute).UTC()
	stopped, touched := began.Add(-10*time.Second), began.Add(-20*time.Second)
	now := Document{BootID: "now", Started: began.Add(time.Second), Origin: &Origin{Init: -int64(time.Second)}}
	up, down := Document{BootID: "up", AgentID: "a"},
		Document{BootID: "down", AgentID: "a", Down: "requested", Stopped: &stopped}
	for _, c := range []struct {
		name    string
		boots   []Document
		touched time.Time
		want    string // the boot
		seen    time.Time
	}{
		{"the first boot", nil, touched, "", time.Time{}},
		{"only this boot", []Document{now}, began.Add(time.Second), "", time.Time{}},
		{"a power cut", []Document{down, up}, touched, "up", touched},
		{"a power cut, and a process of this boot has written", []Document{up, now}, began.Add(time.Second),
			"up", time.Time{}},
		{"on request", []Document{up, down}, touched, "down", stopped},
		{"on request, and a process of this boot has written", []Document{up, down, now}, began.Add(time.Second),
			"down", stopped},
	} {
		h := History{Path: filepath.Join(t.TempDir(), "boots.json")}
		for _, b := range c.boots {
			if err := AddBoot(h.Path, b); err != nil {
				t.Fatal(err)
			}
		}
		if len(c.boots) > 0 {
			if err := os.Chtimes(h.Path, c.touched, c.touched); err != nil {
				t.Fatal(err)
			}
		}
		last, seen, found := h.Previous(now)
		if last.BootID != c.want || found != (c.want != "") || !seen.Equal(c.seen) {
			t.Errorf("%s: boot %q, seen %v; want %q, %v", c.name, last.BootID, seen, c.want, c.seen)
		}
	}
}

// The time of the file is set once a minute, and of nothing where no boot was recorded.
func TestAliveOnDisk(t *testing.T) {
	h := History{Path: filepath.Join(t.TempDir(), "boots.json")}
	if err := h.Alive(); err != nil {
		t.Error(err)
	}
	if err := AddBoot(h.Path, Document{BootID: "b"}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		age time.Duration
		set bool
	}{{30 * time.Second, false}, {2 * time.Minute, true}} {
		old := time.Now().Add(-c.age)
		if err := os.Chtimes(h.Path, old, old); err != nil {
			t.Fatal(err)
		}
		if err := h.Alive(); err != nil {
			t.Error(err)
		}
		info, err := os.Stat(h.Path)
		if err != nil || (time.Since(info.ModTime()) < c.age-time.Second) != c.set {
			t.Errorf("after %s the time is %v, %v; want it set: %v", c.age, info.ModTime(), err, c.set)
		}
	}
}

// A restarted process of the same boot knows what the one before has told.
func TestRebootOutlivesTheProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "status.json")
	for _, want := range []bool{false, true} {
		r, err := Open(path, "v")
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Snapshot().Reboot; (got != nil) != want {
			t.Errorf("got %v, want a reboot: %v", got, want)
		}
		if err := r.Update(func(d *Document) { d.Reboot = &Reboot{Cause: "requested"} }); err != nil {
			t.Fatal(err)
		}
		if err := r.Flush(); err != nil {
			t.Fatal(err)
		}
	}
}
