//go:build root && soak

package writes

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"cambium/internal/atomicfile"
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
	data, err := os.ReadFile(reportPath)
	if err != nil {
		t.Fatal(err)
	}
	row := fmt.Sprintf("| %s | %d | %d | %d | %d | %d | %.0f min | %d |", op.name, got.writes, got.flushes, got.states,
		got.converged, got.byHand, took.Minutes(), got.seed)
	lines := strings.Split(string(data), "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, "| "+op.name+" |") {
			lines[i] = row
			if err := atomicfile.Write(reportPath, []byte(strings.Join(lines, "\n")), 0o644); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Errorf("%s has no row for %s", reportPath, op.name)
}
