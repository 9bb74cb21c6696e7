package agent

import (
	"context"

	"cambium/agent/action"
	"cambium/jobs"
)

// submit queues a request in a lane, and returns false if the queue is full. A request for the instance lane interrupts
// the function that RunAlone runs there.
func (d *Dispatcher) submit(l action.Lane, run func()) bool {
	queued := d.lanes[l].submit(run)
	if l != action.Instance {
		return queued
	}
	d.mu.Lock()
	interrupt := d.interrupt
	d.mu.Unlock()
	if interrupt != nil {
		interrupt(jobs.ErrRequest)
	}
	return queued
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
	queued := d.lanes[action.Instance].submit(func() {
		defer close(ended)
		if ctx.Err() == nil {
			f(ctx)
		}
	})
	if queued {
		<-ended
	}
}

func (d *Dispatcher) setInterrupt(f context.CancelCauseFunc) {
	d.mu.Lock()
	d.interrupt = f
	d.mu.Unlock()
}
