//go:build machine && nightly

package machine

import "testing"

// TestNightlyTrial: trials on a machine whose agent runit runs.
func TestNightlyTrial(t *testing.T) {
	t.Run("there and back", func(t *testing.T) { tryAndGoBack(t, jammy(t)) })
	t.Run("bad agents", func(t *testing.T) { tryBadAgents(t, jammy(t)) })
}
