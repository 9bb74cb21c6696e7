//go:build machine && nightly

package machine

import (
	"testing"

	"cambium/integration/faults"
	"cambium/lab"
)

// TestNightlyKilledAtStepBoundaries kills the agent at every boundary of every step of a first boot.
func TestNightlyKilledAtStepBoundaries(t *testing.T) { killAtStepBoundaries(t) }

// TestNightlyWithoutNewCalls denies calls as an unknown one fails, and what container engines deny.
func TestNightlyWithoutNewCalls(t *testing.T) {
	denyCalls(t, denial{"unknown", "ENOSYS", newCalls, missingCalls}, denial{"container", "EPERM", containerCalls, nil})
}

// TestNightlyVersions goes through the table of CPI API versions.
func TestNightlyVersions(t *testing.T) {
	var all []lab.Versions
	for director := 1; director <= 2; director++ {
		for cpi := 1; cpi <= 2; cpi++ {
			for stemcell := 1; stemcell <= 2; stemcell++ {
				all = append(all, lab.Versions{Director: director, CPI: cpi, Stemcell: stemcell})
			}
		}
	}
	bootVersions(t, all...)
}

// TestNightlyVerdicts makes every fatal step fail, one by one.
func TestNightlyVerdicts(t *testing.T) { verdicts(t, func(verdictCase) bool { return true }) }

// TestNightlyFaults causes every fault of the table in docs/operating.md but those of a VM.
func TestNightlyFaults(t *testing.T) { causeFaults(t, func(faults.Fault) bool { return true }) }
