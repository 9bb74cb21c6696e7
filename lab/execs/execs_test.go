//go:build root

package execs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cambium/internal/thread"
)

func TestRootCountsDescendantsOnly(t *testing.T) {
	shell := filepath.Join(t.TempDir(), "watched-shell")
	data, err := os.ReadFile("/bin/sh")
	if err == nil {
		err = os.WriteFile(shell, data, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	w, err := Start("watched-shell")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	pidNamespace, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		t.Fatal(err)
	}
	if err := exec.Command("/bin/sh", "-c", "/bin/true; /bin/true").Run(); err != nil {
		t.Fatal(err)
	}
	// The watched one runs until it has been seen: /proc tells its name only that long.
	watched := exec.Command(shell, "-c", "read x; /bin/true; /bin/sh -c '/bin/true; /bin/true; :'; :")
	input, err := watched.StdinPipe()
	if err == nil {
		err = watched.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if all, err := w.Of(pidNamespace); err == nil && all.Processes == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the watched shell was not seen")
		}
	}
	if err := errors.Join(input.Close(), watched.Wait()); err != nil {
		t.Fatal(err)
	}
	if err := w.CatchUp(); err != nil {
		t.Fatal(err)
	}
	all, err := w.Of(pidNamespace)
	if err != nil || all.Processes != 1 || len(all.Programs) != 4 {
		t.Errorf("counted %v below %d shells, want 4 below 1 (%v)", all.Programs, all.Processes, err)
	}
	if other, _ := w.Of("pid:[1]"); other.Processes != 0 {
		t.Errorf("another machine has %+v", other)
	}
}

// TestRootCountsAfterAThreadHasEnded holds a process of several threads in view when one ends.
func TestRootCountsAfterAThreadHasEnded(t *testing.T) {
	w, err := Start(filepath.Base(os.Args[0]))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	child := exec.Command(os.Args[0], "-test.run", "^TestRootEndsAThread$")
	child.Env = append(os.Environ(), "ENDS_A_THREAD=1")
	if output, err := child.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	pidNamespace, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.CatchUp(); err != nil {
		t.Fatal(err)
	}
	if all, err := w.Of(pidNamespace); err != nil || len(all.Programs) != 1 {
		t.Errorf("counted %v, want one program (%v)", all.Programs, err)
	}
}

// TestRootEndsAThread is what the test above runs as a process of its own.
func TestRootEndsAThread(t *testing.T) {
	if os.Getenv("ENDS_A_THREAD") == "" {
		return
	}
	id := 0
	if err := thread.Run(func() error { id = unix.Gettid(); return nil }); err != nil {
		t.Fatal(err)
	}
	path := fmt.Sprintf("/proc/self/task/%d", id)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(path); err != nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the thread did not end")
		}
	}
	if err := exec.Command("true").Run(); err != nil {
		t.Fatal(err)
	}
}
