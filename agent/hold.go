package agent

import (
	"context"
	"time"

	"cambium/agent/action"
	"cambium/mbus"
)

const (
	// maxAnswerHold bounds the delay of an answer about a running task. The shortest reply timeout of any caller is 10
	// seconds, and a Director notices that its own task was canceled only between two polls.
	maxAnswerHold = 2 * time.Second
	// maxHeldAnswers bounds the goroutines that delay an answer. Above it, requests are answered at once.
	maxHeldAnswers = 1000
)

// holdAnswer delays the answer while the task runs. It returns false if the request must be answered at once. It uses
// no lane, so other requests are served meanwhile.
func (d *Dispatcher) holdAnswer(ctx context.Context, r mbus.Request, row action.Row, reply func(mbus.Reply)) bool {
	var limit time.Duration
	if d.AnswerHold != nil {
		limit = min(d.AnswerHold(), maxAnswerHold)
	}
	if limit <= 0 || r.BadArguments {
		return false
	}
	done, wait := row.Await(r.Arguments)
	if done() {
		return false
	}
	if d.heldAnswers.Add(1) > maxHeldAnswers {
		d.heldAnswers.Add(-1)
		return false
	}
	q := request{Request: r, row: row, begun: time.Now(), reply: reply}
	d.group.Go(func() {
		defer d.heldAnswers.Add(-1)
		// On NATS the reply goes out over the connection that is current then, so the end of the one that
		// delivered the request does not matter. On HTTPS the caller waits on its own connection.
		parent := d.ctx
		if r.KeepsWaiting {
			parent = ctx
		}
		within, cancel := context.WithTimeout(parent, limit)
		defer cancel()
		wait(within)
		if r.KeepsWaiting && ctx.Err() != nil {
			d.answer(&q, mbus.Silence())
			return
		}
		d.serveNow(q)
	})
	return true
}
