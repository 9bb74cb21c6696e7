//go:build vm && nightly

package vm

import (
	"strings"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/lab"
	"cambium/lab/labtest"
	"cambium/lab/release"
)

// inherited lists the attributes that the job's process has from its supervisor, such as limits, priority, identity
// and namespaces, on a kernel of its own.
func inherited(t *testing.T, i *lab.Instance) string {
	t.Helper()
	return run(t, i, "sh", "-c", `p=/proc/$(cat /var/vcap/sys/run/web/web.pid)
		cat $p/limits $p/oom_score_adj $p/cgroup; ps -o ni=,sched= -p ${p#/proc/}; readlink $p/cwd $p/ns/*
		grep -E '^(Umask|Uid|Gid|Groups|SigBlk|Cap[A-Za-z]*|NoNewPrivs|Seccomp):' $p/status`)
}

// TestNightlyVMSupervisors puts monit in place of the agent's own supervisor, and compares what a job inherits.
// TestMachineSupervisor does so in a container.
func TestNightlyVMSupervisors(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	m := release.WebManifest()
	if err := l.Deploy(t.Context(), m, func(string, string, time.Duration, error) {}); err != nil {
		t.Fatal(err)
	}
	i := l.Machines()[m.Groups[0].Name+"-0"]
	labtest.Explain(t, i)
	want := inherited(t, i)
	run(t, i, "sh", "-c", `d=/run/systemd/system/bosh-agent.service.d; mkdir -p $d
		printf '[Service]\nExecStart=\nExecStart=/var/vcap/bosh/bin/bosh-agent -P ubuntu -C /var/vcap/bosh/agent.json -M monit\n' >$d/monit.conf
		systemctl daemon-reload && systemctl restart bosh-agent.service`)
	ready(t, i)
	const pidFile = "/var/vcap/sys/run/web/web.pid"
	old := strings.TrimSpace(run(t, i, "cat", pidFile))
	eventually.True(t, "monit", func() bool {
		return strings.Contains(run(t, i, "sh", "-c", "/var/vcap/bosh/bin/bosh-agent jobs --json || true"),
			`"state": "running"`)
	})
	run(t, i, "kill", "-9", old)
	eventually.True(t, "a new process", func() bool {
		return run(t, i, "sh", "-c", "p=$(cat "+pidFile+"); [ $p != "+old+" ] && kill -0 $p && echo new || true") == "new\n"
	})
	if got := inherited(t, i); got != want {
		t.Errorf("under monit a job inherits\n%s\nand under the agent's supervisor\n%s", got, want)
	}
}
