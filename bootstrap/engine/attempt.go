package engine

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
	"cambium/internal/oneline"
	"cambium/internal/status"
)

// attempt is one run of the table. It runs steps and records their progress in status and log.
type attempt struct {
	*Engine
	mu       sync.Mutex // guards the fields below
	warnings []string
	awaited  []awaitedStep // the running steps for which ready waits, in the order of their start
	notified string        // the text that the service manager shows
	judged   bool          // a verdict was announced, and the service manager shows it
	short    []string      // the results of short steps
	// announced has the reasons to wait that were logged.
	announced map[awaitedStep]bool
	lastWait  time.Time // when a reason was last logged
}

// awaitedStep is a running step, and what it is waiting for.
type awaitedStep struct{ name, waiting string }

// begin starts an attempt. Reports of earlier attempts are ignored from now on.
func (e *Engine) begin(steps []Step) *attempt {
	a := &attempt{Engine: e}
	e.mu.Lock()
	e.latest = a
	e.mu.Unlock()
	rows := make([]status.Step, len(steps))
	for i, s := range steps {
		rows[i] = status.Step{Name: s.Name, Outcome: status.Pending, Background: s.Background, Advice: s.Advice}
	}
	e.record(func(d *status.Document) {
		d.KeepTry()
		// The verdict of the last attempt stays in the status until this one has ended.
		d.Steps, d.State, d.Warnings, d.ReadyNS = rows, status.Starting, nil, 0
		d.Try, d.NextTry = d.Try+1, nil
	})
	return a
}

// superseded reports whether another attempt has begun.
func (a *attempt) superseded() bool {
	a.Engine.mu.Lock()
	defer a.Engine.mu.Unlock()
	return a.latest != a
}

// updateAwaited tells the service manager which step is awaited: the first one that waits for something, or the one
// that began first.
func (a *attempt) updateAwaited(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
	if len(a.awaited) == 0 {
		return
	}
	text := a.awaited[0].name
	for _, t := range a.awaited {
		if t.waiting != "" {
			text = t.name + ": waiting for " + t.waiting
			break
		}
	}
	if text != a.notified && !a.judged {
		a.notified = text
		if a.Notify != nil {
			a.Notify("STATUS=" + text)
		}
	}
}

const (
	// freeWaits is the number of different reasons to wait that are logged at once, each one time. After that, reasons
	// probably differ only in details, and at most one per waitPause is logged.
	freeWaits = 20
	waitPause = time.Minute
)

// isNews reports whether a reason to wait must be logged, and records that.
func (a *attempt) isNews(step, reason string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	wait := awaitedStep{step, reason}
	if a.announced[wait] || len(a.announced) >= freeWaits && time.Since(a.lastWait) < waitPause {
		return false
	}
	if a.announced == nil {
		a.announced = map[awaitedStep]bool{}
	}
	if len(a.announced) < freeWaits {
		a.announced[wait] = true
	}
	a.lastWait = time.Now()
	return true
}

func (a *attempt) waits(name, reason string) {
	a.updateAwaited(func() {
		for i := range a.awaited {
			if a.awaited[i].name == name {
				a.awaited[i].waiting = reason
			}
		}
	})
}

func (a *attempt) setJudged(is bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.judged = is
}

func (a *attempt) change(name string, change func(*status.Step)) {
	if a.superseded() {
		return
	}
	a.record(func(d *status.Document) {
		for i := range d.Steps {
			if d.Steps[i].Name == name {
				change(&d.Steps[i])
			}
		}
	})
}

func (a *attempt) warn(step, text string) {
	line := step + ": " + oneline.Of(text)
	a.mu.Lock()
	a.warnings = append(a.warnings, line)
	a.mu.Unlock()
	a.Log.WithFields(logrus.Fields{"step": step, "warning": oneline.Of(text)}).Warn("boot step warning")
	if a.superseded() {
		return
	}
	a.record(func(d *status.Document) { d.Warnings = append(d.Warnings, line) })
}

func (a *attempt) allWarnings() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.warnings)
}

// errStillRunning means that a run of the step in an earlier attempt has not ended.
var errStillRunning = errors.New("still running since an earlier attempt")

