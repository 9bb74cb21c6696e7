package engine

import (
	"context"
	"fmt"
	"sync"
	"time"

	"cambium/internal/status"
)

// overdue announces a verdict when a step has run for its AnnounceAfter, and another one whenever the reason for which
// it waits has changed since.
type overdue struct {
	ctx     context.Context // context of the step
	attempt *attempt
	step    Step
	begin   time.Time

	mu        sync.Mutex // guards the fields below, so that no verdict is announced for a step that has ended
	timer     *time.Timer
	ended     bool
	announced bool
	reason    string // the announced one
}

// watchOverdue starts to watch a step. It returns nil if the step has no AnnounceAfter.
func (a *attempt) watchOverdue(ctx context.Context, s Step) *overdue {
	if s.AnnounceAfter == 0 || a.Failing == nil {
		return nil
	}
	p := &overdue{ctx: ctx, attempt: a, step: s, begin: time.Now()}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer = time.AfterFunc(s.AnnounceAfter, p.announce)
	return p
}

func (p *overdue) announce() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended || p.ctx.Err() != nil {
		return
	}
	p.timer.Reset(p.step.AnnounceAfter)
	reason := ""
	for _, row := range p.attempt.Status.Snapshot().Steps {
		if row.Name == p.step.Name {
			reason = row.Waiting
		}
	}
	if p.announced && (reason == "" || reason == p.reason) {
		// The verdict is the same, but of now.
		p.attempt.record(func(d *status.Document) { d.VerdictNS = p.attempt.Status.Now() })
		return
	}
	p.announced, p.reason = true, reason
	p.attempt.setJudged(true)
	lasts := time.Since(p.begin).Round(time.Second)
	v := Verdict{
		State:  status.Failed,
		Step:   p.step.Name,
		Cause:  fmt.Errorf("still running after %s", lasts),
		Advice: p.step.Advice,
	}
	if reason != "" {
		v.Cause = fmt.Errorf("still waiting after %s for %s", lasts, reason)
	}
	p.attempt.Failing(v)
}

// end is called when the step has ended. If it has succeeded, end withdraws the verdict.
func (p *overdue) end(well bool) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer.Stop()
	p.ended = true
	if !p.announced || !well {
		return
	}
	p.attempt.record(func(d *status.Document) { d.State, d.Verdict = status.Starting, "" })
	p.attempt.setJudged(false)
	p.attempt.Failing(Verdict{})
}
