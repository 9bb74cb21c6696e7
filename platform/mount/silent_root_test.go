//go:build root

package mount

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"cambium/lab/stucktest"

	"golang.org/x/sys/unix"
)

// unmountWithin unmounts a mount that stays busy, and returns the error.
func unmountWithin(t *testing.T, busy string, given time.Duration) *BusyError {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), given)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- Unmount(ctx, busy) }()
	select {
	case err := <-ended:
		var found *BusyError
		if !errors.As(err, &found) {
			t.Fatalf("got %v, want that it is busy", err)
		}
		return found
	case <-time.After(time.Minute):
		t.Fatal("unmount still hangs a minute after its context has ended")
		return nil
	}
}

// busyMount returns a tmpfs with an open file.
func busyMount(t *testing.T) (dir string, held *os.File) {
	t.Helper()
	dir = t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	held, err := os.Create(filepath.Join(dir, "held"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = held.Close()
		_ = unix.Unmount(dir, unix.MNT_DETACH)
	})
	return dir, held
}

// TestRootUnmountAmongSilentFiles: a process has a file open on a file system that does not respond. That file system
// is not queried.
func TestRootUnmountAmongSilentFiles(t *testing.T) {
	f, err := stucktest.Mount(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	open, err := os.Open(f.File)
	if err != nil {
		t.Fatal(err)
	}
	busy, held := busyMount(t)
	f.Silence()
	got := unmountWithin(t, busy, 500*time.Millisecond)
	if !slices.ContainsFunc(got.Users, func(p Process) bool { return p.PID == os.Getpid() && p.Path == held.Name() }) {
		t.Errorf("got %v, want this process with %s", got, held.Name())
	}
	if err := f.Close(); err != nil {
		t.Log(err) // it is in use
	}
	_ = open.Close()
}

// TestRootUnmountAmongStuckProcesses: a process that blocks access to its address space is listed if it has a file
// open, and does not block the search for others.
func TestRootUnmountAmongStuckProcesses(t *testing.T) {
	busy, held := busyMount(t)
	p, err := stucktest.Start(t.TempDir(), held)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	other, _ := busyMount(t)
	for target, pid := range map[string]int{busy: p.Pid, other: os.Getpid()} {
		got := unmountWithin(t, target, 500*time.Millisecond)
		if !slices.ContainsFunc(got.Users, func(u Process) bool { return u.PID == pid }) {
			t.Errorf("%s: got %v, want process %d", target, got, pid)
		}
	}
}
