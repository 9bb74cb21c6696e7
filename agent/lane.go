package agent

import (
	"sync"
	"time"
)

const (
	// queueLength bounds the work that waits in a lane's queue, beyond the work in progress.
	queueLength = 1000
	// queueTimeout bounds how long work waits for a place in a full queue.
	queueTimeout = 30 * time.Second
	// maxWaiting bounds those that wait; it is a guard against running out of memory.
	maxWaiting = 20000
)

// work is one call on its way through a lane. Exactly one of run and refused is called;
// admitted before run. None is called with the lane locked.
type work struct {
	admitted func() // has a place in the queue, or runs
	run      func()
	refused  func() // found no place in time
	timer    *time.Timer
}

// lane runs work in arrival order, at most width at a time. The zero lane is not usable.
type lane struct {
	width int

	mu      sync.Mutex // guards what follows
	running int
	queue   []*work
	waiting []*work // for a place in queue, each with a timer
	group   *sync.WaitGroup
}

// submit never blocks.
func (l *lane) submit(w *work) {
	l.mu.Lock()
	switch {
	case l.running < l.width:
		l.running++
		l.group.Go(func() { l.process(w) })
	case len(l.waiting) == 0 && len(l.queue) < queueLength:
		l.queue = append(l.queue, w)
	case len(l.waiting) < maxWaiting:
		w.timer = time.AfterFunc(queueTimeout, func() { l.expire(w) })
		l.waiting = append(l.waiting, w)
		l.mu.Unlock()
		return
	default:
		l.mu.Unlock()
		w.refused()
		return
	}
	l.mu.Unlock()
	w.admitted()
}

// process runs w and then whatever is queued.
func (l *lane) process(w *work) {
	for w != nil {
		w.run()
		w = l.next()
	}
}

func (l *lane) next() *work {
	l.mu.Lock()
	if len(l.queue) == 0 {
		l.running--
		l.mu.Unlock()
		return nil
	}
	w := l.queue[0]
	l.queue[0] = nil
	l.queue = l.queue[1:]
	var moved *work
	for len(l.waiting) > 0 && moved == nil {
		first := l.waiting[0]
		l.waiting[0] = nil
		l.waiting = l.waiting[1:]
		if first.timer.Stop() {
			moved = first
			l.queue = append(l.queue, first)
		}
	}
	l.mu.Unlock()
	if moved != nil {
		moved.admitted()
	}
	return w
}

// expire is called by the timer of w. A timer that next has stopped does not get here.
func (l *lane) expire(w *work) {
	l.mu.Lock()
	for i, other := range l.waiting {
		if other == w {
			l.waiting = append(l.waiting[:i], l.waiting[i+1:]...)
			break
		}
	}
	l.mu.Unlock()
	w.refused()
}
