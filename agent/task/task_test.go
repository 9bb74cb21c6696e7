package task

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
)

func quiet() *logrus.Entry {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return logrus.NewEntry(l)
}

func open(t *testing.T, path string) *Tasks {
	t.Helper()
	s, err := Open(t.Context(), Options{Path: path, Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func mustOutcome(t *testing.T, s *Tasks, id string) Outcome {
	t.Helper()
	o, err := s.Outcome(id)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestOutcomesSurviveARestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	s := open(t, path)
	done, failed, running := s.Begin("apply", false), s.Begin("stop", false), s.Begin("update_settings", false)
	if !regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(done.ID) {
		t.Errorf("id %s is not a version 4 UUID", done.ID)
	}
	if got := mustOutcome(t, s, done.ID); !got.Running {
		t.Errorf("new task: got %+v, want running", got)
	}
	done.Finish("applied", nil)
	failed.Finish(nil, errors.New("boom"))
	if err := running.Note(json.RawMessage(`{"step":1}`)); err != nil {
		t.Fatal(err)
	}
	if err := running.Note(json.RawMessage(`{"step":2}`)); err != nil {
		t.Fatal(err)
	}
	<-running.Durable()
	s.Close()

	for range 2 { // a second restart finds the same
		reopened := open(t, path)
		if got := mustOutcome(t, reopened, done.ID); string(got.Value) != `"applied"` || got.Failed || got.Running {
			t.Errorf("finished task after restart: %+v", got)
		}
		if got := mustOutcome(t, reopened, failed.ID); !got.Failed || got.Error != "boom" {
			t.Errorf("failed task after restart: %+v", got)
		}
		left := reopened.Interrupted()
		if len(left) != 1 || left[0].ID != running.ID || string(left[0].Checkpoint()) != `{"step":2}` || left[0].Method != "update_settings" {
			t.Errorf("interrupted: %+v", left)
		}
		if len(reopened.Interrupted()) != 0 {
			t.Error("interrupted tasks were handed out twice")
		}
		reopened.Close()
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("journal: %v, %v; want mode 0600", info.Mode(), err)
	}
}

func TestReopeningWritesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	s := open(t, path)
	s.Begin("apply", false).Finish("applied", nil)
	s.Close()
	before, _ := os.ReadFile(path)
	open(t, path).Close()
	after, _ := os.ReadFile(path)
	if string(before) != string(after) {
		t.Errorf("reopening changed the journal from %q to %q", before, after)
	}
}

func TestTornAndDamagedJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	s := open(t, path)
	one, two := s.Begin("apply", false), s.Begin("stop", false)
	one.Finish("applied", nil)
	two.Finish("stopped", nil)
	s.Close()
	journalBytes, _ := os.ReadFile(path)
	for cut := 0; cut < len(journalBytes); cut += 61 {
		if err := os.WriteFile(path, journalBytes[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		s := open(t, path)
		for _, task := range s.Interrupted() {
			task.Finish(nil, ErrRestarted)
		}
		three := s.Begin("drain", false)
		three.Finish(0, nil)
		s.Close()
		reopened := open(t, path)
		if got := mustOutcome(t, reopened, three.ID); string(got.Value) != "0" {
			t.Fatalf("cut at %d: task after the tear is lost: %+v", cut, got)
		}
		reopened.Close()
	}
	// Garbage between whole lines costs only itself.
	lines := strings.SplitAfter(string(journalBytes), "\n")
	if err := os.WriteFile(path, []byte(lines[0]+"\x00\xff garbage\n"+strings.Join(lines[1:], "")), 0o644); err != nil {
		t.Fatal(err)
	}
	s = open(t, path)
	if got := mustOutcome(t, s, one.ID); string(got.Value) != `"applied"` {
		t.Errorf("after garbage: %+v", got)
	}
	if info, _ := os.Stat(path); info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v was not corrected", info.Mode())
	}
}

func TestCancel(t *testing.T) {
	s := open(t, "")
	stoppable, other := s.Begin("drain", true), s.Begin("apply", false)
	if err := s.Cancel(stoppable.ID); err != nil {
		t.Fatal(err)
	}
	<-stoppable.Context().Done()
	if !stoppable.Canceled() {
		t.Error("the context's cause is not the cancellation")
	}
	if err := s.Cancel(other.ID); err == nil || !strings.Contains(err.Error(), "not supported") {
		t.Errorf("got %v, want not supported", err)
	}
	other.Finish("applied", nil)
	if err := s.Cancel(other.ID); err != nil {
		t.Errorf("canceling an ended task: %v", err)
	}
	var missing notFound
	if err := s.Cancel("nope"); !errors.As(err, &missing) || err.Error() != "Task with id nope could not be found" {
		t.Errorf("got %v", err)
	}
}

func TestStoppingAgentLeavesTasksInterrupted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	ctx, cancel := context.WithCancel(t.Context())
	s, err := Open(ctx, Options{Path: path, Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	task := s.Begin("apply", true)
	<-task.Durable()
	cancel()
	task.Finish(nil, task.Context().Err())
	s.Close()
	if left := open(t, path).Interrupted(); len(left) != 1 {
		t.Errorf("got %d interrupted tasks, want 1", len(left))
	}
}

func TestOldResultsAreForgotten(t *testing.T) {
	usual := maxBytes
	maxBytes = 1 << 10
	t.Cleanup(func() { maxBytes = usual })
	s := open(t, "")
	now := time.Now()
	s.now = func() time.Time { return now }
	first := s.Begin("apply", false)
	first.Finish(strings.Repeat("x", maxBytes+1), nil)
	now = now.Add(keepAtLeast - time.Second)
	s.Begin("a", false).Finish(1, nil)
	if _, err := s.Outcome(first.ID); err != nil {
		t.Errorf("result was dropped before its time: %v", err)
	}
	now = now.Add(2 * time.Second)
	second := s.Begin("b", false)
	second.Finish(1, nil)
	if _, err := s.Outcome(first.ID); err == nil {
		t.Error("result was kept although there is no room")
	}
	now = now.Add(keepNormally)
	s.Begin("c", false).Finish(1, nil)
	if _, err := s.Outcome(second.ID); err == nil {
		t.Error("result was kept for ever")
	}
}

func TestCompactionLosesNothing(t *testing.T) {
	usual := compactAbove
	compactAbove = 64 << 10
	t.Cleanup(func() { compactAbove = usual })
	path := filepath.Join(t.TempDir(), "journal")
	s := open(t, path)
	big := strings.Repeat("x", int(compactAbove)/4)
	var wg sync.WaitGroup
	var mu sync.Mutex
	ids := map[string]string{}
	for i := range 20 {
		wg.Go(func() {
			task := s.Begin("run_errand", false)
			value := fmt.Sprint(i, big)
			task.Finish(value, nil)
			mu.Lock()
			ids[task.ID] = value
			mu.Unlock()
		})
	}
	wg.Wait()
	open := s.Begin("drain", false)
	<-open.Durable()
	s.Close()
	reopened, err := Open(t.Context(), Options{Path: path, Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	defer reopened.Close()
	for id, want := range ids {
		if got := mustOutcome(t, reopened, id); len(got.Value) != len(want)+2 {
			t.Fatalf("task %s: got %d bytes, want %d", id, len(got.Value), len(want)+2)
		}
	}
	if left := reopened.Interrupted(); len(left) != 1 || left[0].ID != open.ID {
		t.Errorf("interrupted: %v", left)
	}
}

func TestUnwritableJournalDoesNotStopWork(t *testing.T) {
	path := filepath.Join(t.TempDir(), "missing", "journal")
	s, err := Open(t.Context(), Options{Path: path, Log: quiet()})
	if err == nil {
		t.Fatal("a journal in a missing directory was opened")
	}
	task := s.Begin("apply", false)
	task.Finish("applied", nil)
	if got := mustOutcome(t, s, task.ID); string(got.Value) != `"applied"` {
		t.Errorf("got %+v", got)
	}
}

// A disk that is full for a while costs nothing once it is not.
func TestJournalRecoversFromFailedWrites(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	s := open(t, path)
	lost := s.Begin("apply", false)
	<-lost.Durable()
	if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o700)); err != nil { // which cannot be written
		t.Fatal(err)
	}
	lost.Finish("applied", nil) // not written
	if got := mustOutcome(t, s, lost.ID); string(got.Value) != `"applied"` {
		t.Errorf("in memory: %+v", got)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	next := s.Begin("stop", false)
	next.Finish("stopped", nil)
	s.Close()
	reopened := open(t, path)
	for _, task := range []*Task{lost, next} {
		if got := mustOutcome(t, reopened, task.ID); got.Running || got.Failed {
			t.Errorf("%s after a restart: %+v", task.Method, got)
		}
	}
}

// With settings on a tmpfs the journal is there too, and the tmpfs can be unmounted under the agent.
func TestTheJournalIsNotHeldOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	s := open(t, path)
	defer s.Close()
	task := s.Begin("apply", false)
	<-task.Durable()
	task.Finish("applied", nil)
	mustOutcome(t, s, task.ID)
	descriptors, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range descriptors {
		if target, err := os.Readlink(d); err == nil && target == path {
			t.Errorf("%s is open", path)
		}
	}
}

// A file system that is mounted under the agent has no journal, or an older one. The next write completes it.
func TestAnotherJournalIsCompleted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	s := open(t, path)
	ended, begun := s.Begin("prepare", false), s.Begin("apply", false)
	ended.Finish("prepared", nil)
	<-begun.Durable()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	begun.Finish("applied", nil)
	s.Close()
	reopened := open(t, path)
	defer reopened.Close()
	for task, want := range map[*Task]string{ended: `"prepared"`, begun: `"applied"`} {
		if got, err := reopened.Outcome(task.ID); err != nil || string(got.Value) != want {
			t.Errorf("%s after a restart: %+v, %v; want %s", task.Method, got, err, want)
		}
	}
}

func FuzzJournalLine(f *testing.F) {
	line, err := entry{ID: "a", Method: "apply", Value: json.RawMessage(`{"a":[1]}`)}.line()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(line)
	f.Add([]byte("00000000 {}"))
	f.Add([]byte(""))
	f.Fuzz(func(t *testing.T, data []byte) {
		e, ok := parseLine(data)
		if !ok {
			return
		}
		written, err := e.line()
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := parseLine(written[:len(written)-1]); !ok {
			t.Errorf("cannot read back %q", written)
		}
	})
}
