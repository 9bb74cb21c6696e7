package iaas

import "sync"

// locks has a lock for each object that is locked or waited for.
type locks struct {
	mu   sync.Mutex
	held map[string]*objectLock
}

type objectLock struct {
	sync.Mutex
	users int // the number of callers that hold it or wait for it
}

// lock locks an object, and returns a function that unlocks it. To lock a VM and a disk, lock the VM first.
func (l *locks) lock(cid string) (unlock func()) {
	l.mu.Lock()
	if l.held == nil {
		l.held = map[string]*objectLock{}
	}
	o := l.held[cid]
	if o == nil {
		o = &objectLock{}
		l.held[cid] = o
	}
	o.users++
	l.mu.Unlock()
	o.Lock()
	return func() {
		o.Unlock()
		l.mu.Lock()
		defer l.mu.Unlock()
		if o.users--; o.users == 0 {
			delete(l.held, cid)
		}
	}
}
