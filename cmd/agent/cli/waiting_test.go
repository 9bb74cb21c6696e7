package cli

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"
)

// TestSayWaiting: each reason to wait is said once, and none if the wait is short.
func TestSayWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		begun := time.Now()
		end := sayWaiting(&out, func() string {
			if time.Since(begun) < 7*time.Second {
				return "the bus"
			}
			return "a disk"
		}, silence)
		time.Sleep(20 * time.Second)
		end()
		sayWaiting(&out, func() string { return "nothing" }, silence)()
		if got, want := out.String(), "waiting for the bus\nwaiting for a disk\n"; got != want {
			t.Errorf("printed %q, want %q", got, want)
		}
		SayWaiting(&out, func() string { return "a person" })() // a buffer is not a terminal
	})
}
