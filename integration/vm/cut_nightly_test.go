//go:build vm && nightly

package vm

import "testing"

// TestNightlyPowerCut cuts the power often enough to hit most steps.
func TestNightlyPowerCut(t *testing.T) { cutPower(t, 20, 20) }
