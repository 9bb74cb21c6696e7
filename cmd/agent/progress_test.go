package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cambium/bootstrap/engine"
	"cambium/cmd/agent/show"
	"cambium/internal/status"
	"cambium/jobs/logs"
	"cambium/platform/unit"

	"github.com/sirupsen/logrus"
)

// TestCollectionsShowInTheStatus: two collections of logs at a time, each with its own line, gone
// when they end.
func TestCollectionsShowInTheStatus(t *testing.T) {
	path := filepath.Join(t.TempDir(), "status.json")
	rec, err := status.Open(path, "v")
	if err != nil {
		t.Fatal(err)
	}
	a := newDisplay(runOptions{platform: "dummy"}, "", rec, unit.Notifier{}, logrus.NewEntry(logrus.New()))
	first, second := a.collection(), a.collection()
	first(logs.Progress{Files: 3, Bytes: 300 << 20, Elapsed: 10 * time.Second})
	second(logs.Progress{Files: 1, Bytes: 20 << 20, Elapsed: 4 * time.Second})
	shown := func() string {
		t.Helper()
		if err := rec.Flush(); err != nil { // the file may be a moment behind
			t.Fatal(err)
		}
		var out, problems bytes.Buffer
		show.Status(t.Context(), []string{"--file", path}, &out, &problems)
		return out.String() + problems.String()
	}
	for _, want := range []string{"collect_logs 1: 3 files, 300 MiB read, 30 MiB/s\n",
		"collect_logs 2: 1 files, 20 MiB read, 5 MiB/s\n"} {
		if got := shown(); !strings.Contains(got, want) {
			t.Errorf("got %q, want %q in it", got, want)
		}
	}
	if p := rec.Snapshot().Progress["collect_logs 1"]; p.Done != 300<<20 || p.Files != 3 || p.Rate != 30<<20 ||
		p.Updated.IsZero() {
		t.Errorf("got %+v", p)
	}
	first(logs.Progress{})
	if got := shown(); strings.Contains(got, "collect_logs 1") || !strings.Contains(got, "collect_logs 2") {
		t.Errorf("after the end of the first: got %q", got)
	}
	second(logs.Progress{})
	if got := shown(); strings.Contains(got, "collect_logs") {
		t.Errorf("after the end of both: got %q", got)
	}
}

// TestAFailedStartIsInTheStatus: an agent that cannot even be put together leaves its verdict like any other.
func TestAFailedStartIsInTheStatus(t *testing.T) {
	base := t.TempDir()
	if err := os.Mkdir(filepath.Join(base, "bosh"), 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := record(runOptions{platform: "dummy", base: base},
			engine.Verdict{Step: "start", Cause: errors.New("no agent.json")}); err != nil {
			t.Fatal(err)
		}
	}
	if d, err := status.Read(filepath.Join(base, "bosh", "status.json")); err != nil || d.State != status.Failed ||
		d.Verdict != "start: no agent.json" {
		t.Errorf("status %s %q, %v; want the verdict", d.State, d.Verdict, err)
	}
}
