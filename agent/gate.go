package agent

import (
	"context"
	"strings"
	"time"

	"cambium/agent/action"
	"cambium/agent/task"
	"cambium/mbus"
)

const (
	// pingHold bounds how long a ping waits for the agent to become ready. The Director waits one second for each ping
	// and asks again at once after an answer: without the hold, one new VM would draw thousands of pings.
	pingHold = 900 * time.Millisecond
	// maxHeld bounds the pings, and the other requests, that wait for the agent to become ready.
	maxHeld = 1000
	// notReady is the start of the exception after which a Director asks again.
	notReady = "restarting agent: "
)

// phase decides how requests are answered before the agent is ready.
type phase int

const (
	starting phase = iota
	ready
	failedFirstBoot // the first boot failed; pings are answered with the verdict
	silent          // a later boot failed; nothing is answered, because the resurrector reacts only to silence
)

type held struct {
	ctx     context.Context
	request mbus.Request
	reply   func(mbus.Reply)
	timer   *time.Timer
}

// SetStep sets the boot's current step. Pings that arrive before the agent is ready are answered with it.
func (d *Dispatcher) SetStep(step string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	// create-env stops retrying at any text that contains this.
	d.step = strings.ReplaceAll(step, "x509: ", "x509 ")
}

// OpenGate serves requests from the table from now on, beginning with those that were held. It resumes or fails the
// tasks that a restart interrupted.
func (d *Dispatcher) OpenGate(table action.Table, tasks *task.Tasks) {
	d.mu.Lock()
	if d.phase == ready {
		d.mu.Unlock()
		return
	}
	d.table, d.tasks = table, tasks
	d.mu.Unlock()
	for _, t := range tasks.Interrupted() {
		d.resume(t, table[t.Method])
	}
	// Arrival order: the gate opens for new requests only when none waits any more.
	for {
		d.mu.Lock()
		waiting := d.held
		d.held = nil
		if len(waiting) == 0 {
			d.phase = ready
			close(d.opened)
			d.mu.Unlock()
			return
		}
		d.mu.Unlock()
		for _, h := range waiting {
			switch {
			case !h.timer.Stop(): // dropped already, with an exception
			case h.ctx.Err() != nil:
				h.reply(mbus.Silence())
			default:
				d.serve(h.ctx, h.request, h.reply)
			}
		}
	}
}

// FailBoot drops the held requests because the boot has failed. On the first boot of a machine, pings are then answered
// with the verdict, so that a deployment fails within seconds and shows the cause. On a later boot, the agent only
// falls silent. OpenGate may still follow if a retry succeeds.
func (d *Dispatcher) FailBoot(verdict string, firstBoot bool) {
	d.mu.Lock()
	if d.phase == ready {
		d.mu.Unlock()
		return
	}
	d.phase, d.verdict = silent, verdict
	if firstBoot {
		d.phase = failedFirstBoot
	}
	close(d.judged)
	d.judged = make(chan struct{})
	dropped := d.held
	d.held = nil
	d.mu.Unlock()
	for _, h := range dropped {
		if h.timer.Stop() {
			h.reply(mbus.Silence())
		}
	}
}

// WithdrawVerdict withdraws the verdict of a first boot while it is retried. After a later boot has failed, the agent
// stays silent until it is ready: one exception ends a cloud check, and the resurrector only reacts to silence.
func (d *Dispatcher) WithdrawVerdict() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.phase == failedFirstBoot {
		d.phase = starting
	}
}

// isReady reports whether the agent is ready.
func (d *Dispatcher) isReady() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.phase == ready
}

// GateOpened returns a channel that is closed when the agent is ready.
func (d *Dispatcher) GateOpened() <-chan struct{} { return d.opened }

// hold keeps or rejects a request that arrives before the agent is ready. It returns false if the agent is ready.
func (d *Dispatcher) hold(ctx context.Context, r mbus.Request, reply func(mbus.Reply)) bool {
	if r.Method == "ping" {
		return d.holdPing(ctx, reply)
	}
	d.mu.Lock()
	current, room := d.phase, len(d.held) < maxHeld
	if current == starting && room {
		h := &held{ctx: ctx, request: r, reply: reply}
		h.timer = time.AfterFunc(d.methods[r.Method].EffectiveReplyTimeout(), func() { d.drop(h) })
		d.held = append(d.held, h)
	}
	d.mu.Unlock()
	if current != ready && (current != starting || !room) {
		reply(mbus.Silence())
	}
	return current != ready
}

func (d *Dispatcher) drop(h *held) {
	d.mu.Lock()
	for i, other := range d.held {
		if other == h {
			d.held = append(d.held[:i], d.held[i+1:]...)
			break
		}
	}
	d.mu.Unlock()
	h.reply(mbus.Silence())
}

// holdPing answers a ping when the agent is ready, when the boot fails, or after pingHold. It returns false if the
// agent is ready.
func (d *Dispatcher) holdPing(ctx context.Context, reply func(mbus.Reply)) bool {
	early := d.EarlyPings == nil || d.EarlyPings()
	d.mu.Lock()
	current, verdict, judged := d.phase, d.verdict, d.judged
	held := early && current == starting && d.pings < maxHeld
	if held {
		d.pings++
	}
	d.mu.Unlock()
	switch {
	case current == ready:
		return false
	case early && current == failedFirstBoot:
		reply(mbus.Exception(verdict))
		return true
	case !held:
		reply(mbus.Silence())
		return true
	}
	d.group.Go(func() {
		timer := time.NewTimer(pingHold)
		defer timer.Stop()
		var answer mbus.Reply
		select {
		case <-d.opened:
			answer = mbus.Value("pong")
		case <-judged:
			d.mu.Lock()
			answer = mbus.Silence()
			if d.phase == failedFirstBoot {
				answer = mbus.Exception(d.verdict)
			}
			d.mu.Unlock()
		case <-timer.C:
			d.mu.Lock()
			answer = mbus.Exception(notReady + d.step)
			d.mu.Unlock()
		case <-ctx.Done():
			answer = mbus.Silence()
		}
		d.mu.Lock()
		d.pings--
		d.mu.Unlock()
		reply(answer)
	})
	return true
}
