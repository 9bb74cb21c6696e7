//go:build machine && nightly

package machine

import "testing"

// TestNightlyJobsUnderTheOwnSupervisor is TestMachineJobs with the agent's supervisor in place of monit.
func TestNightlyJobsUnderTheOwnSupervisor(t *testing.T) {
	t.Parallel()
	jobLife(t, "systemd")
}
