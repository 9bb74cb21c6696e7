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
		s.ShowLater("STATUS=settings")
		time.Sleep(minShown / 2)
		s.ShowLater("STATUS=network")
		time.Sleep(minShown / 2)
		check()
		time.Sleep(minShown)
		s.ShowLater("STATUS=disks")
		s.Show("STATUS=ready")
		time.Sleep(2 * minShown)
		check("network", "ready")
	})
}
