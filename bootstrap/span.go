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

	"cambium/internal/defect"
	"cambium/internal/status"
)

// Span is a step's pen: what it writes here shows up in status, journal and verdict.
type Span struct {
	name string
	boot *boot
}

// Waiting says what the step can only wait for now; an empty text ends the wait.
func (s *Span) Waiting(reason string) {
	now := s.boot.rec.Now()
	s.boot.change(s.name, func(row *status.Step) {
		if row.Outcome != status.Running {
			return // a timer was late
		}
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

// boot is one run of the table.
type boot struct {
	*Engine
	rec *status.Recorder
	log *logrus.Entry

	mu       sync.Mutex // guards what follows
	warnings []string
	running  []task // what ready waits for, in the order of its beginning
	told     string
	judged   bool     // a verdict was announced and is what the service manager shows
	short    []string // how short steps ended
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

// superseded reports that another run of the table has begun, so that nothing this one says counts.
func (b *boot) superseded() bool {
	b.Engine.mu.Lock()
	defer b.Engine.mu.Unlock()
	return b.last != b
}

func (b *boot) change(name string, change func(*status.Step)) {
	if b.superseded() {
		return
	}
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
	if b.superseded() {
		return
	}
	if err := b.rec.Update(func(d *status.Document) {
		d.Warnings = append(d.Warnings, line)
		if d.State == status.Ready { // a background step that ended after the verdict
			d.State = status.Degraded
		}
	}); err != nil {
		b.log.WithError(err).Warn("status not written")
	}
}

// errBusy means that a run of the step before, of another try to boot, has not ended.
var errBusy = errors.New("still at it since the last try")

// runStep runs a step to its end. It calls hangs if the step does not end with its deadline.
func (b *boot) runStep(ctx context.Context, s Step, hangs func()) error {
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
		if hangs != nil {
			defer time.AfterFunc(s.Deadline+stubborn, hangs).Stop()
		}
	}
	span := &Span{name: s.Name, boot: b}
	ended := b.impatient(s)
	err := errBusy
	if b.enter(s.Name) {
		err = run(ctx, s, span)
		b.leave(s.Name)
	}
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
	var evidence []string
	b.change(s.Name, func(row *status.Step) {
		evidence = row.Evidence
		row.Outcome, row.End, row.Waiting = outcome, end, ""
		if n := len(row.Waits); n > 0 && row.Waits[n-1].End == 0 {
			row.Waits[n-1].End = end
		}
		if err != nil {
			row.Error = OneLine(err.Error())
		}
	})
	short := func(ns int64) string { return time.Duration(ns).Round(10 * time.Microsecond).String() }
	fields := logrus.Fields{"step": s.Name, "began": short(start), "took": short(end - start), "outcome": string(outcome)}
	if len(evidence) > 0 {
		fields["evidence"] = strings.Join(evidence, "; ")
	}
	switch outcome {
	case status.Warned:
		b.warn(s.Name, err.Error())
	case status.Broken:
		b.log.WithFields(fields).WithError(err).Error("boot step failed")
	default:
		if !s.Background && end-start < int64(longStep) {
			b.shortly(fmt.Sprintf("%s %s..%s %s", s.Name, short(start), short(end), outcome), evidence)
			break
		}
		b.log.WithFields(fields).Info("boot step ended")
	}
	if b.Boundary != nil {
		b.Boundary(s.Name, true)
	}
	return err
}

// longStep is from when on the end of a step has a line of its own. The others share one: the journal, too, has a lot to
// do when a machine starts.
const longStep = time.Second

func (b *boot) shortly(step string, evidence []string) {
	if len(evidence) > 0 {
		step += " (" + strings.Join(evidence, "; ") + ")"
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.short = append(b.short, step)
}

// account tells the journal of the short steps.
func (b *boot) account() {
	b.mu.Lock()
	steps := strings.Join(b.short, ", ")
	b.mu.Unlock()
	b.log.WithField("steps", steps).Info("boot steps ended")
}

// impatient announces a verdict when the step's patience is over, and another one if it has been waiting for
// something else since. The function it returns is to be called when the step has ended, and takes the verdict
// back if it ended well.
func (b *boot) impatient(s Step) (ended func(well bool)) {
	if s.Patience == 0 || b.Failing == nil {
		return func(bool) {}
	}
	var mu sync.Mutex // so that nothing is announced of a step that has ended
	var timer *time.Timer
	over, announced, said, begin := false, false, "", time.Now()
	tell := func() {
		mu.Lock()
		defer mu.Unlock()
		if over {
			return
		}
		timer.Reset(s.Patience)
		reason := ""
		for _, row := range b.rec.Snapshot().Steps {
			if row.Name == s.Name {
				reason = row.Waiting
			}
		}
		if announced && (reason == "" || reason == said) {
			return
		}
		announced, said = true, reason
		b.setJudged(true)
		lasts := time.Since(begin).Round(time.Second)
		v := Verdict{State: status.Failed, Step: s.Name, Cause: fmt.Errorf("not done after %s, and still tried", lasts), Advice: s.Advice}
		if reason != "" {
			v.Cause = fmt.Errorf("nothing within %s, and still waiting for %s", lasts, reason)
		}
		b.Failing(v)
	}
	mu.Lock()
	timer = time.AfterFunc(s.Patience, tell)
	mu.Unlock()
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
			err = fmt.Errorf("defect in the agent: internal error %s, see its log", defect.Report(span.boot.log.WithField("step", s.Name), p))
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
