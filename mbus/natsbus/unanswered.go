package natsbus

import (
	"sync"
	"time"
)

// unanswered counts the requests that have no reply yet, so that a stopping agent closes its connection behind the
// last one.
type unanswered struct {
	mu    sync.Mutex
	count int
	none  chan struct{} // closed when count comes back to 0; nil unless it is waited for
}

func (u *unanswered) add(n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.count += n; u.count == 0 && u.none != nil {
		close(u.none)
		u.none = nil
	}
}

// wait returns when everything is answered, or after limit.
func (u *unanswered) wait(limit time.Duration) {
	u.mu.Lock()
	if u.count == 0 {
		u.mu.Unlock()
		return
	}
	if u.none == nil {
		u.none = make(chan struct{})
	}
	none := u.none
	u.mu.Unlock()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-none:
	case <-timer.C:
	}
}
