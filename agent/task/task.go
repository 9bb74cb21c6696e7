// Package task keeps asynchronous work: its id, its outcome, how to cancel it, and a journal by
// which all of that survives a restart of the agent.
package task

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
)

const (
	// keepAtLeast is how long a result is kept in any case: a Director may ask for it for
	// nearly four minutes after the end, and create-env needs to see a failure eleven times.
	keepAtLeast = 10 * time.Minute
	// keepNormally is how long it is kept while there is room.
	keepNormally = time.Hour
	// maxFinished and maxBytes are the room for results.
	maxFinished = 10000
)

var maxBytes = 64 << 20 // a variable for the sake of tests

// ErrCanceled is the cause of a canceled task's context.
var ErrCanceled = errors.New("task was canceled")

// ErrRestarted is why a task that cannot be resumed failed.
var ErrRestarted = errors.New("the agent restarted while the task was running")

// Task is one piece of asynchronous work. Its fields do not change.
type Task struct {
	ID         string
	Method     string
	Cancelable bool

	owner   *Tasks
	ctx     context.Context
	cancel  context.CancelCauseFunc
	durable chan struct{} // closed when the journal knows the task
	ended   chan struct{} // closed when the outcome may be seen

	// Guarded by owner.mu.
	note    json.RawMessage
	final   entry // the outcome as it is in the journal
	visible bool  // the end is durable and may be seen
}

// Checkpoint is the last note that was made.
func (t *Task) Checkpoint() json.RawMessage {
	t.owner.mu.Lock()
	defer t.owner.mu.Unlock()
	return t.note
}

// Context ends when the task is canceled or the agent stops.
func (t *Task) Context() context.Context { return t.ctx }

// Durable is closed when the task would survive a restart of the agent.
func (t *Task) Durable() <-chan struct{} { return t.durable }

// Canceled reports whether cancel_task was called for it.
func (t *Task) Canceled() bool { return errors.Is(context.Cause(t.ctx), ErrCanceled) }

// Outcome is the state of a task and, once it has ended, its result.
type Outcome struct {
	Running bool
	Value   json.RawMessage // of a successful task
	Failed  bool
	Error   string // of a failed task
}

// Options configure Tasks.
type Options struct {
	// Path is the journal. Its directory exists; a tmpfs makes tasks survive the agent but not
	// the machine. Without a path nothing survives.
	Path string
	Log  *logrus.Entry
}

// Tasks is the set of tasks, running and ended.
type Tasks struct {
	log     *logrus.Entry
	journal *journal
	now     func() time.Time

	mu          sync.Mutex // guards what follows
	ctx         context.Context
	byID        map[string]*Task
	finished    []*Task // in order of their end
	bytes       int     // of finished results
	interrupted []*Task
}

// Open reads the journal and makes ready for new tasks, whose contexts end with ctx. If the journal
// cannot be read or written, Open returns the error together with Tasks that work in memory.
func Open(ctx context.Context, o Options) (*Tasks, error) {
	s := &Tasks{log: o.Log, ctx: ctx, byID: map[string]*Task{}, now: time.Now}
	if o.Path == "" {
		return s, nil
	}
	entries, torn, err := readJournal(o.Path)
	if err != nil {
		return s, err
	}
	var ended []*Task
	for _, e := range entries {
		t := s.newTask(e.ID, e.Method, false)
		t.note = e.Note
		close(t.durable)
		s.byID[t.ID] = t
		if e.Ended.IsZero() {
			s.interrupted = append(s.interrupted, t)
			continue
		}
		t.final, t.visible = e, true
		close(t.ended)
		ended = append(ended, t)
	}
	for _, t := range ended {
		s.keep(t)
	}
	s.journal, err = openJournal(o.Path, torn, s.snapshot, o.Log)
	return s, err
}

// Close writes what is pending and releases the journal.
func (s *Tasks) Close() {
	if s.journal != nil {
		s.journal.close()
	}
}

func (s *Tasks) newTask(id, method string, cancelable bool) *Task {
	t := &Task{ID: id, Method: method, Cancelable: cancelable, owner: s, durable: make(chan struct{}), ended: make(chan struct{})}
	t.ctx, t.cancel = context.WithCancelCause(s.ctx)
	return t
}

