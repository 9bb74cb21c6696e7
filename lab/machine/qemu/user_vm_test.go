//go:build vm

package qemu_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cambium/internal/eventually"
	"cambium/internal/looptest"
	"cambium/lab/disk"
	"cambium/lab/image"
	"cambium/lab/labtest"
	"cambium/lab/machine"
	"cambium/lab/machine/qemu"
	"cambium/lab/tree"
)

// TestVMUnprivileged: QEMU is never root, and each machine's is another user, who can open none of the files of
// machines. Disks come and go all the same, also after a reboot, and the machine goes back to a snapshot.
func TestVMUnprivileged(t *testing.T) {
	looptest.Needs(t, "qemu-system-x86_64", "qemu-img")
	t.Setenv("CAMBIUM_TEST_SECRET", "sesame")
	dir := filepath.Join(t.TempDir(), "private")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	start := func(name string) *qemu.Machine {
		engine := qemu.Engine{Images: image.Cache{Dir: tree.DefaultDir(), Progress: t.Logf}}
		spec := machine.Spec{Name: name, Dir: filepath.Join(dir, name), Agent: labtest.Agent(t)}
		made, err := engine.Create(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := made.Delete(context.Background()); err != nil {
				t.Error(err)
			}
		})
		attach(t, made, dir, name+"-cold", machine.Virtio)
		if err := made.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		return made.(*qemu.Machine)
	}
	other := start("other-user")
	user := unprivileged(t, "other-user")
	if err := other.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}

	m := start("one-user")
	booted(t, m)
	cold := m.Disks()[0]
	sh(t, m, "udevadm wait --timeout=300 "+cold.Path+" && echo cold > "+cold.Path+" && echo before > /root/mark && sync")
	if own := unprivileged(t, "one-user"); own == user {
		t.Errorf("both machines run as user %s", own)
	}
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
	if now := unprivileged(t, "one-user"); now == user {
		t.Errorf("both machines run as user %s after a reboot", now)
	}
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

// attach makes a disk that only root can read.
func attach(t *testing.T, m machine.Machine, dir, id string, bus machine.Bus) machine.Attachment {
	t.Helper()
	path := filepath.Join(dir, id)
	if err := disk.Create(path, 64<<20); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := m.Attach(t.Context(), machine.Disk{ID: id, Image: path, Bus: bus})
	if err != nil {
		t.Fatal(err)
	}
	return a
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

// processOf is the directory in /proc of the QEMU of a machine.
func processOf(t *testing.T, name string) string {
	t.Helper()
	found, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range found {
		if line, _ := os.ReadFile(path); bytes.HasPrefix(line, []byte("qemu-system-x86_64\x00-name\x00"+name+"\x00")) {
			return filepath.Dir(path)
		}
	}
	t.Fatalf("no QEMU runs for %s", name)
	return ""
}

// unprivileged checks all threads of the QEMU of a machine, and returns the number of its user.
func unprivileged(t *testing.T, name string) (user string) {
	t.Helper()
	process := processOf(t, name)
	threads, _ := filepath.Glob(filepath.Join(process, "task/*/status"))
	if len(threads) < 2 {
		t.Errorf("%d threads of QEMU were looked at", len(threads))
	}
	for _, thread := range threads {
		status := map[string]string{}
		data, _ := os.ReadFile(thread)
		for line := range strings.Lines(string(data)) {
			key, value, _ := strings.Cut(line, ":")
			status[key] = strings.Join(strings.Fields(value), " ")
		}
		if len(status) == 0 {
			continue // has ended
		}
		user, _, _ = strings.Cut(status["Uid"], " ")
		all := strings.Repeat(user+" ", 3) + user
		if user == "0" || status["Uid"] != all || status["Gid"] != all || status["Groups"] != "" {
			t.Errorf("%s: users %q, groups %q and %q", thread, status["Uid"], status["Gid"], status["Groups"])
		}
		for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
			if strings.Trim(status[set], "0") != "" || status[set] == "" {
				t.Errorf("%s: %s is %q", thread, set, status[set])
			}
		}
		if status["NoNewPrivs"] != "1" || status["Seccomp"] != "2" {
			t.Errorf("%s: no new privileges %q, system call filter %q; want 1 and 2",
				thread, status["NoNewPrivs"], status["Seccomp"])
		}
	}
	environment, err := os.ReadFile(filepath.Join(process, "environ"))
	if err != nil || bytes.Contains(environment, []byte("sesame")) {
		t.Errorf("QEMU has the lab's environment (%v): %q", err, environment)
	}
	return user
}
