//go:build machine

package machine

import (
	"strings"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/lab"
	"cambium/lab/release"
)

// choose has the agent run the jobs with a supervisor. The choice is kept below /run, until the next boot, or below
// /etc.
func choose(t *testing.T, i *lab.Instance, where, supervisor string) {
	t.Helper()
	run(t, i, "sh", "-c",
		`d=`+where+`/systemd/system/bosh-agent.service.d; mkdir -p $d && printf '[Service]\nExecStart=\nExecStart=/var/vcap/bosh/bin/bosh-agent -P ubuntu -C /var/vcap/bosh/agent.json -M `+
			supervisor+`\n' >$d/choice.conf && systemctl daemon-reload && systemctl restart bosh-agent.service`)
	ready(t, i)
	eventually.True(t, "the jobs under "+supervisor, func() bool { return stateOf(t, i).JobState == "running" })
}

// inUnit is the program that runs inside of monit's unit.
func inUnit(t *testing.T, i *lab.Instance) string {
	t.Helper()
	return run(t, i, "sh", "-c",
		`tr '\0' ' ' </proc/$(systemctl show --property=MainPID --value monit.service)/cmdline`)
}

// dumper writes what it was started with, and becomes a daemon. What monit 5.33 does in another way than the stemcells'
// 5.2.5 is left out: ignored signals, the standard input, who leads the session.
func dumper() release.Job {
	return release.Job{Name: "dumper", Files: release.Files{
		"monit": monitFile("dumper"),
		"bin/ctl": `#!/bin/bash
set -eu
pid=/var/vcap/sys/run/dumper/dumper.pid
case $1 in
start)
	{ cat /proc/$$/limits /proc/$$/oom_score_adj /proc/$$/cgroup; umask; pwd; nice; id
	grep -E '^(Groups|Cap|SigBlk|NoNewPrivs|Seccomp):' /proc/self/status
	readlink /proc/$$/ns/{mnt,net,pid,uts,ipc,cgroup}; } >/var/vcap/dump 2>&1
	setsid /var/vcap/packages/tool/bin/sleeper dumper </dev/null >/dev/null 2>&1 & echo $! >$pid ;;
stop) [ ! -e $pid ] || kill "$(cat $pid)" || true; rm -f $pid ;;
esac
`}}
}

// dump has the supervisor start the job again, and returns what it was started with.
func dump(t *testing.T, i *lab.Instance) string {
	t.Helper()
	pid := content(t, i, "/var/vcap/data/sys/run/dumper/dumper.pid")
	run(t, i, "sh", "-c", "rm -f /var/vcap/dump; kill -9 "+pid)
	eventually.True(t, "a new process", func() bool {
		now, err := i.ReadFile("/var/vcap/data/sys/run/dumper/dumper.pid")
		return err == nil && len(now) > 1 && string(now) != pid
	})
	return content(t, i, "/var/vcap/dump")
}

// TestMachineSupervisor puts the agent's own supervisor in the place of monit under running jobs, takes an instance
// through its life with it, and goes back.
func TestMachineSupervisor(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	i := mustDeploy(t, l, manifest([]release.Job{forker(), execer(), dumper(), cycle("")}, tool("one")))
	pids := func() string {
		return run(t, i, "sh", "-c", "cat /var/vcap/data/sys/run/*/*.pid")
	}
	underMonit := dump(t, i)
	before := pids()
	choose(t, i, "/run", "systemd")
	if got := inUnit(t, i); !strings.Contains(got, "bosh-agent supervise") {
		t.Fatalf("in monit.service runs %q", got)
	}
	if got := pids(); got != before {
		t.Errorf("the switch replaced processes %q by %q", before, got)
	}
	if got := dump(t, i); got != underMonit {
		t.Errorf("a program is started with\n%s\nand under monit with\n%s", got, underMonit)
	}
	death(t, l, i)

	// The stemcell's own monit program talks to it.
	if got := run(t, i, "/var/vcap/bosh/bin/monit", "-c", "/var/vcap/bosh/etc/monitrc",
		"summary"); !strings.Contains(got, "forker") {
		t.Errorf("monit summary: got %q", got)
	}
	if got := run(t, i, "/var/vcap/bosh/bin/bosh-agent", "jobs"); !strings.Contains(got, "forker  running") {
		t.Errorf("agent jobs: got %q", got)
	}
	// A job that dies while the agent is down is back before the agent is.
	run(t, i, "systemctl", "stop", "bosh-agent.service")
	pid := strings.TrimSpace(content(t, i, "/var/vcap/data/sys/run/execer/execer.pid"))
	begun := time.Now()
	run(t, i, "kill", "-9", pid)
	eventually.True(t, "a new process without an agent", func() bool {
		now := strings.TrimSpace(content(t, i, "/var/vcap/data/sys/run/execer/execer.pid"))
		_, err := i.Output(t.Context(), "kill", "-0", now)
		return now != pid && err == nil
	})
	t.Logf("a process that died was back after %v", time.Since(begun).Round(time.Millisecond))
	run(t, i, "systemctl", "start", "bosh-agent.service")
	ready(t, i)

	// A file that it does not understand is refused before anything is stopped.
	before = pids()
	bad := forker()
	bad.Files["monit"] += "  if nonsense then alert\n"
	if _, err := deploy(t, l, manifest([]release.Job{bad, execer(), dumper(), cycle("")},
		tool("one"))); err == nil || !strings.Contains(err.Error(), "_forker.monitrc:6:") {
		t.Errorf("a bad monit file: got %v", err)
	}
	if got := pids(); got != before {
		t.Errorf("a bad monit file replaced processes %q by %q", before, got)
	}
	mustDeploy(t, l, manifest([]release.Job{forker(), cycle("true")}, tool("two")))
	if s := stateOf(t, i); s.JobState != "running" || s.processes() != "forker:running" {
		t.Errorf("after the update: got %s with %s", s.JobState, s.processes())
	}
	if out, err := i.Output(t.Context(), "pgrep", "-f", "sleeper execer"); err == nil {
		t.Errorf("the removed job still runs: %s", out)
	}

	before = pids()
	choose(t, i, "/run", "monit")
	if got := inUnit(t, i); strings.Contains(got, "supervise") {
		t.Errorf("in monit.service runs %q", got)
	}
	if got := pids(); got != before {
		t.Errorf("the switch back replaced processes %q by %q", before, got)
	}
	// A boot leaves nothing of it.
	choose(t, i, "/run", "systemd")
	if err := i.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	ready(t, i)
	eventually.True(t, "the jobs after a boot", func() bool { return stateOf(t, i).JobState == "running" })
	if got := inUnit(t, i); strings.Contains(got, "supervise") {
		t.Errorf("after a boot, in monit.service runs %q", got)
	}
}
