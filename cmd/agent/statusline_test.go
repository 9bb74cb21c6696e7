package main

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestStatusLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []string
		s := &statusLine{tell: func(text string) error { told = append(told, text); return nil }}
		check := func(want ...string) {
			t.Helper()
			s.mu.Lock()
			defer s.mu.Unlock()
			if !slices.Equal(told, want) {
				t.Errorf("told %q, want %q", told, want)
			}
		}
		s.soon("STATUS=settings")
		time.Sleep(readable / 2)
		s.soon("STATUS=network")
		time.Sleep(readable / 2)
		check()
		time.Sleep(readable)
		s.soon("STATUS=disks")
		s.now("STATUS=ready")
		time.Sleep(2 * readable)
		check("network", "ready")
	})
}
