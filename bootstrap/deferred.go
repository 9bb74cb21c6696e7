package bootstrap

import (
	"context"
	"sync"
	"time"
)

// Deferred collects work that no step waits for and that would compete for the CPU with the steps for which the verdict
// waits. The work starts after the verdict was announced, or after deferLimit, because the verdict may take minutes.
type Deferred struct {
	// Go runs f in a goroutine until it returns or the agent ends.
	Go func(f func(context.Context))

	mu    sync.Mutex // guards the fields below
	work  []func(context.Context)
	timer *time.Timer
}

// deferLimit is the same as the engine's yieldLimit.
const deferLimit = 5 * time.Second

// UntilVerdict defers f.
func (d *Deferred) UntilVerdict(f func(context.Context)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.work = append(d.work, f); len(d.work) == 1 {
		d.timer = time.AfterFunc(deferLimit, d.Run)
	}
}

// Run starts all deferred work.
func (d *Deferred) Run() {
	d.mu.Lock()
	due := d.work
	if d.work = nil; d.timer != nil {
		d.timer.Stop()
	}
	d.mu.Unlock()
	for _, f := range due {
		d.Go(f)
	}
}
