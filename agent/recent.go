package agent

import (
	"sync"
	"time"

	"cambium/mbus"
)

const (
	// recentAge is longer than two connections are ever subscribed side by side.
	recentAge = 2 * time.Minute
	// recentMax bounds the memory; the oldest are forgotten first.
	recentMax = 10000
)

// recent remembers the identities of requests, so that a message which arrives over two
// connections is served once.
type recent struct {
	mu    sync.Mutex
	known map[mbus.Identity]struct{}
	order []arrival
}

type arrival struct {
	id mbus.Identity
	at time.Time
}

// add reports whether id is new. The zero id always is.
func (r *recent) add(id mbus.Identity, now time.Time) bool {
	if id == (mbus.Identity{}) {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.order) > 0 && (len(r.order) >= recentMax || now.Sub(r.order[0].at) > recentAge) {
		delete(r.known, r.order[0].id)
		r.order = r.order[1:]
	}
	if _, known := r.known[id]; known {
		return false
	}
	if r.known == nil {
		r.known = map[mbus.Identity]struct{}{}
	}
	r.known[id] = struct{}{}
	r.order = append(r.order, arrival{id, now})
	return true
}
