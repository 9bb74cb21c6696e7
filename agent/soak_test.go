//go:build soak

package agent

import "testing"

// TestSoakLeaks serves 100,000 requests.
func TestSoakLeaks(t *testing.T) { leaks(t, 100000) }
