// Package task keeps asynchronous tasks and their results, and cancels them. A document on disk preserves them across a
// restart of the agent.
package task

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/sirupsen/logrus"
)

const (
	// keepAtLeast is the minimum time for which a result is kept. A Director may ask for it for nearly four minutes
	// after the end, and create-env must see a failure eleven times.
	keepAtLeast = 10 * time.Minute
	// keepNormally is the time for which a result is kept if there is room.
	keepNormally = time.Hour
	// maxFinished and maxBytes bound the results that are kept beyond keepAtLeast, because all results are written
	// whenever a task begins or ends.
	maxFinished = 100
	maxBytes    = 1 << 20
)

// ErrCanceled is the cause of a canceled task's context.
var ErrCanceled = errors.New("task was canceled")

// ErrRestarted is the error of a task that a restart of the agent interrupted and that cannot be resumed.
var ErrRestarted = errors.New("the agent restarted while the task was running")

// Task is an asynchronous task. Its exported fields do not change.
type Task struct {
	ID         string
	Method     string
	Cancelable bool

	owner  *Tasks
	ctx    context.Context
	cancel context.CancelCauseFunc
	ended  chan struct{} // closed when callers may see the outcome

	// owner.mu guards the fields below.
	entry   entry
	encoded []byte // the entry as JSON; nil after a change
	visible bool   // the outcome is durable, and callers may see it
	// kept is the start of the retention time: the end of the task or, for a task of an earlier process, the start of
	// this process. The clock may have been set between the two, so their times cannot be compared.
	kept time.Time
}

// Checkpoint returns the last note of the task, or nil.
func (t *Task) Checkpoint() json.RawMessage {
	t.owner.mu.Lock()
	defer t.owner.mu.Unlock()
	return t.entry.Note
}

// Context ends when the task is canceled or the agent stops.
func (t *Task) Context() context.Context { return t.ctx }

// Persist writes the task to disk, so that it survives a restart of the agent. An error is logged but not returned: a
// full disk must not stop the agent.
func (t *Task) Persist() {
	if err := t.owner.save(); err != nil {
		t.owner.log.WithError(err).WithField("task", t.ID).
			Error("cannot record the task; it will not survive a restart")
	}
}

// Canceled reports whether cancel_task was called for the task.
func (t *Task) Canceled() bool { return errors.Is(context.Cause(t.ctx), ErrCanceled) }

// Outcome is the state of a task and, once it has ended, its result.
type Outcome struct {
	Method  string
	Running bool
	Value   json.RawMessage // of a successful task
	Failed  bool
	Error   string // of a failed task
}

// Options configures Tasks.
type Options struct {
	// Path is the document. Its directory must exist; on a tmpfs, tasks survive a restart of the agent but not a
	// reboot. If Path is empty, tasks are kept in memory only.
	Path string
	Log  *logrus.Entry
}

// Tasks is the set of running and finished tasks.
type Tasks struct {
	log  *logrus.Entry
	path string
	now  func() time.Time

	writing sync.Mutex // guards the document and written; taken before mu
	written int        // the last change in the document

	mu          sync.Mutex // guards the fields below
	changes     int        // the number of changes so far
	ctx         context.Context
	byID        map[string]*Task
	finished    []*Task // in order of their end
	bytes       int     // of finished results
	interrupted []*Task
}

// Open reads the document. Contexts of new tasks end with ctx. If the document is damaged, it is renamed and its tasks
// are unknown. If it cannot be read, Open returns the error and Tasks that work in memory.
func Open(ctx context.Context, o Options) (*Tasks, error) {
	s := &Tasks{log: o.Log, ctx: ctx, byID: map[string]*Task{}, now: time.Now}
	if o.Path == "" {
		return s, nil
	}
	entries, err := read(o.Path)
	if errors.Is(err, errDamaged) {
		s.log.WithError(err).WithField("path", o.Path).
			Error("the task record is damaged and was set aside; earlier tasks are unknown")
		err = setAside(o.Path)
	}
	if err != nil {
		return s, err
	}
	s.path = o.Path
	for _, e := range entries {
		t := s.newTask(e, false)
		s.byID[t.ID] = t
		if e.Ended.IsZero() {
			s.interrupted = append(s.interrupted, t)
			continue
		}
		t.visible = true
		close(t.ended)
		s.retain(t)
	}
	return s, nil
}

