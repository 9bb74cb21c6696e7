package jobs

import (
	"context"
	"sync"
)

// PendingStart repeats the Director's last start after a boot, once the supervisor answers. A command of the Director
// that comes before replaces it, because services must not be started after a stop.
type PendingStart struct {
	mu         sync.Mutex
	superseded bool
	cancel     context.CancelFunc // nil until Run
	ended      chan struct{}
}

// Run calls start, unless a command has come before. The context of start ends with the next command.
func (p *PendingStart) Run(ctx context.Context, start func(context.Context)) {
	p.mu.Lock()
	if p.superseded {
		p.mu.Unlock()
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	p.cancel, p.ended = cancel, ended
	p.mu.Unlock()
	defer close(ended)
	defer cancel()
	start(ctx)
}

// supersede cancels a pending start, and returns when it has ended.
func (p *PendingStart) supersede() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.superseded = true
	if p.cancel != nil {
		p.cancel()
		<-p.ended
	}
}
