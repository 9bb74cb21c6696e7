package agent

import (
	"context"

	"cambium/agent/action"
	"cambium/jobs"
)

// submit queues a request in a lane. A request for the instance lane interrupts the function that RunAlone runs there.
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

// RunAlone runs f in the instance lane and returns when f has ended. A request for that lane cancels the context of f,
// and waits until f returns. f is not called at all if a request comes before it begins, or if the lane is full. Only
// one call of RunAlone may run at a time.
func (d *Dispatcher) RunAlone(ctx context.Context, f func(context.Context)) {
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
