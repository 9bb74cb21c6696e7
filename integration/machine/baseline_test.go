//go:build machine

package machine

import (
	"context"
	"sync"
	"testing"

	"cambium/integration/lab/baseline"
)

var baselineBinary = sync.OnceValues(func() (string, error) { return baseline.Build(context.Background(), "../..") })

// baselineAgent is the binary of the agent to compare with.
func baselineAgent(t testing.TB) string {
	t.Helper()
	path, err := baselineBinary()
	if err != nil {
		t.Fatal(err)
	}
	return path
}
