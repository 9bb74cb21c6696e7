//go:build machine

package scripts

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestMachineTwoBuildsAreTheSameBytes builds one commit in two directories, as `make build` does. It runs in this tier
// because the programs are built here anyway; most of what it compiles is in Go's cache.
func TestMachineTwoBuildsAreTheSameBytes(t *testing.T) {
	source := filepath.Join(t.TempDir(), "source.tar")
	if out, err := exec.Command("git", "-C", "..", "archive", "-o", source, "HEAD").CombinedOutput(); err != nil {
		t.Fatalf("git archive: %v: %s", err, out)
	}
	var builds [2][]byte
	for i, below := range []string{"one", "another/and/deeper"} {
		dir := filepath.Join(t.TempDir(), below)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{{"tar", "-xf", source, "-C", dir},
			{"make", "-C", dir, "build", "VERSION=1.2.3 (test)"}} {
			if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
				t.Fatalf("%q: %v: %s", args, err, out)
			}
		}
		agent := filepath.Join(dir, "bin/agent")
		if out, err := exec.Command(agent, "version").CombinedOutput(); err != nil ||
			!bytes.Contains(out, []byte("1.2.3 (test)")) {
			t.Errorf("the version is not in the binary: %v: %s", err, out)
		}
		var err error
		if builds[i], err = os.ReadFile(agent); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(builds[0], builds[1]) {
		t.Errorf("builds of %d and %d bytes in two directories differ", len(builds[0]), len(builds[1]))
	}
}
