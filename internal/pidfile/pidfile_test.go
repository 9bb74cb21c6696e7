package pidfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cambium/internal/bounded"
	"cambium/internal/skiptest"
	"cambium/lab/stucktest"
)

// read is Read, of which the test does not wait for the end.
func read(t *testing.T, path string) (int, error) {
	t.Helper()
	type result struct {
		pid int
		err error
	}
	done := make(chan result, 1)
	go func() {
		pid, err := Read(path)
		done <- result{pid, err}
	}()
	select {
	case r := <-done:
		return r.pid, r.err
	case <-time.After(time.Minute):
		t.Fatalf("%s: still reading after a minute", path)
		return 0, nil
	}
}

// TestForeignFileSystems: a job's link to what another process answers is refused before it is read.
func TestForeignFileSystems(t *testing.T) {
	link := filepath.Join(t.TempDir(), "a.pid")
	for _, target := range []string{"/proc/self/stat", "/proc/self/cmdline", "/sys/kernel/fscaps"} {
		if err := os.Symlink(target, link); err != nil {
			t.Fatal(err)
		}
		if pid, err := read(t, link); pid != 0 || err == nil || !strings.Contains(err.Error(), "local disk") {
			t.Errorf("%s: got %d, %v; want a refusal", target, pid, err)
		}
		if err := os.Remove(link); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(link+".real", []byte("4711\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(link+".real", link); err != nil {
		t.Fatal(err)
	}
	if pid, err := read(t, link); pid != 4711 || err != nil {
		t.Errorf("a link to a file on this file system: got %d, %v", pid, err)
	}
}

// TestSilentFileSystems: neither a process that holds its address space nor a file system that does not answer holds
// the reader.
func TestSilentFileSystems(t *testing.T) {
	skiptest.WithoutRoot(t, "to mount FUSE")
	p, err := stucktest.Start(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	dead, err := stucktest.Mount(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dead.Close()
	link := filepath.Join(t.TempDir(), "a.pid")
	if err := os.Symlink(fmt.Sprintf("/proc/%d/cmdline", p.Pid), link); err != nil {
		t.Fatal(err)
	}
	if pid, err := read(t, link); pid != 0 || err == nil || errors.Is(err, bounded.ErrHangs) {
		t.Errorf("command line: got %d, %v; want a refusal", pid, err)
	}
	if pid, err := read(t, dead.File); pid != 0 || err == nil {
		t.Errorf("FUSE: got %d, %v; want a refusal", pid, err)
	}
	dead.Silence()
	for range 2 {
		if pid, err := read(t, dead.File); pid != 0 || !errors.Is(err, bounded.ErrHangs) {
			t.Errorf("silent FUSE: got %d, %v; want that it hangs", pid, err)
		}
	}
}
