package main

import (
	"os"
	"os/exec"
	"testing"

	"cambium/internal/testdoc"
)

// The commands of the pages that work on any machine do. TestMain puts this program into PATH as agent.
func TestDocumentedCommands(t *testing.T) {
	blocks, err := testdoc.Blocks("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range blocks {
		if b.Kind != testdoc.Run {
			continue
		}
		t.Run(b.Place, func(t *testing.T) {
			c := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", b.Text)
			c.Dir = "../.."
			// Targets take minutes, install packages or boot machines: that they exist is what is checked.
			c.Env = append(os.Environ(), "MAKEFLAGS=n")
			if out, err := c.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
