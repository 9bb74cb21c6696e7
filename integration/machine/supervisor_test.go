//go:build machine

package machine

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/lab"
	"cambium/lab/machine"
	"cambium/lab/release"
)

// choice is a drop-in for the agent's unit that names its supervisor: systemd, the agent's own, which the stemcell
// chooses, or monit.
const choice = "[Service]\nExecStart=\n" +
	"ExecStart=/var/vcap/bosh/bin/bosh-agent -P ubuntu -C /var/vcap/bosh/agent.json -M %s\n"

// supervisedLab makes a lab whose machines run jobs with a supervisor, monit or systemd, and have these files.
func supervisedLab(t *testing.T, supervisor string, files ...machine.File) *lab.Lab {
	t.Helper()
	return newLab(t, func(o *lab.Options) { o.VM = supervised(supervisor, files...) })
}

// supervised edits the description of a machine for supervisedLab.
func supervised(supervisor string, files ...machine.File) func(vm *lab.VM) {
	if supervisor != "systemd" {
		files = append(files, machine.File{Path: "/etc/systemd/system/bosh-agent.service.d/choice.conf", Mode: 0o644,
			Data: fmt.Appendf(nil, choice, supervisor)})
	}
	return func(vm *lab.VM) { vm.Files = append(vm.Files, files...) }
}

// choose has the agent of a running machine take a supervisor, until the next boot.
func choose(t *testing.T, i *lab.Instance, supervisor string) {
	t.Helper()
	run(t, i, "sh", "-c", `d=/run/systemd/system/bosh-agent.service.d; mkdir -p $d && printf '`+
		fmt.Sprintf(choice, supervisor)+`' >$d/choose.conf && systemctl daemon-reload && systemctl restart bosh-agent.service`)
	ready(t, i)
	eventually.True(t, "the jobs under "+supervisor, func() bool { return stateOf(t, i).JobState == "running" })
}

// inUnit is the program that runs inside monit's unit.
func inUnit(t *testing.T, i *lab.Instance) string {
	t.Helper()
	return run(t, i, "sh", "-c",
		`tr '\0' ' ' </proc/$(systemctl show --property=MainPID --value monit.service)/cmdline`)
}

// dumper writes what it was started with, and becomes a daemon. What monit 5.33 does differently from the stemcells'
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
	grep -E '^(Groups|Cap[A-Za-z]*|SigBlk|NoNewPrivs|Seccomp):' /proc/self/status
	readlink /proc/$$/ns/{mnt,net,pid,uts,ipc,cgroup}; } >/var/vcap/dump 2>&1
	setsid /var/vcap/packages/tool/bin/sleeper dumper </dev/null >/dev/null 2>&1 & echo $! >$pid ;;
stop) [ ! -e $pid ] || kill "$(cat $pid)" || true; rm -f $pid ;;
esac
`}}
}

// witness writes who else lives when it is told to end: the order of death at shutdown.
func witness() release.Job {
	return release.Job{Name: "witness", Files: release.Files{
		"monit": monitFile("witness"),
		"bin/ctl": `#!/bin/bash
pid=/var/vcap/sys/run/witness/witness.pid
case $1 in
start) setsid /var/vcap/jobs/witness/bin/witness </dev/null >/dev/null 2>&1 & echo $! >$pid ;;
stop) [ ! -e $pid ] || kill -9 "$(cat $pid)"; rm -f $pid ;;
esac
`,
		"bin/witness": `#!/bin/bash
trap '{ for p in "monit -I|monit supervise" "bosh-agent -P"; do pgrep -f "$p" >/dev/null && echo lives || echo ended; done
	cat /proc/1/comm; } >/var/vcap/witnessed; sync; exit' TERM
