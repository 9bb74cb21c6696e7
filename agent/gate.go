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
	// maxHeld bounds the requests that wait for the agent to become ready.
	maxHeld = 1000
	// notReady begins the exception that makes a Director ask again.
	notReady = "restarting agent: "
)

// phase decides how requests are answered before the agent is ready.
type phase int

const (
	starting phase = iota
	ready
	failedFirstBoot // the first bootstrap failed for good; pings are answered with the verdict
	silent          // a later bootstrap failed; the resurrector reacts only to silence
)

type held struct {
	ctx     context.Context
	request mbus.Request
	reply   func(mbus.Reply)
	timer   *time.Timer
}

// Waiting sets what the boot is doing, with which pings are answered meanwhile.
func (d *Dispatcher) Waiting(step string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	// create-env stops retrying at any text that contains this.
	d.step = strings.ReplaceAll(step, "x509: ", "x509 ")
}

// Ready opens the gate: requests are served from the table from now on, first those that wait.
// Tasks that a restart interrupted are resumed or ended.
func (d *Dispatcher) Ready(table action.Table, tasks *task.Tasks) {
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

// Failed closes the gate with a verdict. On the first bootstrap of a machine pings are answered
// with it, so that the deployment fails within seconds and with the cause; later the agent only
// falls silent. Ready may still follow if a retry succeeds.
func (d *Dispatcher) Failed(verdict string, firstBoot bool) {
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

// Retrying takes a verdict back while what failed is retried. An agent that has fallen silent
// stays so until it is ready: one exception ends a cloud check, and the resurrector only reacts to silence.
func (d *Dispatcher) Retrying() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.phase == failedFirstBoot {
		d.phase = starting
	}
}

// isReady reports whether the gate is open; heartbeats are sent only then.
func (d *Dispatcher) isReady() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.phase == ready
}

// Opened is closed when the agent has become ready.
func (d *Dispatcher) Opened() <-chan struct{} { return d.opened }

// hold takes a request that came before the agent is ready, and reports whether it did.
func (d *Dispatcher) hold(ctx context.Context, r mbus.Request, reply func(mbus.Reply)) bool {
	if r.Method == "ping" {
		return d.holdPing(ctx, reply)
	}
	d.mu.Lock()
	current, room := d.phase, len(d.held) < maxHeld
	if current == starting && room {
		h := &held{ctx: ctx, request: r, reply: reply}
		h.timer = time.AfterFunc(d.methods[r.Method].Wait(), func() { d.drop(h) })
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

// holdPing answers a ping when the agent becomes ready or judged, or after pingHold. It reports false if the agent is
// ready.
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
