//go:build machine && soak

package machine

import "testing"

// TestMachineSoakErrors has every fault in every moment, and writes docs/results/faults.md.
func TestMachineSoakErrors(t *testing.T) {
	underFaults(t, func(fault, string, string) bool { return true }, func(all []outcome) {
		writeFaults(t, "../../docs/results/faults.md", all)
	})
}
