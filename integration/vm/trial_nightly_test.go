//go:build vm && nightly

package vm

import "testing"

// TestNightlyTrialPowerCut is TestVMTrialPowerCut with ten moments.
func TestNightlyTrialPowerCut(t *testing.T) { cutTrials(t, 10) }
