//go:build machine

package machine

import (
	"strings"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/lab"
	"cambium/lab/machine"
	"cambium/lab/release"
)

// Files on the root disk that rule the scripts of scripted: pre-start hangs or fails, or post-start hangs, while they
// exist.
const hangs, fails, hangsLate = "/var/vcap/hangs", "/var/vcap/fails", "/var/vcap/hangs-late"

// scripted is a job whose scripts and process leave marks in the trace. Two runs of a script at once leave "twice".
func scripted() release.Job {
	job := forker()
	job.Files["bin/ctl"] = strings.Replace(job.Files["bin/ctl"], "\nset -eu\n",
		"\nset -eu\n[ $1 = stop ] || echo start >>"+trace+"\n", 1)
	job.Files["bin/pre-start"] = `#!/bin/bash
exec 9>/var/vcap/pre-start.lock
flock -n 9 || echo twice >>` + trace + `
echo pre-start begins >>` + trace + `
while [ -e ` + hangs + ` ]; do sleep 0.1; done
[ ! -e ` + fails + ` ] || { echo no peer >&2; exit 3; }
echo pre-start ends >>` + trace + `
`
	job.Files["bin/post-start"] = "#!/bin/bash\necho post-start >>" + trace + "\nwhile [ -e " + hangsLate + " ]; do sleep 0.1; done\n"
	return job
}

// TestMachineScriptsOnBoot: after a boot of the machine, jobs start as a deploy starts them.
func TestMachineScriptsOnBoot(t *testing.T) {
	t.Parallel()
	scriptsOnBoot(t, "systemd")
}

func scriptsOnBoot(t *testing.T, supervisor string) {
	l := supervisedLab(t, supervisor)
	i := mustDeploy(t, l, manifest([]release.Job{scripted()}, tool("1")))
	const whole = "pre-start begins,pre-start ends,start,post-start"
	state := func() string { return jobStateOf(t, t.Context(), i) }
	traced := func() string {
		return strings.ReplaceAll(strings.TrimSpace(content(t, i, trace)), "\n", ",")
	}
	await := func(what, want string) {
		t.Helper()
		eventually.True(t, what, func() bool { return traced() == want })
	}
	running := func() {
		t.Helper()
		eventually.True(t, "the job to run", func() bool { return state() == "running" })
	}
	started := func() {
		t.Helper()
		eventually.True(t, "the end of the start", func() bool {
			return !strings.Contains(content(t, i, "/var/vcap/monit/start_requested.json"), "pending")
		})
	}
	put := func(paths ...string) {
		t.Helper()
		for _, path := range append(paths, trace) {
			if err := i.WriteFile(machine.File{Path: path, Mode: 0o644}); err != nil {
				t.Fatal(err)
			}
		}
	}
	cut := func() {
		t.Helper()
		cutPower(t, i)
		if err := i.Agent.WaitReady(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	do := func(method string, arguments ...any) {
		t.Helper()
		if _, err := i.Agent.Do(t.Context(), method, arguments...); err != nil {
			t.Fatalf("%s: %v", method, err)
		}
	}

	// By default a boot runs no script.
	put()
	cut()
	running()
	if got := traced(); got != "start" {
		t.Errorf("by default: got %q, want the process alone", got)
	}
	configure(t, i, "Platform.Linux.ScriptsOnBoot", true)
	run(t, i, "systemctl", "restart", "bosh-agent")
	ready(t, i)
	running()
	if got := traced(); got != "start" {
		t.Errorf("after a restart of the agent: got %q, want no script", got)
	}

	// A boot repeats what a power cut interrupted.
	put(hangs)
	cut()
	await("the first boot's script", "pre-start begins")
	if got := settledState(t, t.Context(), i); got != "starting" {
		t.Errorf("while pre-start runs: got %s, want starting", got)
	}
	put()
	cut()
	await("the second boot's script", "pre-start begins")
	run(t, i, "rm", hangs)
	await("all scripts", whole)
	started()
	run(t, i, "systemctl", "restart", "bosh-agent")
	ready(t, i)
	running()
	if got := traced(); got != whole {
		t.Errorf("after a restart of the agent: got %q, want no script again", got)
	}

	// The next process goes on after a restart of the agent, which ends the script, and after a crash, which does not.
	put(hangs)
	cut()
	await("the boot's script", "pre-start begins")
	run(t, i, "systemctl", "restart", "bosh-agent")
	await("the script of the next process", "pre-start begins,pre-start begins")
	run(t, i, "systemctl", "kill", "-s", "KILL", "--kill-who=main", "bosh-agent")
	ready(t, i)
	if got := settledState(t, t.Context(), i); got != "starting" {
		t.Errorf("while the script of a killed agent runs: got %s, want starting", got)
	}
	run(t, i, "rm", hangs)
	await("all scripts", "pre-start begins,pre-start begins,pre-start ends,"+whole)
	running()

	put(hangsLate)
	cut()
	await("the boot's post-start script", whole)
	run(t, i, "systemctl", "restart", "bosh-agent")
	await("the post-start script of the next process", whole+",post-start")
	run(t, i, "rm", hangsLate)
	started()

	// A failure withholds the start, and is repeated.
	put(fails)
	since := time.Now()
	cut()
	eventually.True(t, "a failure", func() bool { return state() == "failing" })
	awaitRoot(t, i, soon, "pre-start scripts failed", "/var/vcap/sys/log/forker/pre-start.stderr.log")
	eventually.True(t, "another try", func() bool { return strings.Count(traced(), "begins") > 1 })
	if got := traced(); strings.Contains(got, ",start") {
		t.Errorf("after failures: got %q, want no start", got)
	}
	if n := scriptAlerts(l, i, since); n != 1 {
		t.Errorf("got %d alerts, want one", n)
	}
	run(t, i, "rm", fails)
	eventually.True(t, "the start", func() bool { return strings.HasSuffix(traced(), whole) })
	running()

	// The Director's request ends the script of the boot, and runs its own afterwards.
	put(hangs)
	cut()
	await("the boot's script", "pre-start begins")
	run(t, i, "sh", "-c", "(sleep 1; rm "+hangs+") >/dev/null 2>&1 &")
	do("run_script", "pre-start", map[string]any{})
	do("start")
	running()
	if got := traced(); got != "pre-start begins,pre-start begins,pre-start ends,start" {
		t.Errorf("the Director's start during that of the boot: got %q", got)
	}

	// What the Director has stopped stays down.
	do("stop")
	put()
	cut()
	if got := settledState(t, t.Context(), i); got != "stopped" || traced() != "" {
		t.Errorf("after stop: got %s and %q", got, traced())
	}
}

// scriptAlerts counts the alerts about scripts.
func scriptAlerts(l *lab.Lab, i *lab.Instance, since time.Time) (n int) {
	for _, e := range l.Monitor.Events() {
		if e.Kind == "alert" && e.Agent == i.AgentID && e.Time.After(since) &&
			strings.Contains(string(e.Body), "failed after the boot") {
			n++
		}
	}
	return n
}
