//go:build vm

package qemu_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cambium/internal/looptest"
	"cambium/lab/disk"
	"cambium/lab/image"
	"cambium/lab/labtest"
	"cambium/lab/machine"
	"cambium/lab/machine/qemu"
	"cambium/lab/tree"
)

// TestVMUnprivileged: QEMU is never root, and each machine's is another user. TestNightlyVMUnprivileged shows that disks
// come and go all the same.
func TestVMUnprivileged(t *testing.T) {
	looptest.Needs(t, "qemu-system-x86_64", "qemu-img")
	t.Setenv("CAMBIUM_TEST_SECRET", "sesame")
	dir := private(t)
	users := map[string]bool{}
	for _, name := range []string{"one-user", "other-user"} {
		m := start(t, dir, name)
		users[unprivileged(t, name)] = true
		if err := m.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if len(users) != 2 {
		t.Errorf("the users of both machines: %v", users)
	}
}

// private is a directory of root's alone.
func private(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "private")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// start starts a machine with a disk.
func start(t *testing.T, dir, name string) *qemu.Machine {
	t.Helper()
	engine := qemu.Engine{Images: image.Cache{Dir: tree.DefaultDir(), Progress: t.Logf}}
	made, err := engine.Create(t.Context(),
		machine.Spec{Name: name, Dir: filepath.Join(dir, name), Agent: labtest.Agent(t)})
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
