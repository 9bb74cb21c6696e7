// Package bootstrap takes a machine from "the agent has started" to "the Director can talk to
// it": a table of named steps that run as soon as what they need is done, side by side where
// they do not depend on each other, and a verdict that says in one line what went wrong.
//
// The engine in this file knows nothing of what the steps do; steps.go is the table. Sources,
// bus and supervisor are reached through functions that cmd/agent hands in.
package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/internal/status"
)

// Step is one row of the boot table.
type Step struct {
	Name string
	// Needs are the steps that must have ended well (or with a warning) before this one.
	Needs []string
	// Yields are steps that go first, however they end. Nobody waits longer than yieldLimit for them.
	// A background step that yields up to the verdict begins only when that has been told.
	Yields []string
	// If decides, once Needs are done, whether there is anything to do; nil means always.
	If func() bool
	// Deadline bounds the step; zero means that only the boot's own context does. A step that does not
	// heed it is judged a moment later all the same: see stubborn.
	Deadline time.Duration
	// Patience is for a step that waits without end for what may come at any time: when it has
	// lasted so long, what it waits for is announced as the verdict, and the step goes on.
	Patience time.Duration
	// Optional steps warn where others fail the boot.
	Optional bool
	// Background steps are not waited for when the boot is judged; they imply Optional.
	Background bool
	// Always lets the step run to its end although another has failed the boot: the verdict
	// reaches the Director only if there is a network and a bus.
	Always bool
	// Advice is what an operator can do when the step fails.
	Advice string
	Run    func(ctx context.Context, s *Span) error
}

// Verdict is how a boot ended.
type Verdict struct {
	State    status.State
	Step     string // the step that failed
	Cause    error
	Advice   string
	Warnings []string
}

// Line is the one sentence for the operator: "step: cause: what to do".
func (v Verdict) Line() string {
	if v.Cause == nil {
		return string(v.State)
	}
	line := v.Step + ": " + OneLine(v.Cause.Error())
	if v.Advice != "" {
		line += ": " + v.Advice
	}
	return line
}

// OneLine folds a text so that it fits a console line and an exception: a joined error spans
// several lines.
func OneLine(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}

// Engine runs boot tables.
type Engine struct {
	Log    *logrus.Entry
	Status *status.Recorder
	// Notify tells the service manager; nil means there is none.
	Notify func(state string)
	// Failing, when set, is told the verdict as soon as it is known: when the first step that matters
	// has failed, while others still end, or when a step's patience is over, and then the zero value if
	// that step has ended well after all.
	Failing func(Verdict)
	// Boundary, when set, is called at each step boundary: the crash tests stop the process there.
	Boundary func(step string, ended bool)

	mu   sync.Mutex      // guards what follows
	last *boot           // whose steps the status shows
	busy map[string]bool // steps that run
}

// enter claims a step, or reports that a run of it that nobody could stop goes on.
func (e *Engine) enter(step string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.busy[step] {
		return false
	}
	if e.busy == nil {
		e.busy = map[string]bool{}
	}
	e.busy[step] = true
	return true
}

func (e *Engine) leave(step string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.busy, step)
}

// ErrTable means that the table itself is wrong: a need that no step provides, or a circle.
var ErrTable = errors.New("boot table")

// check proves that every step that is waited for is an earlier row, which also excludes circles.
func check(steps []Step) error {
	seen := map[string]bool{}
	for _, s := range steps {
		if s.Name == "" || s.Run == nil || seen[s.Name] {
			return fmt.Errorf("%w: row %q has no name, no function, or a name used before", ErrTable, s.Name)
		}
		for _, need := range slices.Concat(s.Needs, s.Yields) {
			if !seen[need] {
				return fmt.Errorf("%w: %s needs %q, which no earlier row provides", ErrTable, s.Name, need)
			}
		}
		seen[s.Name] = true
	}
	return nil
}

// errCancelled is the cause of a step's end when another step has failed the boot.
var errCancelled = errors.New("another step failed")

type ended struct {
	index int
	err   error
}

// stubborn is how long a step may take to heed its deadline. Behind it the step counts as failed: one that
// hangs in a system call must not keep the verdict back, nor, if it is optional, the machine from being ready.
const stubborn = 5 * time.Second