// Begin makes a task. It is found at once and durable a moment later.
func (s *Tasks) Begin(method string, cancelable bool) *Task {
	t := s.newTask(newID(), method, cancelable)
	s.mu.Lock()
	s.byID[t.ID] = t
	s.mu.Unlock()
	s.append(entry{ID: t.ID, Method: method, Started: s.now()}, func() { close(t.durable) })
	return t
}

// Note records how far the task has come, for Interrupted after a restart.
func (t *Task) Note(note json.RawMessage) error {
	done := make(chan error, 1)
	t.owner.mu.Lock()
	t.note = note
	t.owner.mu.Unlock()
	if t.owner.journal == nil {
		return nil
	}
	t.owner.journal.append(entry{ID: t.ID, Note: note}, func(err error) { done <- err })
	return <-done
}

// Finish records the outcome, durably before a caller can see it. When the agent itself is
// stopping the outcome is not recorded: the task was interrupted rather than failed.
func (t *Task) Finish(value any, err error) {
	defer t.cancel(nil)
	s := t.owner
	if err != nil && s.ctx.Err() != nil && !t.Canceled() {
		return
	}
	e := entry{ID: t.ID, Method: t.Method, Ended: s.now()}
	if err == nil {
		e.Value, err = json.Marshal(value)
	}
	if err != nil {
		e.Failed, e.Error, e.Value = true, err.Error(), nil
	}
	s.mu.Lock()
	t.final = e
	s.mu.Unlock()
	written := make(chan struct{})
	s.append(e, func() { close(written) })
	<-written
	s.mu.Lock()
	defer s.mu.Unlock()
	t.visible = true
	close(t.ended)
	s.keep(t)
}

// append writes to the journal and calls done afterwards, whether or not that worked: a full
// disk must not stop the agent from working.
func (s *Tasks) append(e entry, done func()) {
	if s.journal == nil {
		done()
		return
	}
	s.journal.append(e, func(err error) {
		if err != nil {
			s.log.WithError(err).WithField("task", e.ID).Error("task journal not written")
		}
		done()
	})
}

// keep adds an ended task and forgets old ones; the caller holds mu.
func (s *Tasks) keep(t *Task) {
	s.finished = append(s.finished, t)
	s.bytes += t.final.weight()
	now := s.now()
	for len(s.finished) > 0 {
		oldest := s.finished[0]
		age := now.Sub(oldest.final.Ended)
		crowded := len(s.finished) > maxFinished || s.bytes > maxBytes
		if age < keepAtLeast || age < keepNormally && !crowded {
			return
		}
		s.bytes -= oldest.final.weight()
		delete(s.byID, oldest.ID)
		s.finished[0] = nil
		s.finished = s.finished[1:]
	}
}

// notFound is the error for an id that is unknown or long forgotten.
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
		return Outcome{Running: true}, nil
	}
	return Outcome{Value: t.final.Value, Failed: t.final.Failed, Error: t.final.Error}, nil
}

// Wait blocks until the outcome of a task can be asked for, the task is canceled, the agent stops or
// ctx ends. An unknown task, and one that has ended, cost no wait; a task that was canceled before
// is waited for like any other.
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

// Ended reports whether asking for the outcome gives a final answer: the task has ended or is unknown.
func (s *Tasks) Ended(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, found := s.byID[id]
	return !found || t.visible
}

// Cancel ends the context of a task that can be stopped. For a task that has ended it does nothing.
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

// Interrupted hands out, once, the tasks that the last end of the agent interrupted. Each must
// be finished by the caller.
func (s *Tasks) Interrupted() []*Task {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.interrupted
	s.interrupted = nil
	return list
}

// snapshot is what a compacted journal holds.
func (s *Tasks) snapshot() []entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []entry
	for _, t := range s.byID {
		e := t.final
		e.ID, e.Method, e.Note = t.ID, t.Method, t.note
		all = append(all, e)
	}
	return all
}

func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails on supported systems
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
