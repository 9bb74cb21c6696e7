//go:build vm && nightly

package vm

import (
	"slices"
	"strings"
	"testing"

	"cambium/lab"
	"cambium/lab/labtest"
	"cambium/lab/machine/qemu"
	"cambium/lab/release"
)

// TestNightlyControlGroups deploys a job with a persistent disk on machines whose control groups are of version 1
// alone, and of version 1 beside version 2. All other machines of this package have version 2 alone.
func TestNightlyControlGroups(t *testing.T) {
	const missing = "cgroup v2"
	for _, c := range []struct {
		name, kernel string
		unified      bool
	}{
		{"version 1", "systemd.unified_cgroup_hierarchy=0 systemd.legacy_systemd_cgroup_controller=1", false},
		{"both versions", "systemd.unified_cgroup_hierarchy=0 systemd.legacy_systemd_cgroup_controller=0", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			kind, engine := virtual, virtual.Engine.(qemu.Engine)
			engine.Kernel = c.kernel
			kind.Engine = engine
			l := kind.Lab(t)
			m := release.WebManifest()
			if err := l.Deploy(t.Context(), m, nil); err != nil {
				t.Fatal(err)
			}
			i := l.Machines()[m.Groups[0].Name+"-0"]
			labtest.Explain(t, i)
			web(t, l, i.IP)
			wantHierarchies(t, i, c.unified)
			warned := slices.ContainsFunc(agentStatus(t, i).Warnings,
				func(w string) bool { return strings.Contains(w, missing) })
			if warned == c.unified {
				t.Errorf("the status says that %s are missing: %v; they are there: %v", missing, warned, c.unified)
			}
			for user, want := range map[string]string{"root": "open\n", "vcap": "closed\n"} {
				if got := reachesMonit(t, i, user); got != want {
					t.Errorf("monit's port is %q for %s, want %q", got, user, want)
				}
			}
			// A job of bpm is recognized by its control group, or all of vcap is let through.
			run(t, i, "systemd-run", "--quiet", "--scope", "--slice=system", "--unit=runc-bpm-router",
				"/var/vcap/bosh/etc/bosh-enable-monit-access")
			rules := run(t, i, "nft", "list", "table", "inet", "bosh_agent")
			if strings.Contains(rules, `comment "bosh-monit-access:router"`) != c.unified ||
				strings.Contains(rules, "bosh-monit-access: UID ") == c.unified {
				t.Errorf("version 2 is there: %v; the rules are\n%s", c.unified, rules)
			}
			run(t, i, "systemctl", "restart", "bosh-agent")
			kind.Ready(t, i)
			web(t, l, i.IP)
		})
	}
}

func wantHierarchies(t *testing.T, i *lab.Instance, unified bool) {
	t.Helper()
	mounts := run(t, i, "cat", "/proc/self/mountinfo")
	if !strings.Contains(mounts, " - cgroup ") || strings.Contains(mounts, " - cgroup2 ") != unified {
		t.Fatalf("want cgroup v1, and v2 %v; mounted are\n%s", unified, mounts)
	}
}
