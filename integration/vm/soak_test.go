//go:build vm && soak

package vm

import "testing"

// TestVMSoakPowerCut is the long version.
func TestVMSoakPowerCut(t *testing.T) { cutPower(t, 100, 100) }
