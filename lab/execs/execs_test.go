//go:build root

package execs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"cambium/internal/eventually"
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
	eventually.True(t, "a count of the watched shell", func() bool {
		all, err := w.Of(pidNamespace)
		return err == nil && all.Processes == 1
	})
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
	const env = "ENDS_A_THREAD"
	if os.Getenv(env) != "" {
		endThread(t)
		return
	}
	w, err := Start(filepath.Base(os.Args[0]))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	child := exec.Command(os.Args[0], "-test.run", "^TestRootCountsAfterAThreadHasEnded$")
	child.Env = append(os.Environ(), env+"=1")
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

// endThread runs in the child process of the test above: it ends a thread and then runs a program.
func endThread(t *testing.T) {
	t.Helper()
	id := 0
	if err := thread.Run(func() error { id = unix.Gettid(); return nil }); err != nil {
		t.Fatal(err)
	}
	path := fmt.Sprintf("/proc/self/task/%d", id)
	eventually.True(t, "the end of the thread", func() bool { _, err := os.Stat(path); return err != nil })
	if err := exec.Command("true").Run(); err != nil {
		t.Fatal(err)
	}
}