while :; do sleep 3600 & wait; done
`}}
}

// witnessed boots the machine, and returns what the witness saw.
func witnessed(t *testing.T, i *lab.Instance) string {
	t.Helper()
	if err := i.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	ready(t, i)
	eventually.True(t, "the jobs after a boot", func() bool { return stateOf(t, i).JobState == "running" })
	return content(t, i, "/var/vcap/witnessed")
}

// debians calls the monit program of Debian's package, as programs of stemcells that have a monit of their own.
func debians(t *testing.T, i *lab.Instance, words ...string) string {
	t.Helper()
	return run(t, i, append([]string{"/usr/bin/monit", "-c", "/var/vcap/bosh/etc/monitrc"}, words...)...)
}

// monitPrograms: the monit program of a package talks to the supervisor, and so does the agent's, which a shell finds
// first and which does not mind a bad file.
func monitPrograms(t *testing.T, i *lab.Instance) {
	t.Helper()
	if got := debians(t, i, "summary"); !strings.Contains(got, "'forker'                    running\n") {
		t.Errorf("monit summary: got %q", got)
	}
	debians(t, i, "reload", "forker")
	shell := func(command string) string {
		t.Helper()
		return run(t, i, "su", "-", "-c", command)
	}
	if got := shell("command -v monit && monit -V"); !strings.HasPrefix(got,
		"/usr/local/bin/monit\nThis is Monit version 5.2.5\n") {
		t.Errorf("in a login shell: got %q", got)
	}
	if got := shell("monit -I -V"); !strings.Contains(got, "This is Monit version 5.33") {
		t.Errorf("with -I: got %q", got)
	}
	run(t, i, "sh", "-c", "echo check nonsense >/var/vcap/monit/bad.monitrc")
	shell("monit reload whatever && ! monit -t && ! /usr/bin/monit -c /var/vcap/bosh/etc/monitrc summary")
	eventually.True(t, "the bad file", func() bool {
		got := shell("monit summary")
		return strings.Contains(got, "'bad'                       Invalid type\n") &&
			strings.Contains(got, "'forker'                    running\n")
	})
	if got := stateOf(t, i); got.JobState != "failing" || !strings.Contains(got.processes(), "bad:failing") {
		t.Errorf("with a bad file: got %s with %s", got.JobState, got.processes())
	}
	shell("rm /var/vcap/monit/bad.monitrc && monit reload && monit validate")
	eventually.True(t, "all well again", func() bool { return stateOf(t, i).JobState == "running" })
	if got := run(t, i, "/var/vcap/bosh/bin/bosh-agent", "jobs"); !strings.Contains(got, "forker   running") {
		t.Errorf("agent jobs: got %q", got)
	}
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

// TestMachineSupervisor puts the agent's own supervisor in place of monit under running jobs, takes an instance
// through its life with it, and goes back.
func TestMachineSupervisor(t *testing.T) {
	t.Parallel()
	l := supervisedLab(t, "monit")
	i := mustDeploy(t, l, manifest([]release.Job{forker(), execer(), dumper(), witness(), cycle("")}, tool("one")))
	pids := func() string {
		return run(t, i, "sh", "-c", "cat /var/vcap/data/sys/run/*/*.pid")
	}
	// What is not of a job is carried over, too.
	run(t, i, "sh", "-c", "echo check file extra path /etc/hosts >/var/vcap/monit/extra.monitrc")
	order := witnessed(t, i)
	underMonit := dump(t, i)
	before := pids()
	debians(t, i, "unmonitor", "extra")
	eventually.True(t, "extra is not monitored", func() bool { return unmonitored(t, i) })
	choose(t, i, "systemd")
	if !unmonitored(t, i) {
		t.Error("the switch has extra monitored")
	}
	if got := inUnit(t, i); !strings.Contains(got, "/run/cambium/bin/monit supervise") {
		t.Fatalf("in monit.service runs %q", got)
	}
	if got := pids(); got != before {
		t.Errorf("the switch replaced processes %q by %q", before, got)
	}
	if got := dump(t, i); got != underMonit {
		t.Errorf("a program is started with\n%s\nand under monit with\n%s", got, underMonit)
	}
	death(t, l, i)

	monitPrograms(t, i)
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
	if _, err := deploy(t, l, manifest([]release.Job{bad, execer(), dumper(), witness(), cycle("")},
		tool("one"))); err == nil || !strings.Contains(err.Error(), "_forker.monitrc:6:") {
		t.Errorf("a bad monit file: got %v", err)
	}
	if got := pids(); got != before {
		t.Errorf("a bad monit file replaced processes %q by %q", before, got)
	}
	mustDeploy(t, l, manifest([]release.Job{forker(), witness(), cycle("true")}, tool("two")))
	if s := stateOf(t, i); s.JobState != "running" || s.processes() != "forker:running witness:running" {
		t.Errorf("after the update: got %s with %s", s.JobState, s.processes())
	}
	if out, err := i.Output(t.Context(), "pgrep", "-f", "sleeper execer"); err == nil {
		t.Errorf("the removed job still runs: %s", out)
	}

	before = pids()
	debians(t, i, "monitor", "extra")
	choose(t, i, "monit")
	debians(t, i, "monitor", "extra") // as its own state file says
	choose(t, i, "systemd")
	debians(t, i, "unmonitor", "extra")
	choose(t, i, "monit")
	eventually.True(t, "extra is not monitored", func() bool { return unmonitored(t, i) })
	if got := inUnit(t, i); strings.Contains(got, "supervise") {
		t.Errorf("in monit.service runs %q", got)
	}
	if got := pids(); got != before {
		t.Errorf("the switch back replaced processes %q by %q", before, got)
	}
	// A boot leaves nothing of it, and in the end everything went down in the same order.
	choose(t, i, "systemd")
	if got := witnessed(t, i); got != order {
		t.Errorf("at shutdown a process sees\n%s\nand under monit\n%s", got, order)
	}
	if got := inUnit(t, i); strings.Contains(got, "supervise") {
		t.Errorf("after a boot, in monit.service runs %q", got)
	}
}

// unmonitored reports whether the service extra is not monitored, with either supervisor.
func unmonitored(t *testing.T, i *lab.Instance) bool {
	t.Helper()
	_, rest, _ := strings.Cut(debians(t, i, "summary"), "extra")
	line, _, _ := strings.Cut(rest, "\n")
	return strings.Contains(strings.ToLower(line), "not monitored")
}