// Run runs the table and returns the verdict when every step that ready waits for has ended.
// Background steps go on under ctx; the returned function, which is to be called when the verdict has
// been told, begins those that have let others go first, and waits for all. The first failure of a
// step that is not optional cancels the others; each gets to end by itself.
func (e *Engine) Run(ctx context.Context, steps []Step) (Verdict, func(), error) {
	if err := check(steps); err != nil {
		return Verdict{}, func() {}, err
	}
	b := &boot{Engine: e, rec: e.Status, log: e.Log}
	e.mu.Lock()
	e.last = b
	e.mu.Unlock()
	rows := make([]status.Step, len(steps))
	for i, s := range steps {
		rows[i] = status.Step{Name: s.Name, Outcome: status.Pending, Background: s.Background}
	}
	if err := b.rec.Update(func(d *status.Document) {
		d.Steps, d.State, d.Verdict, d.Warnings, d.ReadyNS = rows, status.Starting, "", nil, 0
	}); err != nil {
		b.log.WithError(err).Warn("status not written")
	}
	stepCtx, cancel := context.WithCancelCause(ctx)
	results := make(chan ended, len(steps))
	var going, telling sync.WaitGroup
	finished := map[string]bool{}
	over := map[string]bool{} // finished or failed
	started := make([]bool, len(steps))
	running, failure := 0, Verdict{}
	held, tired := make([]bool, len(steps)), make([]bool, len(steps)) // of yielding
	enough, hung := make(chan int, len(steps)), make(chan int, len(steps))

	launch := func() {
		for i, s := range steps {
			if started[i] || failure.Cause != nil && !s.Always || !all(finished, s.Needs) {
				continue
			}
			if !tired[i] && yields(steps, s.Yields, over, failure.Cause != nil) {
				if !held[i] {
					held[i] = true
					time.AfterFunc(yieldLimit, func() { enough <- i })
				}
				continue
			}
			if s.Background && len(s.Yields) > 0 && running == 0 {
				continue // everybody else has ended
			}
			started[i] = true
			if s.Background {
				going.Go(func() { _ = b.runStep(ctx, s, nil) })
				finished[s.Name], over[s.Name] = true, true
				continue
			}
			running++
			within := stepCtx
			if s.Always {
				within = ctx
			}
			going.Go(func() { results <- ended{i, b.runStep(within, s, func() { hung <- i })} })
		}
	}
	failed := func(s Step, err error) {
		if failure.Cause != nil {
			return
		}
		failure = Verdict{State: status.Failed, Step: s.Name, Cause: err, Advice: adviceFor(err, s.Advice)}
		cancel(errCancelled)
		// The steps on the way to the bus may take minutes to end, and there are other channels.
		if told := failure; b.Failing != nil && ctx.Err() == nil {
			b.setJudged(true)
			telling.Go(func() { b.Failing(told) })
		}
	}
	for launch(); running > 0; launch() {
		select {
		case i := <-enough:
			tired[i] = true
		case i := <-hung:
			s := steps[i]
			err := fmt.Errorf("not done within %s, and cannot be stopped", s.Deadline)
			switch {
			case over[s.Name]:
			case s.Optional:
				// Nobody waits for it any more.
				b.warn(s.Name, err.Error())
				running--
				finished[s.Name], over[s.Name] = true, true
			default:
				// It is waited for, since what it does cannot be done a second time beside it.
				failed(s, err)
			}
		case r := <-results:
			s := steps[r.index]
			if over[s.Name] {
				break
			}
			running--
			over[s.Name] = true
			switch {
			case r.err == nil, s.Optional && ctx.Err() == nil:
				finished[s.Name] = true
			default:
				failed(s, r.err)
			}
		}
	}
	cancel(nil)
	telling.Wait()
	verdict := failure
	b.mu.Lock()
	verdict.Warnings = append([]string(nil), b.warnings...)
	b.mu.Unlock()
	if verdict.Cause == nil {
		verdict.State = status.Ready
		if len(verdict.Warnings) > 0 {
			verdict.State = status.Degraded
		}
	}
	var rest []Step
	for i, s := range steps {
		if !started[i] && s.Background && all(finished, s.Needs) && (failure.Cause == nil || s.Always) {
			rest = append(rest, s)
		}
	}
	b.close(verdict, rest)
	return verdict, func() {
		b.account()
		for _, s := range rest {
			going.Go(func() { _ = b.runStep(ctx, s, nil) })
		}
		going.Wait()
	}, nil
}

func all(finished map[string]bool, needs []string) bool {
	for _, n := range needs {
		if !finished[n] {
			return false
		}
	}
	return true
}

// yieldLimit is how long a step lets others go first. What they wait for may never come.
const yieldLimit = 5 * time.Second

// yields reports whether one of the named steps is still to end.
func yields(steps []Step, names []string, over map[string]bool, failed bool) bool {
	for _, s := range steps {
		if slices.Contains(names, s.Name) && !over[s.Name] && (s.Always || !failed) {
			return true
		}
	}
	return false
}

// Advised is an error that knows what an operator can do about it.
type Advised interface{ Advice() string }

func adviceFor(err error, fallback string) string {
	var a Advised
	if errors.As(err, &a) && a.Advice() != "" {
		return a.Advice()
	}
	return fallback
}
