//go:build vm && nightly

package qemu_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cambium/internal/eventually"
	"cambium/internal/looptest"
	"cambium/lab/machine"
	"cambium/lab/machine/qemu"
)

// TestNightlyVMUnprivileged: the user of QEMU can open none of the files of machines. Disks come and go all the same,
// also after a reboot, and the machine goes back to a snapshot.
func TestNightlyVMUnprivileged(t *testing.T) {
	looptest.Needs(t, "qemu-system-x86_64", "qemu-img")
	dir := private(t)
	m := start(t, dir, "one-user")
	booted(t, m)
	cold := m.Disks()[0]
	sh(t, m, "udevadm wait --timeout=300 "+cold.Path+" && echo cold > "+cold.Path+" && echo before > /root/mark && sync")
	wantBegin(t, cold.Disk.Image, "cold\n")
	if err := m.Snapshot(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	sh(t, m, "echo after > /root/mark && echo warm > "+cold.Path+" && sync")
	if err := m.Rewind(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	if got := sh(t, m, "cat /root/mark; head -n 1 "+cold.Path); got != "before\ncold\n" {
		t.Errorf("after the rewind: %q", got)
	}
	plug(t, m, dir)
	boots, _ := m.Boots()
	if err := m.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "a reboot", func() bool { now, _ := m.Boots(); return now > boots })
	booted(t, m)
	plug(t, m, dir)
	unprivileged(t, "one-user")
}

// booted waits until programs run, also in a machine that is started again because its kernel hung.
func booted(t *testing.T, m machine.Machine) {
	t.Helper()
	eventually.Nil(t, "a program", func() error { return m.Run(t.Context(), machine.Command{Args: []string{"true"}}) })
}

// plug attaches disks of each kind to a running machine, writes to them and takes them away: QEMU must not keep them
// open.
func plug(t *testing.T, m *qemu.Machine, dir string) {
	t.Helper()
	for _, bus := range []machine.Bus{machine.Virtio, machine.SCSI, machine.NVMe} {
		a := attach(t, m, dir, "hot-"+string(bus), bus)
		sh(t, m, "udevadm wait --timeout=300 "+a.Path+" && echo "+a.Disk.ID+" > "+a.Path+" && sync "+a.Path)
		if bus != machine.NVMe {
			if err := m.Resize(t.Context(), a.Disk.ID, 96<<20); err != nil {
				t.Error(err)
			}
		}
		if err := m.Detach(t.Context(), a.Disk.ID); err != nil {
			t.Fatal(err)
		}
		wantBegin(t, a.Disk.Image, a.Disk.ID+"\n")
		open, _ := filepath.Glob(filepath.Join(processOf(t, m.Name()), "fd/*"))
		if len(open) == 0 {
			t.Error("QEMU has no open files")
		}
		for _, path := range open {
			if to, _ := os.Readlink(path); strings.HasPrefix(to, a.Disk.Image) {
				t.Errorf("QEMU still has the detached disk: %s", to)
			}
		}
		if err := os.Remove(a.Disk.Image); err != nil {
			t.Fatal(err)
		}
	}
}

func sh(t *testing.T, m machine.Machine, script string) string {
	t.Helper()
	var out strings.Builder
	if err := m.Run(t.Context(), machine.Command{Args: []string{"sh", "-c", script}, Stdout: &out}); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func wantBegin(t *testing.T, path, want string) {
	t.Helper()
	if data, err := os.ReadFile(path); err != nil || !strings.HasPrefix(string(data), want) {
		t.Errorf("%s does not begin with %q (%v)", path, want, err)
	}
}
