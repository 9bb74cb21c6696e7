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
	// Deadline bounds the step; zero means that only the boot's own context does.
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

// Span is a step's pen: what it writes here shows up in status, journal and verdict.
type Span struct {
	name string
	boot *boot
}

// Waiting says what the step can only wait for now; an empty text ends the wait.
func (s *Span) Waiting(reason string) {
	now := s.boot.rec.Now()
	s.boot.change(s.name, func(row *status.Step) {
		if n := len(row.Waits); row.Waiting != "" && n > 0 {
			row.Waits[n-1].End = now
		}
		row.Waiting = reason
		if reason != "" {
			row.Waits = append(row.Waits, status.Wait{For: reason, Start: now})
		}
	})
	if reason != "" {
		s.boot.log.WithFields(logrus.Fields{"step": s.name, "for": reason}).Info("waiting")
	}
	s.boot.waits(s.name, reason)
}

// WaitingSoon is Waiting for work that seldom waits: it says so only when a while has passed. The
// function it returns ends the wait.
func (s *Span) WaitingSoon(reason string) (done func()) {
	timer := time.AfterFunc(seldom, func() { s.Waiting(reason) })
	return func() {
		if !timer.Stop() {
			s.Waiting("")
		}
	}
}

// seldom is how long a device that is there may take to be found.
const seldom = 500 * time.Millisecond

// Evidence records a fact that helps to understand the step's outcome.
func (s *Span) Evidence(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	s.boot.change(s.name, func(row *status.Step) { row.Evidence = append(row.Evidence, text) })
}

// Warn records something that is wrong but does not keep the machine from being ready.
func (s *Span) Warn(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	s.boot.warn(s.name, text)
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
	// Failing, when set, is told the verdict of a step whose patience is over, and the zero value
	// when that step has ended well after all.
	Failing func(Verdict)
	// Boundary, when set, is called at each step boundary: the crash tests stop the process there.
	Boundary func(step string, ended bool)
}

type boot struct {
	Engine
	rec *status.Recorder
	log *logrus.Entry

	mu       sync.Mutex // guards what follows
	warnings []string
	running  []task // what ready waits for, in the order of its beginning
	told     string
	judged   bool // a verdict was announced and is what the service manager shows
}

// task is a step that runs, and what it waits for.
type task struct{ name, waiting string }

// current tells the service manager and whoever asks which step is waited for: the one that began
// first. It is called whenever that may have changed.
func (b *boot) current(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
	if len(b.running) == 0 {
		return
	}
	text := b.running[0].name
	for _, t := range b.running {
		if t.waiting != "" {
			text = t.name + ": waiting for " + t.waiting
			break
		}
	}
	if text != b.told && !b.judged {
		b.told = text
		b.notify("STATUS=" + text)
	}
}

func (b *boot) waits(name, reason string) {
	b.current(func() {
		for i := range b.running {
			if b.running[i].name == name {
				b.running[i].waiting = reason
			}
		}
	})
}

func (b *boot) notify(state string) {
	if b.Notify != nil {
		b.Notify(state)
	}
}

func (b *boot) change(name string, change func(*status.Step)) {
	err := b.rec.Update(func(d *status.Document) {
		for i := range d.Steps {
			if d.Steps[i].Name == name {
				change(&d.Steps[i])
			}
		}
	})
	if err != nil {
		b.log.WithError(err).Warn("status not written")
	}
}

func (b *boot) warn(step, text string) {
	line := step + ": " + OneLine(text)
	b.mu.Lock()
	b.warnings = append(b.warnings, line)
	b.mu.Unlock()
	b.log.WithFields(logrus.Fields{"step": step, "warning": OneLine(text)}).Warn("boot step warns")
	if err := b.rec.Update(func(d *status.Document) {
		d.Warnings = append(d.Warnings, line)
		if d.State == status.Ready { // a background step that ended after the verdict
			d.State = status.Degraded
		}
	}); err != nil {
		b.log.WithError(err).Warn("status not written")
	}
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

// Run runs the table and returns the verdict when every step that ready waits for has ended.
// Background steps go on under ctx; the returned function, which is to be called when the verdict has
// been told, begins those that have let others go first, and waits for all. The first failure of a
// step that is not optional cancels the others; each gets to end by itself.
func (e Engine) Run(ctx context.Context, steps []Step) (Verdict, func(), error) {
	if err := check(steps); err != nil {
		return Verdict{}, func() {}, err
	}
	b := &boot{Engine: e, rec: e.Status, log: e.Log}
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
	results := make(chan ended)
	var background sync.WaitGroup
	finished := map[string]bool{}
	over := map[string]bool{} // finished or failed
	started := make([]bool, len(steps))
	running, failure := 0, Verdict{}
	held, tired := make([]bool, len(steps)), make([]bool, len(steps)) // of yielding
	enough := make(chan int, len(steps))

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
				background.Go(func() { _ = b.runStep(ctx, s) })
				finished[s.Name], over[s.Name] = true, true
				continue
			}
			running++
			within := stepCtx
			if s.Always {
				within = ctx
			}
			go func() { results <- ended{i, b.runStep(within, s)} }()
		}
	}
	for launch(); running > 0; launch() {
		var r ended
		select {
		case i := <-enough:
			tired[i] = true
			continue
		case r = <-results:
		}
		running--
		s := steps[r.index]
		over[s.Name] = true
		switch {
		case r.err == nil:
			finished[s.Name] = true
		case s.Optional && ctx.Err() == nil:
			finished[s.Name] = true
		case failure.Cause == nil:
			failure = Verdict{State: status.Failed, Step: s.Name, Cause: r.err, Advice: adviceFor(r.err, s.Advice)}
			cancel(errCancelled)
		}
	}
	cancel(nil)
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
		for _, s := range rest {
			background.Go(func() { _ = b.runStep(ctx, s) })
		}
		background.Wait()
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

