package vitals

import (
	"context"
	"sync"
	"time"
)

// mountTimeout bounds the wait for a file system to respond.
const mountTimeout = 2 * time.Second

// mount measures a directory on which a file system may be mounted. Only one measurement runs at a time, since
// statfs(2) on a file system that hangs does not return until it is unmounted.
type mount struct {
	measure func() (d Disk, mounted bool, err error)

	mu    sync.Mutex    // guards the fields below
	ended chan struct{} // closed at the end of the current measurement; nil if there is none
	begun time.Time

	// Result of the last completed measurement.
	disk    Disk
	mounted bool
	err     error
	at      time.Time
}

// begin starts a measurement unless one is running.
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

// await returns the result of the current measurement. If that takes too long, it returns the result of the previous
// one, with its age, or zero values if there is none.
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
