package status

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestServiceLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent []string
		s := &ServiceLine{Send: func(text string) error { sent = append(sent, text); return nil }}
		check := func(want ...string) {
			t.Helper()
			s.mu.Lock()
			defer s.mu.Unlock()
			if !slices.Equal(sent, want) {
				t.Errorf("sent %q, want %q", sent, want)
			}
		}
		s.ShowDelayed("STATUS=settings")
		time.Sleep(sendDelay / 2)
		s.ShowDelayed("STATUS=network")
		time.Sleep(sendDelay / 2)
		check()
		time.Sleep(sendDelay)
		s.ShowDelayed("STATUS=disks")
		s.Show("STATUS=ready")
		time.Sleep(2 * sendDelay)
		check("network", "ready")
	})
}
