//go:build vm && soak

package vm

import "testing"

// TestVMSoakPowerCutDuringFirstBoot is the long version.
func TestVMSoakPowerCutDuringFirstBoot(t *testing.T) { cutFirstBoot(t, 200) }
