//go:build machine && soak

package machine

import "testing"

// TestMachineSoakKilledAtRandom is the long version of the kills at random moments.
func TestMachineSoakKilledAtRandom(t *testing.T) { killAtRandom(t, 200) }
