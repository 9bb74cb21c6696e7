package agent

import "sync"

// queueLength bounds a lane's queue. Running work does not count.
const queueLength = 10_000

// lane runs work in order of arrival, at most width at a time. Set width and group before use.
type lane struct {
	width int

	mu      sync.Mutex // guards the fields below
	running int
	queue   []func()
	group   *sync.WaitGroup
}

// submit runs or queues work. It never blocks. It returns false if the queue is full.
func (l *lane) submit(run func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.running < l.width:
		l.running++
		l.group.Go(func() { l.process(run) })
	case len(l.queue) < queueLength:
		l.queue = append(l.queue, run)
	default:
		return false
	}
	return true
}

// process runs work and then the queued work.
func (l *lane) process(run func()) {
	for run != nil {
		run()
		run = l.next()
	}
}

func (l *lane) next() func() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queue) == 0 {
		l.running--
		return nil
	}
	run := l.queue[0]
	l.queue[0] = nil
	l.queue = l.queue[1:]
	return run
}