func (b *boot) runStep(ctx context.Context, s Step) error {
	if err := ctx.Err(); err != nil {
		b.change(s.Name, func(row *status.Step) { row.Outcome = status.Cancelled })
		return context.Cause(ctx)
	}
	if s.If != nil && !s.If() {
		b.change(s.Name, func(row *status.Step) { row.Outcome = status.Skipped })
		return nil
	}
	if b.Boundary != nil {
		b.Boundary(s.Name, false)
	}
	start := b.rec.Now()
	b.change(s.Name, func(row *status.Step) { row.Outcome, row.Start = status.Running, start })
	if !s.Background {
		b.current(func() { b.running = append(b.running, task{name: s.Name}) })
		defer b.current(func() { b.running = slices.DeleteFunc(b.running, func(t task) bool { return t.name == s.Name }) })
	}
	process := ctx
	if s.Deadline > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, s.Deadline, fmt.Errorf("not done within %s", s.Deadline))
		defer cancel()
	}
	span := &Span{name: s.Name, boot: b}
	ended := b.impatient(s)
	err := run(ctx, s, span)
	ended(err == nil)
	end := b.rec.Now()
	optional := s.Optional || s.Background
	outcome := status.Done
	switch {
	case err == nil:
	case process.Err() != nil:
		// Another step failed, or the agent is stopping: nothing is wrong with this one.
		outcome = status.Cancelled
	case optional:
		outcome = status.Warned
	default:
		outcome = status.Broken
	}
	b.change(s.Name, func(row *status.Step) {
		row.Outcome, row.End, row.Waiting = outcome, end, ""
		if n := len(row.Waits); n > 0 && row.Waits[n-1].End == 0 {
			row.Waits[n-1].End = end
		}
		if err != nil {
			row.Error = OneLine(err.Error())
		}
	})
	fields := logrus.Fields{"step": s.Name, "took": time.Duration(end - start).Round(10 * time.Microsecond).String(), "outcome": string(outcome)}
	switch outcome {
	case status.Warned:
		b.warn(s.Name, err.Error())
	case status.Broken:
		b.log.WithFields(fields).WithError(err).Error("boot step failed")
	default:
		b.log.WithFields(fields).Info("boot step ended")
	}
	if b.Boundary != nil {
		b.Boundary(s.Name, true)
	}
	return err
}

// impatient announces a verdict when the step's patience is over. The function it returns is to be
// called when the step has ended, and takes the verdict back if it ended well.
func (b *boot) impatient(s Step) (ended func(well bool)) {
	if s.Patience == 0 || b.Failing == nil {
		return func(bool) {}
	}
	var mu sync.Mutex // so that nothing is announced of a step that has ended
	over, announced := false, false
	timer := time.AfterFunc(s.Patience, func() {
		mu.Lock()
		defer mu.Unlock()
		if over {
			return
		}
		announced = true
		b.setJudged(true)
		v := Verdict{State: status.Failed, Step: s.Name, Cause: fmt.Errorf("not done after %s, and still tried", s.Patience), Advice: s.Advice}
		for _, row := range b.rec.Snapshot().Steps {
			if row.Name == s.Name && row.Waiting != "" {
				v.Cause = fmt.Errorf("nothing within %s, and still waiting for %s", s.Patience, row.Waiting)
			}
		}
		b.Failing(v)
	})
	return func(well bool) {
		timer.Stop()
		mu.Lock()
		defer mu.Unlock()
		over = true
		if !announced || !well {
			return
		}
		if err := b.rec.Update(func(d *status.Document) { d.State, d.Verdict = status.Starting, "" }); err != nil {
			b.log.WithError(err).Warn("status not written")
		}
		b.setJudged(false)
		b.Failing(Verdict{})
	}
}

func (b *boot) setJudged(is bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.judged = is
}

// run turns a panic of a step into its failure: a defect in one step must reach the operator as
// a verdict, not as a restart loop.
func run(ctx context.Context, s Step, span *Span) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("defect in the agent: %v", p)
		}
	}()
	return s.Run(ctx, span)
}

// close marks what never ran and writes the verdict.
func (b *boot) close(v Verdict, rest []Step) {
	now := b.rec.Now()
	err := b.rec.Update(func(d *status.Document) {
		for i := range d.Steps {
			later := slices.ContainsFunc(rest, func(s Step) bool { return s.Name == d.Steps[i].Name })
			if d.Steps[i].Outcome == status.Pending && !later {
				d.Steps[i].Outcome = status.Cancelled
			}
		}
		d.State = v.State
		if v.Cause != nil {
			d.Verdict = v.Line()
		} else {
			d.ReadyNS = now
		}
	})
	if err != nil {
		b.log.WithError(err).Warn("status not written")
	}
}
