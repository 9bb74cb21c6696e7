// Package eventually waits in tests for conditions that no event announces. Where there is an event (a channel,
// inotify, a line of a journal), a test waits for that instead. Nothing of it is linked into the agent.
package eventually

import (
	"errors"
	"testing"
	"time"
)

// limit suits machines that are many times slower than usual: only a test that fails waits for so long.
const limit = 4 * time.Minute

// shortest and longest are between what a state in memory and a program in a virtual machine cost to look at.
const (
	shortest = time.Millisecond
	longest  = 200 * time.Millisecond
)

var errNotYet = errors.New("the condition does not hold")

// True waits until holds returns true. What says what is awaited.
func True(t testing.TB, what string, holds func() bool) {
	t.Helper()
	Nil(t, what, func() error {
		if holds() {
			return nil
		}
		return errNotYet
	})
}

// Nil waits until check returns nil. The test fails with its last error, which says what there is instead of what is
// awaited.
func Nil(t testing.TB, what string, check func() error) {
	t.Helper()
	Within(t, limit, what, check)
}

// Within is Nil with a limit of its own, for what takes minutes on an idle machine. Cleanups may wait, too, so the end
// of the test's context, which comes before them, does not end it.
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
