//go:build linux

package labtest

import (
	"os"
	"testing"
)

// A package whose tests do not begin with Main must not get the program into its source directory.
func TestProgramsAreNotBuiltIntoTheSourceTree(t *testing.T) {
	path, err := Program("agent", "cambium/cmd/agent")
	if err == nil {
		t.Errorf("the program is built as %q, want an error", path)
		_ = os.Remove(path)
	}
}
