// Package skiptest skips tests; no test may do so in another way. In CI every test must be able to run, so there a test
// fails instead.
package skiptest

import (
	"os"
	"testing"
)

// Skip skips the test for the reason why. If the environment has CI, the test fails.
func Skip(t testing.TB, why any) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatalf("%v, although CI is set", why)
	}
	t.Skip(why)
}

// WithoutRoot skips the test unless it runs as root. what says what needs root.
func WithoutRoot(t testing.TB, what string) {
	t.Helper()
	if os.Geteuid() != 0 {
		Skip(t, "needs root "+what)
	}
}
