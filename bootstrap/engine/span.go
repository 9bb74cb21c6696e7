package engine

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/internal/status"
)

// Span receives the reports of a running step, and shows them in status, journal and verdict.
type Span struct {
	name    string
	attempt *attempt
}

type spanKey struct{}

// WithSpan returns a context through which functions can report to the span, even through packages that do not know
// steps.
func WithSpan(ctx context.Context, s *Span) context.Context {
	return context.WithValue(ctx, spanKey{}, s)
}

// SpanOf returns the span in ctx, or nil outside a step.
func SpanOf(ctx context.Context) *Span {
	s, _ := ctx.Value(spanKey{}).(*Span)
	return s
}

// Waiting sets what the step is waiting for; "" means nothing. It reports whether the reason is new, because a step
// that waits for hours may alternate between the same reasons.
func (s *Span) Waiting(reason string) (news bool) {
	now := s.attempt.Status.Now()
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
		s.attempt.Log.WithFields(logrus.Fields{"step": s.name, "reason": reason}).Info("waiting")
	}
	s.attempt.waits(s.name, reason)
	return news
}

// maxWaits bounds the recorded waits of a step.
const maxWaits = 50

// WaitingSoon calls Waiting after waitAnnounceDelay, for work that rarely waits. Call done to end the wait.
func (s *Span) WaitingSoon(reason string) (done func()) {
	timer := time.AfterFunc(waitAnnounceDelay, func() { s.Waiting(reason) })
	return func() {
		if !timer.Stop() {
			s.Waiting("")
		}
	}
}

// waitAnnounceDelay is long enough to find a device that is present, before a wait is reported.
const waitAnnounceDelay = 500 * time.Millisecond

// Evidence records a fact that helps to understand the result of the step.
func (s *Span) Evidence(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	s.attempt.change(s.name, func(row *status.Step) { row.Evidence = append(row.Evidence, text) })
}

// Parts records parts of the step that began together and run in parallel. It replaces earlier ones with the same
// begin. Ends are relative to began; 0 means that the part is still running.
func (s *Span) Parts(began time.Time, parts []status.Part) {
	start := s.attempt.Status.At(began)
	for i := range parts {
		parts[i].Start = start
		if parts[i].End > 0 {
			parts[i].End += start
		}
	}
	s.attempt.change(s.name, func(row *status.Step) {
		row.Parts = append(
			slices.DeleteFunc(slices.Clone(row.Parts), func(p status.Part) bool { return p.Start == start }),
			parts...)
	})
}

// Part records a part of the step, from now until end is called.
func (s *Span) Part(name string) (end func()) {
	began := time.Now()
	return func() {
		s.Parts(began, []status.Part{{Name: name, Outcome: string(status.Done), End: int64(time.Since(began))}})
	}
}

// Changed records changes that the step has made to the machine. If no step has any, the machine was already in the
// desired state.
func (s *Span) Changed(changes ...Change) {
	if len(changes) == 0 || s.attempt.superseded() {
		return
	}
	s.attempt.record(func(d *status.Document) {
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
}

// Warn records a problem that does not keep the machine from being ready.
func (s *Span) Warn(format string, args ...any) {
	s.attempt.warn(s.name, fmt.Sprintf(format, args...))
}
