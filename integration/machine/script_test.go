//go:build machine

package machine

import (
	"strings"
	"testing"

	"cambium/integration/lab/labtest"
	"cambium/integration/lab/release"
)

// TestMachineScriptsRunWithDefaults has a pre-start do what releases do, and look at what it
// inherited of the agent's unit.
func TestMachineScriptsRunWithDefaults(t *testing.T) {
	l := newLab(t)
	job := release.Job{Name: "probe", Files: release.Files{"bin/pre-start": `#!/bin/bash
set -eu
out=/var/vcap/data/probe.out
{
  echo "nice $(nice)"
  echo "oom $(cat /proc/self/oom_score_adj)"
  echo "capabilities $(awk '/^CapEff/ {print $2}' /proc/self/status) $(awk '/^CapEff/ {print $2}' /proc/1/status)"
  echo "privileges $(awk '/^NoNewPrivs/ {print $2}' /proc/self/status)"
  echo "seccomp $(awk '/^Seccomp:/ {print $2}' /proc/self/status) $(awk '/^Seccomp:/ {print $2}' /proc/1/status)"
  echo "core $(ulimit -c) files $(ulimit -Hn)"
  echo "mounts $(readlink /proc/self/ns/mnt) $(readlink /proc/1/ns/mnt)"
} >$out
yes 2>/dev/null | head -1 >/dev/null; echo "sigpipe ${PIPESTATUS[0]}" >>$out
mkdir -p /var/vcap/data/probe.mnt
mount -t tmpfs probe /var/vcap/data/probe.mnt
sysctl -q net.ipv4.ip_forward=1
modprobe --dry-run --quiet nonexistent || true
echo "sudo $(sudo -n -u vcap id -un)" >>$out
`}}
	m := release.Manifest{Name: "probe", Groups: []release.Group{{Name: "probe", Instances: 1, EphemeralDisk: 2048, Jobs: []release.Job{job}}}}
	err := l.Deploy(t.Context(), m, nil)
	i := l.Machines()["probe-0"]
	if err != nil {
		t.Fatalf("%v\n%s", err, run(t, i, "sh", "-c", "cat /var/vcap/sys/log/probe/pre-start.stderr.log /var/vcap/data/probe.out"))
	}
	labtest.Explain(t, i)
	got := map[string][]string{}
	for line := range strings.Lines(run(t, i, "cat", "/var/vcap/data/probe.out")) {
		words := strings.Fields(line)
		got[words[0]] = words[1:]
	}
	for key, want := range map[string]string{"nice": "0", "oom": "0", "privileges": "0", "sigpipe": "141", "sudo": "vcap"} {
		if value := strings.Join(got[key], " "); value != want {
			t.Errorf("%s is %q in a pre-start, want %q", key, value, want)
		}
	}
	for _, key := range []string{"capabilities", "seccomp", "mounts"} {
		if len(got[key]) != 2 || got[key][0] != got[key][1] {
			t.Errorf("%s are %v in a pre-start and in init, want the same", key, got[key])
		}
	}
	if mount := run(t, i, "findmnt", "-n", "-o", "FSTYPE", "/var/vcap/data/probe.mnt"); mount != "tmpfs\n" {
		t.Errorf("what the pre-start mounted is %q, want a tmpfs that everybody sees", mount)
	}
}
