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
	deadline := time.Now().Add(5 * time.Second)
	for {
		programs, roots, err := w.Programs()
		if err != nil {
			t.Fatal(err)
		}
		if roots == 1 && len(programs) == 4 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("counted %v below %d shells, want 4 below 1", programs, roots)
		}
	}
}