// runStep runs a step until it ends. It calls hangs if the step ignores its deadline.
func (a *attempt) runStep(ctx context.Context, s Step, hangs func()) error {
	if err := ctx.Err(); err != nil {
		a.change(s.Name, func(row *status.Step) { row.Outcome = status.Canceled })
		return context.Cause(ctx)
	}
	if s.If != nil && !s.If() {
		a.change(s.Name, func(row *status.Step) { row.Outcome = status.Skipped })
		return nil
	}
	if a.Boundary != nil {
		a.Boundary(s.Name, false)
	}
	start := a.Status.Now()
	a.change(s.Name, func(row *status.Step) { row.Outcome, row.Start = status.Running, start })
	if !s.Background {
		a.updateAwaited(func() { a.awaited = append(a.awaited, awaitedStep{name: s.Name}) })
		defer a.updateAwaited(func() {
			a.awaited = slices.DeleteFunc(a.awaited, func(t awaitedStep) bool { return t.name == s.Name })
		})
	}
	err := a.runWithin(ctx, s, hangs)
	outcome := status.Done
	switch {
	case err == nil:
	case ctx.Err() != nil:
		// Another step failed, or the agent is stopping: this step did not fail by itself.
		outcome = status.Canceled
	case s.optional():
		outcome = status.Warned
	default:
		outcome = status.Broken
	}
	a.recordEnd(s, start, outcome, err)
	if a.Boundary != nil {
		a.Boundary(s.Name, true)
	}
	return err
}

// runWithin runs a step with its deadline, and announces a verdict if the step is overdue.
func (a *attempt) runWithin(ctx context.Context, s Step, hangs func()) error {
	if s.Deadline > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, s.Deadline, fmt.Errorf("did not finish within %s", s.Deadline))
		defer cancel()
		if hangs != nil {
			defer time.AfterFunc(s.Deadline+hangGrace, hangs).Stop()
		}
	}
	if !a.claim(s.Name) {
		return errStillRunning
	}
	defer a.release(s.Name)
	overdue := a.watchOverdue(ctx, s)
	err := a.runRecovered(ctx, s)
	overdue.end(err == nil)
	return err
}

// runRecovered runs a step and returns a panic as an error, so that operators see a verdict and not a restart loop.
func (a *attempt) runRecovered(ctx context.Context, s Step) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("defect in the agent: internal error %s, see its log",
				defect.Report(a.Log.WithField("step", s.Name), p))
		}
	}()
	return s.run(ctx, &Span{name: s.Name, attempt: a})
}

// longStep is the duration from which the end of a step is logged separately. Shorter steps share a log entry, because
// journald is busy while a machine boots.
const longStep = time.Second

// recordEnd records the end of a step in status and log.
func (a *attempt) recordEnd(s Step, start int64, outcome status.Outcome, err error) {
	end := a.Status.Now()
	var facts []string
	a.change(s.Name, func(row *status.Step) {
		facts = slices.Concat(row.Evidence, row.Changes)
		row.Outcome, row.End, row.Waiting, row.Advice = outcome, end, "", ""
		if outcome == status.Broken {
			row.Advice = adviceFor(err, s.Advice)
		}
		if n := len(row.Waits); n > 0 && row.Waits[n-1].End == 0 {
			row.Waits[n-1].End = end
		}
		if err != nil {
			row.Error = oneline.Of(err.Error())
		}
	})
	rounded := func(ns int64) string { return time.Duration(ns).Round(10 * time.Microsecond).String() }
	fields := logrus.Fields{
		"step":    s.Name,
		"began":   rounded(start),
		"took":    rounded(end - start),
		"outcome": string(outcome),
	}
	if len(facts) > 0 {
		fields["evidence"] = strings.Join(facts, "; ")
	}
	switch {
	case outcome == status.Warned:
		a.warn(s.Name, err.Error())
	case outcome == status.Broken:
		a.Log.WithFields(fields).WithError(err).Error("boot step failed")
	case s.Background || end-start >= int64(longStep):
		a.Log.WithFields(fields).Info("boot step ended")
	default:
		line := fmt.Sprintf("%s %s..%s %s", s.Name, rounded(start), rounded(end), outcome)
		if len(facts) > 0 {
			line += " (" + strings.Join(facts, "; ") + ")"
		}
		a.mu.Lock()
		a.short = append(a.short, line)
		a.mu.Unlock()
	}
}

func (a *attempt) logShortSteps() {
	a.mu.Lock()
	steps := strings.Join(a.short, ", ")
	a.mu.Unlock()
	a.Log.WithField("steps", steps).Info("boot steps ended")
}

// close marks the steps that were not run, and records the verdict, if there is one.
func (a *attempt) close(v Verdict, deferred []Step) {
	now := a.Status.Now()
	a.record(func(d *status.Document) {
		for i := range d.Steps {
			isDeferred := slices.ContainsFunc(deferred, func(s Step) bool { return s.Name == d.Steps[i].Name })
			if d.Steps[i].Outcome == status.Pending && !isDeferred {
				d.Steps[i].Outcome = status.Canceled
			}
		}
		if v.State == status.Starting {
			return
		}
		d.State, d.Verdict = v.State, ""
		if v.Cause != nil {
			d.Verdict = v.Line()
		} else {
			d.ReadyNS = now
		}
	})
}
