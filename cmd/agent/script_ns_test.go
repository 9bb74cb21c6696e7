//go:build ns

package main

import (
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"cambium/internal/skiptest"
)

// TestNSScripts are stories that need a network namespace of their own.
func TestNSScripts(t *testing.T) {
	skiptest.WithoutRoot(t, "to make network namespaces")
	testscript.Run(t, testscript.Params{Dir: "testdata/script-ns", RequireUniqueNames: true})
}
