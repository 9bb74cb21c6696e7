//go:build root

package execs

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
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
	for _, args := range [][]string{{"/bin/sh", "-c", "/bin/true; /bin/true"}, {shell, "-c", "/bin/true; /bin/sh -c '/bin/true; /bin/true; :'; :"}} {
		if err := exec.Command(args[0], args[1:]...).Run(); err != nil {
			t.Fatal(err)
		}
	}
	here, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(5 * time.Second)
	for {
		all, err := w.Of(here)
		if err != nil {
			t.Fatal(err)
		}
		if all.Processes == 1 && len(all.Programs) == 4 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("counted %v below %d shells, want 4 below 1", all.Programs, all.Processes)
		}
	}
	if other, _ := w.Of("pid:[1]"); other.Processes != 0 {
		t.Errorf("another machine has %+v", other)
	}
}
