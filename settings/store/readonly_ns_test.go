//go:build ns

package store

import (
	"testing"

	"golang.org/x/sys/unix"

	"cambium/internal/nstest"
)

// TestNSAReadOnlyDiskDoesNotKeepTheAgentFromStarting: after an I/O error the kernel makes the
// root file system read-only, and that is when an operator most needs the agent.
func TestNSAReadOnlyDiskDoesNotKeepTheAgentFromStarting(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		m.answer = doc("a-1", `,"ntp":["1"]`)
		m.load(t, m.open(t))
		base := m.dirs.Base()
		if err := unix.Mount(base, base, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := unix.Unmount(base, 0); err != nil {
				t.Error(err)
			}
		}()
		if err := unix.Mount("", base, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
			t.Fatal(err)
		}
		m.answer = doc("a-1", `,"ntp":["2"]`)
		before := m.cleared
		c := m.open(t)
		l := m.load(t, c)
		if l.NotCached == nil || m.cleared != before || c.Effective().NTP[0] != "2" {
			t.Errorf("got %+v with %v; want the new settings in force, not cached, and the source not cleared", l,
				c.Effective().NTP)
		}
	})
}
