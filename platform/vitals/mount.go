package vitals

import (
	"context"
	"sync"
	"time"
)

// mountTimeout bounds the wait for a file system's answer.
const mountTimeout = 2 * time.Second

// mount is a place where a file system may be mounted. It is measured once at a time: statfs(2) on a dead file system
// returns when that is unmounted, and until then nobody asks again.
type mount struct {
	measure func() (d Disk, mounted bool, err error)

	mu    sync.Mutex    // guards what follows
	ended chan struct{} // closed when the measurement under way has ended; nil if none is
	begun time.Time

	// Of the last measurement that ended.
	disk    Disk
	mounted bool
	err     error
	at      time.Time
}

// begin starts a measurement unless one is under way.
func (m *mount) begin() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended != nil {
		return
	}
	m.ended, m.begun = make(chan struct{}), time.Now()
	go func() {
		d, mounted, err := m.measure()
		m.mu.Lock()
		defer m.mu.Unlock()
		m.disk, m.mounted, m.err, m.at = d, mounted, err, time.Now()
		close(m.ended)
		m.ended = nil
	}()
}

// await returns the result of the measurement that was begun. If that takes too long, it returns the one before, marked
// as old; there may be none, as if nothing were mounted.
func (m *mount) await(ctx context.Context) (d Disk, mounted bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if under := m.ended; under != nil {
		timer := time.NewTimer(time.Until(m.begun.Add(mountTimeout)))
		defer timer.Stop()
		m.mu.Unlock()
		select {
		case <-under:
		case <-timer.C:
		case <-ctx.Done():
		}
		m.mu.Lock()
		if m.ended == under {
			d = m.disk
			d.AgeSecs = max(1, uint64(time.Since(m.at).Seconds()))
			return d, m.mounted, m.err
		}
	}
	return m.disk, m.mounted, m.err
}
