// Package bounded makes system calls that another user can make wait without an end: reads of the files of a process
// that need its address space (cmdline, environ, maps), which it can hold, and calls on a path or a descriptor that may
// lead to a file system that does not answer (FUSE, NFS). No signal ends such a call, so it gets a thread of its own and
// is left behind when it takes too long. Calls on what root alone makes do not need it.
package bounded

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// ErrHangs means that a call did not return in time, and may not ever. What was asked is unknown.
var ErrHangs = errors.New("it does not answer")

// ErrTooMany is ErrHangs of a call that was not made, since too many others are left behind.
var ErrTooMany = fmt.Errorf("not tried, because %d other calls wait for an answer: %w", maxLeft, ErrHangs)

const (
	// patience bounds a call; a disk under load may need that long.
	patience = 5 * time.Second
	// shortPatience replaces patience while calls of the group are left behind: who holds one up can hold many up.
	shortPatience = patience / 10
	// maxLeft bounds the calls of a group that are left behind, each with a thread.
	maxLeft = 64
)

// Group are calls that share the bound. The zero value is ready.
type Group struct {
	mu   sync.Mutex
	left map[string]int // calls that are left behind, by what they ask
	sum  int
}

// Call makes a call. what names it in the error; while an earlier one of that name is left behind, it is not made.
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

// wait returns the time that a call may take, or the error of a call that is not made.
func (g *Group) wait(what string) (time.Duration, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.left[what] > 0:
		return 0, ErrHangs
	case g.sum >= maxLeft:
		return 0, ErrTooMany
	case g.sum > 0:
		return shortPatience, nil
	}
	return patience, nil
}

// add counts calls that are left behind; the caller holds the mutex.
func (g *Group) add(what string, n int) {
	if g.left == nil {
		g.left = map[string]int{}
	}
	g.sum += n
	if g.left[what] += n; g.left[what] == 0 {
		delete(g.left, what)
	}
}

// ReadFile is os.ReadFile.
func ReadFile(g *Group, path string) ([]byte, error) {
	return Call(g, path, func() ([]byte, error) { return os.ReadFile(path) })
}

// Stat is os.Stat.
func Stat(g *Group, path string) (os.FileInfo, error) {
	return Call(g, path, func() (os.FileInfo, error) { return os.Stat(path) })
}
