// Package engine runs a table of named steps. Each step starts as soon as the steps that it needs have succeeded, in
// parallel with others. Steps have deadlines and warnings, and the verdict says in one line what went wrong. Plan
// returns what each step would change, without changing anything. The package does not know what the steps do; package
// bootstrap has the boot table.
package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/internal/status"
)

// Engine runs boot tables.
type Engine struct {
	Log    *logrus.Entry
	Status *status.Recorder
	// Notify sends a state to the service manager; may be nil.
	Notify func(state string)
	// Failing, if set, is called with the verdict as soon as it is known: when the first step that is not optional has
	// failed, while others are still ending, or when a step has run for its AnnounceAfter. In the second case it is
	// called with the zero value if the step then succeeds.
	Failing func(Verdict)
	// Boundary, if set, is called at the start and the end of each step. The crash tests kill the process there.
	Boundary func(step string, ended bool)

	mu      sync.Mutex      // guards the fields below
	latest  *attempt        // the attempt that the status shows
	running map[string]bool // by name of the step
}

// record changes the status.
func (e *Engine) record(change func(*status.Document)) {
	if err := e.Status.Update(change); err != nil {
		e.Log.WithError(err).Warn("cannot write the status")
	}
}

// claim reserves a step for a run. It returns false if an earlier run has not ended.
func (e *Engine) claim(step string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.running[step] {
		return false
	}
	if e.running == nil {
		e.running = map[string]bool{}
	}
	e.running[step] = true
	return true
}

func (e *Engine) release(step string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.running, step)
}

// errCanceled is the cause with which steps are canceled when another step has failed the boot.
var errCanceled = errors.New("another step failed")

const (
	// hangGrace bounds the time that a step may take to end after its deadline. A step that takes longer counts as
	// failed. One that hangs in a system call must not delay the verdict nor, if it is optional, keep the machine from
	// being ready.
	hangGrace = 5 * time.Second
	// yieldLimit bounds how long a step waits for those in Yields, because the event for which they wait may never
	// come.
	yieldLimit = 5 * time.Second
)

// Run runs the table and returns the verdict when all steps for which ready waits have ended. If ctx ends first, there
// is no verdict, and the state stays Starting. The first failure of a step that is not optional cancels the others, and
// Run waits until they have ended.
//
// Background steps continue under ctx. Call the returned function after the verdict was announced: it starts those that
// were still yielding, and waits for all of them.
func (e *Engine) Run(ctx context.Context, steps []Step) (Verdict, func(), error) {
	if err := check(steps); err != nil {
		return Verdict{}, func() {}, err
	}
	s := newSchedule(ctx, e.begin(steps), steps)
	for s.launch(); s.running > 0; s.launch() {
		select {
		case i := <-s.yielded:
			s.rows[i].yielded = true
		case i := <-s.hung:
			s.stepHangs(steps[i])
		case r := <-s.results:
			s.stepEnded(steps[r.index], r.err)
		}
	}
	s.cancel(nil)
	s.announcing.Wait()
	verdict, deferred := s.verdict(), s.deferred()
	s.close(verdict, deferred)
	return verdict, func() {
		s.logShortSteps()
		for _, step := range deferred {
			s.going.Go(func() { _ = s.runStep(ctx, step, nil) })
		}
		s.going.Wait()
	}, nil
}

// AnnounceNextTry records when the table will be run again at the latest.
func (e *Engine) AnnounceNextTry(at time.Time) {
	at = at.UTC()
	e.record(func(d *status.Document) { d.NextTry = &at })
}

// schedule decides when the steps of an attempt run. Only the goroutine of Run uses its fields. Steps report through
// channels with room for one report per step, so that they never block.
type schedule struct {
	*attempt
	ctx     context.Context // the agent's context
	steps   []Step
	rows    []scheduled
	results chan stepResult
	hung    chan int // index of a step that ignores its deadline
	yielded chan int // index of a step that has yielded for yieldLimit

	// within is the context of all steps except those with Always. It ends when a step has failed the boot.
	within     context.Context
	cancel     context.CancelCauseFunc
	going      sync.WaitGroup // counts running steps
	announcing sync.WaitGroup
	succeeded  map[string]bool // steps that have succeeded, with or without warnings
	over       map[string]bool // steps that have succeeded or failed
	running    int             // number of steps for which the verdict waits
	failure    Verdict
	stopped    bool // a step was ended because the agent stops
}

