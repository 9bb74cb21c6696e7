//go:build machine && nightly

package machine

import "testing"

// TestNightlyJobs runs the machine tests of jobs with both supervisors. Each change runs them with the
// agent's own, and TestMachineSupervisor with both.
func TestNightlyJobs(t *testing.T) {
	for _, test := range []struct {
		name string
		run  func(t *testing.T, supervisor string)
	}{
		{"life", jobLife},
		{"director flows", directorFlows},
		{"empty stores", emptyStores},
		{"power cuts", func(t *testing.T, supervisor string) { cutAfterStarts(t, supervisor, 5) }},
		{"dependants", dependantsFlow},
		{"scripts on boot", scriptsOnBoot},
		{"kills in tasks", func(t *testing.T, supervisor string) { killInTasks(t, supervisor, 2) }},
	} {
		for _, supervisor := range []string{"monit", "systemd"} {
			t.Run(test.name+" with "+supervisor, func(t *testing.T) {
				t.Parallel()
				test.run(t, supervisor)
			})
		}
	}
}
