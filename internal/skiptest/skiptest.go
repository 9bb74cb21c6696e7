// Package skiptest is the one way to skip a test. Where CI is set, every test must be able to run, and one that
// cannot fails.
package skiptest

import (
	"os"
	"testing"
)

// Skip skips a test that lacks what why names, and fails it where CI is set.
func Skip(t testing.TB, why any) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatalf("%v, although CI is set", why)
	}
	t.Skip(why)
}

// WithoutRoot skips a test that needs root, for what says what.
func WithoutRoot(t testing.TB, what string) {
	t.Helper()
	if os.Geteuid() != 0 {
		Skip(t, "needs root "+what)
	}
}
