// Package bounded makes system calls that another user can block forever: reads of /proc files that need the memory of
// a process (cmdline, environ, maps), which the process can lock, and calls on paths that may lead to a file system
// that does not answer (FUSE, NFS). No signal ends such a call, so it runs on a thread of its own, which is abandoned
// if it takes too long. Calls on files that only root creates do not need this.
package bounded

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// ErrHangs means that a call has not returned in time, and may never return.
var ErrHangs = errors.New("it does not answer")

// ErrTooMany is an ErrHangs for a call that was not made, because too many others are still blocked.
var ErrTooMany = fmt.Errorf("not tried, because %d other calls wait for an answer: %w", maxLeft, ErrHangs)

const (
	// patience is the time limit of a call unless the group has its own. A disk under load may need that long.
	patience = 5 * time.Second
	// shorter divides the limit while other calls of the group are blocked, because a user who blocks one can block many.
	shorter = 10
	// maxLeft bounds the blocked calls of a group, each of which has a thread.
	maxLeft = 64
)

// Group counts the blocked calls of callers that share a limit. The zero value can be used.
type Group struct {
	Patience time.Duration // the time limit of a call; zero: five seconds

	mu   sync.Mutex     // guards the fields below
	left map[string]int // blocked calls, by what they access
	sum  int
}

// Call runs call and returns its result, or ErrHangs after a time limit. what is part of the error. While an earlier
// call for the same what is blocked, Call fails at once.
func Call[T any](g *Group, what string, call func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	var none T
	wait, err := g.wait(what)
	if err != nil {
		return none, fmt.Errorf("%s: %w", what, err)
	}
	done, left := make(chan result, 1), false
	go func() {
		value, err := call()
		done <- result{value, err}
		g.mu.Lock()
		defer g.mu.Unlock()
		if left {
			g.add(what, -1)
		}
	}()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case r := <-done:
		return r.value, r.err
	case <-timer.C:
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case r := <-done: // just now
		return r.value, r.err
	default:
	}
	left = true
	g.add(what, 1)
	return none, fmt.Errorf("%s: %w", what, ErrHangs)
}

// wait returns the time limit of a call, or an error if it must not be made.
func (g *Group) wait(what string) (time.Duration, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.left[what] > 0:
		return 0, ErrHangs
	case g.sum >= maxLeft:
		return 0, ErrTooMany
	case g.sum > 0:
		return cmp.Or(g.Patience, patience) / shorter, nil
	}
	return cmp.Or(g.Patience, patience), nil
}

// add counts blocked calls. The caller holds the mutex.
func (g *Group) add(what string, n int) {
	if g.left == nil {
		g.left = map[string]int{}
	}
	g.sum += n
	if g.left[what] += n; g.left[what] == 0 {
		delete(g.left, what)
	}
}

// ReadFile is os.ReadFile with a time limit.
func ReadFile(g *Group, path string) ([]byte, error) {
	return Call(g, path, func() ([]byte, error) { return os.ReadFile(path) })
}

// Stat is os.Stat with a time limit.
func Stat(g *Group, path string) (os.FileInfo, error) {
	return Call(g, path, func() (os.FileInfo, error) { return os.Stat(path) })
}
