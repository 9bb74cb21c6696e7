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
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"
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
	path := filepath.Join(t.TempDir(), "tasks.json")
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
	if err := running.SaveCheckpoint(json.RawMessage(`{"step":1}`)); err != nil {
		t.Fatal(err)
	}
	if err := running.SaveCheckpoint(json.RawMessage(`{"step":2}`)); err != nil {
		t.Fatal(err)
	}

	for range 2 { // a second restart finds the same
		reopened := open(t, path)
		if got := mustOutcome(t, reopened, done.ID); string(got.Value) != `"applied"` || got.Failed || got.Running {
			t.Errorf("finished task after restart: %+v", got)
		}
		if got := mustOutcome(t, reopened, failed.ID); !got.Failed || got.Error != "boom" {
			t.Errorf("failed task after restart: %+v", got)
		}
		left := reopened.Interrupted()
		if len(left) != 1 || left[0].ID != running.ID || string(left[0].Checkpoint()) != `{"step":2}` ||
			left[0].Method != "update_settings" {
			t.Errorf("interrupted: %+v", left)
		}
		if len(reopened.Interrupted()) != 0 {
			t.Error("interrupted tasks were handed out twice")
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("record: %v, %v; want mode 0600", info.Mode(), err)
	}
}

func TestReopeningWritesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tasks.json")
	s := open(t, path)
	s.Begin("apply", false).Finish("applied", nil)
	before, _ := os.Stat(path)
	open(t, path)
	after, _ := os.Stat(path)
	if !os.SameFile(before, after) || before.ModTime() != after.ModTime() {
		t.Error("reopening wrote the record")
	}
}

// Whatever is wrong with the document, it is kept, the log says so, and the agent goes on. Its tasks are unknown.
func TestDamagedDocumentIsSetAside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tasks.json")
	known := open(t, path).Begin("apply", false)
	known.Finish("applied", nil)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, damaged := range map[string]string{
		"empty": "", "truncated": string(whole[:len(whole)/2]), "garbage": "\x00\xff", "longer": string(whole) + "{",
		"no id":                          `{"tasks":[{"method":"apply"}]}`,
		"no method":                      `{"tasks":[{"id":"a"}]}`,
		"lines of an unreleased version": `f0c1a2b3 {"id":"a","method":"apply"}` + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(path, []byte(damaged), 0o644); err != nil {
				t.Fatal(err)
			}
			log, logged := test.NewNullLogger()
			s, err := Open(t.Context(), Options{Path: path, Log: logrus.NewEntry(log)})
			if err != nil {
				t.Fatal(err)
			}
			if line := logged.LastEntry(); line == nil || line.Level != logrus.ErrorLevel || line.Data["path"] != path {
				t.Errorf("logged %+v, want an error with the path", line)
			}
			if kept, err := os.ReadFile(path + ".corrupt"); err != nil || string(kept) != damaged {
				t.Errorf("kept %q, %v; want %q", kept, err, damaged)
			}
			var missing notFound
			if _, err := s.Outcome(known.ID); !errors.As(err, &missing) || len(s.Interrupted()) != 0 {
				t.Errorf("outcome of a lost task: %v", err)
			}
			next := s.Begin("drain", false)
			next.Finish(0, nil)
			if got := mustOutcome(t, open(t, path), next.ID); string(got.Value) != "0" {
				t.Errorf("the next task is lost: %+v", got)
			}
			if info, _ := os.Stat(path); info.Mode().Perm() != 0o600 {
				t.Errorf("mode %v was not corrected", info.Mode())
			}
		})
	}
}

// A process that is killed at any moment leaves each task of which a caller may know: begun ones as interrupted, ended
// ones with their outcome. What it had not begun to rename does not count.
func TestEachWriteIsWhole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tasks.json")
	s := open(t, path)
	ended, begun := s.Begin("apply", false), s.Begin("stop", false)
	ended.Finish("applied", nil)
	begun.Persist()
	if err := os.WriteFile(filepath.Join(filepath.Dir(path), ".tasks.json.cambium-tmp-x"), []byte(`{"ta`),
		0o600); err != nil {
		t.Fatal(err)
	}
	killed := open(t, path) // while s has neither ended nor been told to
	if got := mustOutcome(t, killed, ended.ID); string(got.Value) != `"applied"` {
		t.Errorf("ended task: %+v", got)
	}
	if left := killed.Interrupted(); len(left) != 1 || left[0].ID != begun.ID {
		t.Errorf("interrupted: %v", left)
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
	path := filepath.Join(t.TempDir(), "tasks.json")
	ctx, cancel := context.WithCancel(t.Context())
	s, err := Open(ctx, Options{Path: path, Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	task := s.Begin("apply", true)
	task.Persist()
	cancel()
	task.Finish(nil, task.Context().Err())
	if left := open(t, path).Interrupted(); len(left) != 1 {
		t.Errorf("got %d interrupted tasks, want 1", len(left))
	}
}

func TestOldResultsAreForgotten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tasks.json")
	s := open(t, path)
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
	third := s.Begin("d", false)
	third.Finish(1, nil)
	now = now.Add(keepAtLeast)
	for range maxFinished {
		s.Begin("e", false).Finish(1, nil)
	}
	if _, err := s.Outcome(third.ID); err == nil {
		t.Errorf("more than %d results were kept", maxFinished)
	}
	s.Begin("f", false).Finish(1, nil)
	if all, err := read(path); err != nil || len(all) > maxFinished+2 {
		t.Errorf("the document has %d tasks, %v; want those that are kept", len(all), err)
	}
}

// The clock is set while the agent is restarted, as by the first synchronization of a machine: a result of a moment ago
// is found all the same, and goes in its time.
func TestClockIsSetBetweenTwoProcesses(t *testing.T) {
	for name, jump := range map[string]time.Duration{"forwards": 2 * time.Hour, "backwards": -2 * 365 * 24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "tasks.json")
			s := open(t, path)
			s.now = func() time.Time { return time.Now().Add(-jump) }
			last := s.Begin("apply", false)
			last.Finish("applied", nil)
			s = open(t, path)
			mustOutcome(t, s, last.ID)
			now := time.Now()
			s.now = func() time.Time { return now }
			now = now.Add(keepAtLeast - time.Minute)
			s.Begin("a", false).Finish(1, nil)
			mustOutcome(t, s, last.ID)
			now = now.Add(keepNormally)
			s.Begin("b", false).Finish(1, nil)
			if _, err := s.Outcome(last.ID); err == nil {
				t.Error("the result is kept for ever")
			}
		})
	}
}

func TestConcurrentTasksLoseNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tasks.json")
	s := open(t, path)
	big := strings.Repeat("x", 16<<10)
	var wg sync.WaitGroup
	var mu sync.Mutex
	ids := map[string]string{}
	for i := range 20 {
		wg.Go(func() {
			task := s.Begin("run_errand", false)
			task.Persist()
			if all, err := read(path); err != nil || !slices.ContainsFunc(all,
				func(e entry) bool { return e.ID == task.ID }) {
				t.Errorf("begun task is not in the document: %v", err)
			}
			value := fmt.Sprint(i, big)
			task.Finish(value, nil)
			mu.Lock()
			ids[task.ID] = value
			mu.Unlock()
		})
	}
	wg.Wait()
	running := s.Begin("drain", false)
	running.Persist()
	reopened := open(t, path)
	for id, want := range ids {
		if got := mustOutcome(t, reopened, id); len(got.Value) != len(want)+2 {
			t.Fatalf("task %s: got %d bytes, want %d", id, len(got.Value), len(want)+2)
		}
	}
	if left := reopened.Interrupted(); len(left) != 1 || left[0].ID != running.ID {
		t.Errorf("interrupted: %v", left)
	}
}

func TestUnusableDocumentDoesNotStopWork(t *testing.T) {
	for name, c := range map[string]struct {
		path   string
		unread bool // Open says so; otherwise each write does
	}{
		"missing directory": {path: filepath.Join(t.TempDir(), "missing", "tasks.json")},
		"not a file":        {path: t.TempDir(), unread: true},
	} {
		t.Run(name, func(t *testing.T) {
			log, logged := test.NewNullLogger()
			s, err := Open(t.Context(), Options{Path: c.path, Log: logrus.NewEntry(log)})
			if c.unread != (err != nil) {
				t.Fatalf("got %v", err)
			}
			task := s.Begin("apply", false)
			task.Persist()
			if line := logged.LastEntry(); !c.unread && (line == nil || line.Level != logrus.ErrorLevel) {
				t.Errorf("logged %+v, want an error", line)
			}
			task.Finish("applied", nil)
			if got := mustOutcome(t, s, task.ID); string(got.Value) != `"applied"` {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// A disk that is full for a while costs nothing once it is not.
func TestRecoversFromFailedWrites(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tasks.json")
	s := open(t, path)
	lost := s.Begin("apply", false)
	lost.Persist()
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
	reopened := open(t, path)
	for _, task := range []*Task{lost, next} {
		if got := mustOutcome(t, reopened, task.ID); got.Running || got.Failed {
			t.Errorf("%s after a restart: %+v", task.Method, got)
		}
	}
}

// With settings on a tmpfs the document is there too, and the tmpfs can be unmounted under the agent.
func TestTheDocumentIsNotHeldOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tasks.json")
	s := open(t, path)
	task := s.Begin("apply", false)
	task.Persist()
	task.Finish("applied", nil)
	mustOutcome(t, s, task.ID)
	descriptors, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range descriptors {
		if target, err := os.Readlink(d); err == nil && filepath.Dir(target) == filepath.Dir(path) {
			t.Errorf("%s is open", target)
		}
	}
}

// A file system that is mounted under the agent has no document, or an older one. The next write replaces it.
func TestAnotherDocumentIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tasks.json")
	s := open(t, path)
	ended, begun := s.Begin("prepare", false), s.Begin("apply", false)
	ended.Finish("prepared", nil)
	begun.Persist()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	begun.Finish("applied", nil)
	reopened := open(t, path)
	for task, want := range map[*Task]string{ended: `"prepared"`, begun: `"applied"`} {
		if got, err := reopened.Outcome(task.ID); err != nil || string(got.Value) != want {
			t.Errorf("%s after a restart: %+v, %v; want %s", task.Method, got, err, want)
		}
	}
}
