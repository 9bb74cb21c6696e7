package machine

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"cambium/storage/record"
)

// work is an operation on a file system that may take hours: a check, or a mount that replays a large journal.
type work struct {
	cid   string // of a persistent disk
	what  string
	since time.Time
}

// CurrentWork returns the persistent disk whose file system is being checked or mounted, a sentence that describes the
// work, and its start. All are zero if there is no such work. It does not wait for the lock.
func (m *Machine) CurrentWork() (cid, what string, since time.Time) {
	m.working.Lock()
	defer m.working.Unlock()
	return m.current.cid, m.current.what, m.current.since
}

func (m *Machine) setWork(w work) {
	m.working.Lock()
	defer m.working.Unlock()
	m.current = w
}

// work calls do, which may take hours, and reports its progress. key is the CID, or the key of the ephemeral disk. what
// ends a sentence that begins with the disk.
func (m *Machine) work(key, device, what string, do func(percent func(int)) error) error {
	w := work{cid: key, what: "persistent disk " + key + " " + what, since: time.Now()}
	if key == record.Ephemeral {
		w.cid, w.what = "", "the ephemeral disk "+what
	}
	m.setWork(w)
	defer m.setWork(work{})
	var percent atomic.Int32
	if m.WorkProgress != nil {
		over := make(chan struct{})
		var reporting sync.WaitGroup
		reporting.Go(func() { m.reportProgress(w, device, &percent, over) })
		defer reporting.Wait()
		defer close(over)
	}
	return do(func(n int) { percent.Store(int32(n)) })
}

// reportProgress reports the progress every second until the work is over.
func (m *Machine) reportProgress(w work, device string, percent *atomic.Int32, over <-chan struct{}) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for reported := false; ; reported = true {
		select {
		case <-tick.C:
			text := fmt.Sprintf("%s (%s), for %v", w.what, device, time.Since(w.since).Round(time.Second))
			if n := percent.Load(); n > 0 {
				text += fmt.Sprintf(", %d %%", n)
			}
			m.WorkProgress(text)
		case <-over:
			if reported {
				m.WorkProgress("")
			}
			return
		}
	}
}