// scheduled is the progress of a step.
type scheduled struct {
	started  bool
	yielding bool // it is waiting for steps in Yields
	yielded  bool
}

type stepResult struct {
	index int
	err   error
}

func newSchedule(ctx context.Context, a *attempt, steps []Step) *schedule {
	n := len(steps)
	s := &schedule{attempt: a, ctx: ctx, steps: steps, rows: make([]scheduled, n), results: make(chan stepResult, n),
		hung: make(chan int, n), yielded: make(chan int, n), succeeded: map[string]bool{}, over: map[string]bool{}}
	s.within, s.cancel = context.WithCancelCause(ctx)
	return s
}

// launch starts each step that can start now.
func (s *schedule) launch() {
	for i, step := range s.steps {
		row := &s.rows[i]
		if row.started || s.failure.Cause != nil && !step.Always || !s.ready(step) {
			continue
		}
		if !row.yielded && s.mustYield(step) {
			if !row.yielding {
				row.yielding = true
				time.AfterFunc(yieldLimit, func() { s.yielded <- i })
			}
			continue
		}
		if step.Background && len(step.Yields) > 0 && s.running == 0 {
			continue // the verdict is next, and the step begins after its announcement
		}
		row.started = true
		if step.Background {
			s.going.Go(func() { _ = s.runStep(s.ctx, step, nil) })
			s.succeed(step)
			continue
		}
		s.running++
		within := s.within
		if step.Always {
			within = s.ctx
		}
		s.going.Go(func() { s.results <- stepResult{i, s.runStep(within, step, func() { s.hung <- i })} })
	}
}

// ready reports whether all steps that this one needs have succeeded.
func (s *schedule) ready(step Step) bool {
	return !slices.ContainsFunc(step.Needs, func(need string) bool { return !s.succeeded[need] })
}

// mustYield reports whether a step in Yields has not ended.
func (s *schedule) mustYield(step Step) bool {
	return slices.ContainsFunc(s.steps, func(other Step) bool {
		return slices.Contains(step.Yields, other.Name) && !s.over[other.Name] &&
			(other.Always || s.failure.Cause == nil)
	})
}

func (s *schedule) succeed(step Step) { s.succeeded[step.Name], s.over[step.Name] = true, true }

// stepHangs fails a step that ignores its deadline. Run still waits for it unless it is optional, because a second run
// must not overlap the first.
func (s *schedule) stepHangs(step Step) {
	err := fmt.Errorf("still running after its deadline of %s, and cannot be interrupted", step.Deadline)
	switch {
	case s.over[step.Name]:
	case step.Optional:
		s.warn(step.Name, err.Error())
		s.running--
		s.succeed(step)
	default:
		s.fail(step, err)
	}
}

func (s *schedule) stepEnded(step Step, err error) {
	if s.over[step.Name] {
		return // it hung, and was judged
	}
	s.running--
	if err == nil || step.Optional && s.ctx.Err() == nil {
		s.succeed(step)
		return
	}
	s.over[step.Name] = true
	s.fail(step, err)
}

// fail makes the first failure the verdict. It announces the verdict at once, because the steps that lead to the bus
// may take minutes to end, and there are other channels. It is not a failure if the agent stops.
func (s *schedule) fail(step Step, err error) {
	if s.failure.Cause != nil {
		return
	}
	if s.ctx.Err() != nil {
		s.stopped = true
		return
	}
	s.failure = Verdict{
		State:  status.Failed,
		Step:   step.Name,
		Cause:  err,
		Advice: thenRetry(adviceFor(err, step.Advice)),
	}
	s.cancel(errCanceled)
	if v := s.failure; s.Failing != nil {
		s.setJudged(true)
		s.announcing.Go(func() { s.Failing(v) })
	}
}

func (s *schedule) verdict() Verdict {
	v := s.failure
	v.Warnings = s.allWarnings()
	switch {
	case v.Cause != nil:
	case s.stopped:
		v.State, v.Cause = status.Starting, context.Cause(s.ctx)
	case len(v.Warnings) > 0:
		v.State = status.Degraded
	default:
		v.State = status.Ready
	}
	return v
}

// deferred returns the background steps that were yielding until the verdict.
func (s *schedule) deferred() (steps []Step) {
	for i, step := range s.steps {
		if !s.rows[i].started && step.Background && s.ready(step) && (s.failure.Cause == nil || step.Always) {
			steps = append(steps, step)
		}
	}
	return steps
}
