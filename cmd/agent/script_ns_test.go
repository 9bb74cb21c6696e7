//go:build ns

package main

import (
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestNSScripts are stories that need a network namespace of their own.
func TestNSScripts(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("needs root to make network namespaces")
		}
		t.Skip("needs root to make network namespaces")
	}
	testscript.Run(t, testscript.Params{Dir: "testdata/script-ns", RequireUniqueNames: true})
}
