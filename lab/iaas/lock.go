package iaas

import "sync"

// locks is one lock per object, which exists while it is held or waited for.
type locks struct {
	mu   sync.Mutex
	held map[string]*objectLock
}

type objectLock struct {
	sync.Mutex
	users int // who has it or waits for it
}

// lock takes the lock of an object and returns what lets it go. Of two objects the VM comes
// before the disk.
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
