package engine

import (
	"fmt"
	"sync"
	"time"

	"cambium/internal/status"
)

// patience announces a verdict when a step has waited too long, and another one each time the step
// has come to wait for something else since.
type patience struct {
	attempt *attempt
	step    Step
	begin   time.Time

	mu        sync.Mutex // guards what follows, so that no verdict is announced of a step that has ended
	timer     *time.Timer
	ended     bool
	announced bool
	reason    string // that was announced
}

// watchPatience returns nil for a step without a limit to its patience.
func (a *attempt) watchPatience(s Step) *patience {
	if s.Patience == 0 || a.Failing == nil {
		return nil
	}
	p := &patience{attempt: a, step: s, begin: time.Now()}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer = time.AfterFunc(s.Patience, p.announce)
	return p
}

func (p *patience) announce() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return
	}
	p.timer.Reset(p.step.Patience)
	reason := ""
	for _, row := range p.attempt.rec.Snapshot().Steps {
		if row.Name == p.step.Name {
			reason = row.Waiting
		}
	}
	if p.announced && (reason == "" || reason == p.reason) {
		return
	}
	p.announced, p.reason = true, reason
	p.attempt.setJudged(true)
	lasts := time.Since(p.begin).Round(time.Second)
	v := Verdict{State: status.Failed, Step: p.step.Name, Cause: fmt.Errorf("still running after %s", lasts), Advice: p.step.Advice}
	if reason != "" {
		v.Cause = fmt.Errorf("still waiting after %s for %s", lasts, reason)
	}
	p.attempt.Failing(v)
}

// end is called when the step has ended, and takes the verdict back if it ended well.
func (p *patience) end(well bool) {
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
	if err := p.attempt.rec.Update(func(d *status.Document) { d.State, d.Verdict = status.Starting, "" }); err != nil {
		p.attempt.log.WithError(err).Warn("status not written")
	}
	p.attempt.setJudged(false)
	p.attempt.Failing(Verdict{})
}
