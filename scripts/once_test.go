package scripts

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// slowGo stands for go: it takes a while, and writes the program that it was to build.
const slowGo = `#!/bin/sh
echo "$1" >>"$CALLS"
sleep 0.3
while [ $# -gt 0 ]; do
	if [ "$1" = -o ]; then echo >"$2"; chmod +x "$2"; fi
	shift
done
`

// TestProgramsAreBuiltOnce: of two tests that need the same program, the second waits until the first has built it.
func TestProgramsAreBuiltOnce(t *testing.T) {
	for _, script := range []string{"bosh-cli", "baseline"} {
		t.Run(script, func(t *testing.T) {
			dir := t.TempDir()
			calls := filepath.Join(dir, "calls")
			if err := os.WriteFile(filepath.Join(dir, "go"), []byte(slowGo), 0o755); err != nil {
				t.Fatal(err)
			}
			var running []*exec.Cmd
			for range 2 {
				c := exec.Command("./" + script)
				c.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "CALLS="+calls, "CAMBIUM_CACHE="+dir,
					"BOSH_CLI=", "BASELINE=")
				if err := c.Start(); err != nil {
					t.Fatal(err)
				}
				running = append(running, c)
			}
			for _, c := range running {
				if err := c.Wait(); err != nil {
					t.Error(err)
				}
			}
			if got, err := os.ReadFile(calls); err != nil || strings.Count(string(got), "build") != 1 {
				t.Errorf("go was called for %q, %v; want one build", got, err)
			}
		})
	}
}
