package agent

import (
	"context"

	"cambium/agent/action"
	"cambium/jobs"
)

// submit gives a request to a lane. What Alone runs in the instance lane makes way for it.
func (d *Dispatcher) submit(l action.Lane, w *work) {
	d.lanes[l].submit(w)
	if l != action.Instance {
		return
	}
	d.mu.Lock()
	interrupt := d.interrupt
	d.mu.Unlock()
	if interrupt != nil {
		interrupt(jobs.ErrRequest)
	}
}

// Alone runs f in the instance lane and returns when f has ended. The context of f ends when a request comes for that
// lane, which then waits for the end of f. It may not come to run f at all. Only one call at a time is allowed.
func (d *Dispatcher) Alone(ctx context.Context, f func(context.Context)) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	d.setInterrupt(cancel)
	defer d.setInterrupt(nil)
	ended := make(chan struct{})
	d.lanes[action.Instance].submit(&work{admitted: func() {}, refused: func() { close(ended) },
		run: func() {
			defer close(ended)
			if ctx.Err() == nil {
				f(ctx)
			}
		}})
	<-ended
}

func (d *Dispatcher) setInterrupt(f context.CancelCauseFunc) {
	d.mu.Lock()
	d.interrupt = f
	d.mu.Unlock()
}
