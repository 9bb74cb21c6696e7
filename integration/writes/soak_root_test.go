//go:build root && soak

package writes

import (
	"cmp"
	"fmt"
	"testing"
	"time"

	"cambium/integration/writes/replay"
)

// TestRootSoakWrites tries thousands of states of each operation, and writes their row of the report. An operation is a
// part that can be run alone.
func TestRootSoakWrites(t *testing.T) {
	for _, op := range operations {
		t.Run(op.name, func(t *testing.T) {
			begin := time.Now()
			got := run(t, op, cmp.Or(*states, 2000), *seed)
			report(t, op, got, time.Since(begin))
		})
	}
}

const reportPath = "../../docs/results/writes.md"

// report replaces the row of an operation.
func report(t *testing.T, op *operation, got result, took time.Duration) {
	t.Helper()
	err := replay.SetRow(reportPath, op.name, got.writes, got.flushes, got.states, got.converged, got.byHand,
		fmt.Sprintf("%.0f min", took.Minutes()), got.seed)
	if err != nil {
		t.Error(err)
	}
}
