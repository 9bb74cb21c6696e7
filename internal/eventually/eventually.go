// Package eventually waits in tests for conditions that cause no event. If there is an event (a channel, inotify, a
// line of a journal), wait for that. The agent does not link this package.
package eventually

import (
	"errors"
	"testing"
	"time"
)

// limit suits machines that are many times slower than usual. Only a test that fails waits that long.
const limit = 4 * time.Minute

// shortest and longest bound the pause between checks: from the cost of checking memory to that of running a program in
// a virtual machine.
const (
	shortest = time.Millisecond
	longest  = 200 * time.Millisecond
)

var errNotYet = errors.New("the condition does not hold")

// True waits until holds returns true. what describes the condition.
func True(t testing.TB, what string, holds func() bool) {
	t.Helper()
	Nil(t, what, func() error {
		if holds() {
			return nil
		}
		return errNotYet
	})
}

// Nil waits until check returns nil. If that takes too long, the test fails with the last error of check, which should
// describe the current state.
func Nil(t testing.TB, what string, check func() error) {
	t.Helper()
	Within(t, limit, what, check)
}

// Within is like Nil, but with its own limit, for what takes minutes even on an idle machine. The end of the test's
// context does not end it, because that comes before cleanups, which may wait, too.
func Within(t testing.TB, limit time.Duration, what string, check func() error) {
	t.Helper()
	begin := time.Now()
	for {
		err := check()
		if err == nil {
			return
		}
		waited := time.Since(begin)
		if waited > limit {
			t.Fatalf("%s: timed out after %v: %v", what, waited.Round(time.Second), err)
		}
		time.Sleep(min(max(waited/10, shortest), longest))
	}
}
