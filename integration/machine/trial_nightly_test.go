//go:build machine && nightly

package machine

import "testing"

// TestNightlyTrial: trials on a machine whose agent runit runs.
func TestNightlyTrial(t *testing.T) {
	t.Run("until a reboot", func(t *testing.T) { tryUntilReboot(t, jammy(t)) })
	t.Run("kept", func(t *testing.T) { keepAndGoBack(t, jammy(t)) })
	t.Run("bad agents", func(t *testing.T) { tryBadAgents(t, jammy(t)) })
}
