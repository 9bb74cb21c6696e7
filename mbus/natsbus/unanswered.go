package natsbus

import (
	"sync"
	"time"
)

// unanswered counts the requests without a reply, so that a stopping agent closes its connection only after the last
// one.
type unanswered struct {
	mu    sync.Mutex
	count int
	zero  chan struct{} // closed when count reaches 0; nil unless wait is waiting
}

func (u *unanswered) add(n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.count += n; u.count == 0 && u.zero != nil {
		close(u.zero)
		u.zero = nil
	}
}

// wait returns when all requests have a reply, or after limit.
func (u *unanswered) wait(limit time.Duration) {
	u.mu.Lock()
	if u.count == 0 {
		u.mu.Unlock()
		return
	}
	if u.zero == nil {
		u.zero = make(chan struct{})
	}
	zero := u.zero
	u.mu.Unlock()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-zero:
	case <-timer.C:
	}
}
