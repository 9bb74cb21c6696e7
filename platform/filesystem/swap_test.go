package filesystem

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"cambium/internal/looptest"
	"cambium/platform/filesystem/probe"
)

// run runs a program that verifies our output.
func run(t testing.TB, name string, args ...string) string {
	t.Helper()
	looptest.Needs(t, name)
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", name, err, out)
	}
	return string(out)
}

func TestSwapHeader(t *testing.T) {
	path := looptest.Image(t, 16<<20)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := writeSwap(f, 16<<20, 4096); err != nil {
		t.Fatal(err)
	}
	c, err := Probe(path)
	if err != nil || c.Kind != probe.Swap {
		t.Fatalf("Probe = %s, %v; want swap", c, err)
	}
	if judge := run(t, "blkid", "-p", "-o", "export", path); !strings.Contains(judge, "TYPE=swap") ||
		!strings.Contains(judge, c.UUID) {
		t.Errorf("blkid says %q, want swap with UUID %s", judge, c.UUID)
	}
	if err := writeSwap(f, 4096, 4096); err == nil {
		t.Error("a single page became swap")
	}
}