func (s *Tasks) newTask(e entry, cancelable bool) *Task {
	t := &Task{ID: e.ID, Method: e.Method, Cancelable: cancelable, owner: s, entry: e, ended: make(chan struct{})}
	t.ctx, t.cancel = context.WithCancelCause(s.ctx)
	return t
}

// Begin creates a task. Outcome finds it at once; Persist makes it durable.
func (s *Tasks) Begin(method string, cancelable bool) *Task {
	t := s.newTask(entry{ID: uuid.NewString(), Method: method, Started: s.now()}, cancelable)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byID[t.ID] = t
	s.changes++
	return t
}

// SaveCheckpoint records a checkpoint from which the task can be resumed after a restart.
func (t *Task) SaveCheckpoint(note json.RawMessage) error {
	t.change(func(e *entry) { e.Note = note })
	return t.owner.save()
}

func (t *Task) change(change func(*entry)) {
	t.owner.mu.Lock()
	defer t.owner.mu.Unlock()
	change(&t.entry)
	t.encoded = nil
	t.owner.changes++
}

// Finish records the outcome, and makes it durable before a caller can see it. If the agent is stopping, an error is
// not recorded: the task was interrupted and did not fail.
func (t *Task) Finish(value any, err error) {
	defer t.cancel(nil)
	s := t.owner
	if err != nil && s.ctx.Err() != nil && !t.Canceled() {
		return
	}
	var data json.RawMessage
	if err == nil {
		data, err = json.Marshal(value)
	}
	t.change(func(e *entry) {
		e.Ended, e.Value = s.now(), data
		if err != nil {
			e.Failed, e.Error, e.Value = true, err.Error(), nil
		}
	})
	t.Persist()
	s.mu.Lock()
	defer s.mu.Unlock()
	t.visible = true
	close(t.ended)
	s.retain(t)
}

// retain adds a finished task and removes old ones. The caller holds mu.
func (s *Tasks) retain(t *Task) {
	s.finished = append(s.finished, t)
	s.bytes += t.entry.weight()
	t.kept = s.now()
	for len(s.finished) > 0 {
		oldest := s.finished[0]
		age := t.kept.Sub(oldest.kept)
		crowded := len(s.finished) > maxFinished || s.bytes > maxBytes
		if age < keepAtLeast || age < keepNormally && !crowded {
			return
		}
		s.bytes -= oldest.entry.weight()
		delete(s.byID, oldest.ID)
		s.finished[0] = nil
		s.finished = s.finished[1:]
	}
}

// notFound is the error for an id that is unknown or was removed.
type notFound struct{ ID string }

func (e notFound) Error() string { return fmt.Sprintf("Task with id %s could not be found", e.ID) }

// Outcome returns the state of a task; it may be called any number of times.
func (s *Tasks) Outcome(id string) (Outcome, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, found := s.byID[id]
	if !found {
		return Outcome{}, notFound{id}
	}
	if !t.visible {
		return Outcome{Method: t.Method, Running: true}, nil
	}
	return Outcome{Method: t.Method, Value: t.entry.Value, Failed: t.entry.Failed, Error: t.entry.Error}, nil
}

// Wait blocks until the task ends or is canceled, the agent stops, or ctx ends. For an unknown task, and one that has
// ended, it returns at once. A task that was canceled before the call is waited for like any other.
func (s *Tasks) Wait(ctx context.Context, id string) {
	s.mu.Lock()
	t, found := s.byID[id]
	s.mu.Unlock()
	if !found {
		return
	}
	canceled := t.ctx.Done()
	if t.Canceled() {
		canceled = s.ctx.Done()
	}
	select {
	case <-t.ended:
	case <-canceled:
	case <-ctx.Done():
	}
}

// Ended reports whether Outcome has a final answer: the task has ended or is unknown.
func (s *Tasks) Ended(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, found := s.byID[id]
	return !found || t.visible
}

// Cancel ends the context of a cancelable task. It does nothing if the task has ended.
func (s *Tasks) Cancel(id string) error {
	s.mu.Lock()
	t, found := s.byID[id]
	ended := found && t.visible
	s.mu.Unlock()
	switch {
	case !found:
		return notFound{id}
	case ended:
		return nil
	case !t.Cancelable:
		return fmt.Errorf("canceling %s is not supported", t.Method)
	}
	t.cancel(ErrCanceled)
	return nil
}

// Interrupted returns the tasks that were running when the last process of the agent ended. The caller must finish each
// of them. A second call returns none.
func (s *Tasks) Interrupted() []*Task {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.interrupted
	s.interrupted = nil
	return list
}
