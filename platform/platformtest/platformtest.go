// Package platformtest tests the common behavior of the domains in package platform.
package platformtest

import (
	"fmt"
	"io"
	"slices"
	"testing"

	"github.com/sirupsen/logrus"

	"cambium/platform"
)

// Quiet returns a log that is not written anywhere.
func Quiet() *logrus.Entry {
	log := logrus.New()
	log.SetOutput(io.Discard)
	return logrus.NewEntry(log)
}

// Converge applies want twice and returns the changes. It fails the test unless the first run makes the planned
// changes, and the second none.
func Converge[S, D any, C fmt.Stringer](t testing.TB, k platform.Kernel[S, D, C], diff platform.Diff[S, D, C],
	want D) []string {
	t.Helper()
	planned, err := platform.Plan(t.Context(), k, diff, want)
	if err != nil {
		t.Fatal(err)
	}
	changes, err := platform.Converge(t.Context(), k, diff, want)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(Texts(planned), Texts(changes)) {
		t.Errorf("planned %q, changed %q", Texts(planned), Texts(changes))
	}
	second, err := platform.Converge(t.Context(), k, diff, want)
	if err != nil || len(second) != 0 {
		t.Errorf("second run: got %q, %v, want nothing to do", Texts(second), err)
	}
	return Texts(changes)
}

// Texts returns the texts of changes.
func Texts[C fmt.Stringer](changes []C) (out []string) {
	for _, c := range changes {
		out = append(out, c.String())
	}
	return out
}
