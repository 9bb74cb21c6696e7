package engine

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/internal/status"
)

// Span takes the reports of a running step and shows them in status, journal and verdict.
type Span struct {
	name    string
	attempt *attempt
}

type spanKey struct{}

// WithSpan lets what a step calls report to its span, through packages that do not know of steps.
func WithSpan(ctx context.Context, s *Span) context.Context {
	return context.WithValue(ctx, spanKey{}, s)
}

// SpanOf is the span that WithSpan gave ctx; nil outside of such a step.
func SpanOf(ctx context.Context) *Span {
	s, _ := ctx.Value(spanKey{}).(*Span)
	return s
}

// Waiting says what the step waits for at this moment; an empty text ends the wait. It reports whether that is
// news: a step that waits for hours may alternate between the same reasons all the time.
func (s *Span) Waiting(reason string) (news bool) {
	now := s.attempt.rec.Now()
	s.attempt.change(s.name, func(row *status.Step) {
		if row.Outcome != status.Running {
			return // a timer was late
		}
		if n := len(row.Waits); row.Waiting != "" && n > 0 {
			row.Waits[n-1].End = now
		}
		row.Waiting = reason
		switch n := len(row.Waits); {
		case reason == "":
		case n < maxWaits:
			row.Waits = append(row.Waits, status.Wait{For: reason, Start: now})
		default: // further waits are merged into the last one
			row.Waits[n-1] = status.Wait{For: reason, Start: row.Waits[n-1].Start}
		}
	})
	if news = reason != "" && s.attempt.isNews(s.name, reason); news {
		s.attempt.log.WithFields(logrus.Fields{"step": s.name, "reason": reason}).Info("waiting")
	}
	s.attempt.waits(s.name, reason)
	return news
}

// maxWaits bounds the waits of a step in the status.
const maxWaits = 50

// WaitingSoon reports a wait as Waiting does, but only after waitAnnounceDelay: it is meant for work that
// rarely waits. The function it returns ends the wait.
func (s *Span) WaitingSoon(reason string) (done func()) {
	timer := time.AfterFunc(waitAnnounceDelay, func() { s.Waiting(reason) })
	return func() {
		if !timer.Stop() {
			s.Waiting("")
		}
	}
}

// waitAnnounceDelay gives a device that is present time to be found before its wait is reported.
const waitAnnounceDelay = 500 * time.Millisecond

// Evidence records a fact that helps to understand the step's outcome.
func (s *Span) Evidence(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	s.attempt.change(s.name, func(row *status.Step) { row.Evidence = append(row.Evidence, text) })
}

// Parts records stretches of the step that began together and run side by side, in place of earlier ones that began
// then. Their ends are relative to that; one without an end still runs.
func (s *Span) Parts(began time.Time, parts []status.Part) {
	start := s.attempt.rec.At(began)
	for i := range parts {
		parts[i].Start = start
		if parts[i].End > 0 {
			parts[i].End += start
		}
	}
	s.attempt.change(s.name, func(row *status.Step) {
		row.Parts = append(slices.DeleteFunc(slices.Clone(row.Parts), func(p status.Part) bool { return p.Start == start }), parts...)
	})
}

// Part records a stretch of work from now until end is called.
func (s *Span) Part(name string) (end func()) {
	began := time.Now()
	return func() {
		s.Parts(began, []status.Part{{Name: name, Outcome: string(status.Done), End: int64(time.Since(began))}})
	}
}

// Changed records what the step has changed on the machine. A boot whose steps record none found
// everything as it should be.
func (s *Span) Changed(changes ...Change) {
	if len(changes) == 0 || s.attempt.superseded() {
		return
	}
	err := s.attempt.rec.Update(func(d *status.Document) {
		for i := range d.Steps {
			if d.Steps[i].Name != s.name {
				continue
			}
			for _, c := range changes {
				d.Steps[i].Changes = append(d.Steps[i].Changes, c.Text)
			}
		}
		d.Unchanged = false // background steps end after the verdict
	})
	if err != nil {
		s.attempt.log.WithError(err).Warn("cannot write the status")
	}
}

// Warn records something that is wrong but does not keep the machine from being ready.
func (s *Span) Warn(format string, args ...any) {
	s.attempt.warn(s.name, fmt.Sprintf(format, args...))
}
