package agent

import (
	"sync"
	"time"
)

const (
	// queueLength bounds a lane's queue. Running work does not count.
	queueLength = 1000
	// queueTimeout bounds how long work waits for a place in a full queue.
	queueTimeout = 30 * time.Second
	// maxWaiting bounds the work that waits for a place in the queue, to limit memory.
	maxWaiting = 20000
)

// work is one call in a lane. Either run or refused is called, and admitted before run. The lane is not locked during
// these calls.
type work struct {
	admitted func() // it has a place in the queue, or is about to run
	run      func()
	refused  func() // it got no place in time
	timer    *time.Timer
}

// lane runs work in order of arrival, at most width at a time. Set width and group before use.
type lane struct {
	width int

	mu      sync.Mutex // guards the fields below
	running int
	queue   []*work
	waiting []*work // for a place in the queue; each has a timer
	group   *sync.WaitGroup
}

// submit runs, queues or refuses w. It never blocks.
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

// process runs w and then the queued work.
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

// expire is called by the timer of w, unless next has stopped the timer.
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
