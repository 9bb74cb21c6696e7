//go:build machine

package machine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/lab"
	"cambium/lab/director"
	"cambium/lab/labtest"
	"cambium/lab/machine"
	"cambium/lab/release"
)

// brokenAgent names the file that makes this program an agent which fails in the way that the file says. In all but its
// run it is /root/agent.
const brokenAgent = "/root/broken-agent"

func init() {
	way, err := os.ReadFile(brokenAgent)
	if err != nil || os.Getenv(tokenProxy) != "" {
		return
	}
	if len(os.Args) < 2 || os.Args[1] != "-P" {
		_ = syscall.Exec("/root/agent", os.Args, os.Environ())
		os.Exit(126)
	}
	switch string(way) {
	case "crashes":
		os.Exit(3)
	case "hangs":
		time.Sleep(time.Hour)
	}
	os.Exit(126)
}

const (
	trialDir  = "/var/vcap/data/cambium-agent/"
	agentPath = "/var/vcap/bosh/bin/bosh-agent"
)

// trialRelease returns jobs and package of the release cambium-agent, rendered and compiled.
func trialRelease(t *testing.T) (jobs []release.Job, agent release.Package) {
	t.Helper()
	const source = "../../release/"
	read := func(path string) string {
		t.Helper()
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	for job, script := range map[string]string{"cambium-agent": "pre-start", "try": "run", "keep": "run", "status": "run",
		"back": "run"} {
		text := read(source + "jobs/" + job + "/templates/" + script)
		if _, shell, found := strings.Cut(text, "-%>\n"); found {
			text = strings.ReplaceAll(shell, "<%= time %>", "45")
		}
		jobs = append(jobs, release.Job{Name: job, Files: release.Files{"bin/" + script: text}})
	}
	slices.SortFunc(jobs, func(a, b release.Job) int { return strings.Compare(a.Name, b.Name) })
	return jobs, release.Package{Name: "cambium-agent",
		Files: release.Files{"bin/errand": read(source + "src/cambium-agent/errand"),
			"bin/swap": read("../../stemcell-assets/swap"), "bin/agent": read(labtest.Agent(t))}}
}

// trialed is a machine with the stemcell's agent, of which /root/old is a copy, and the release deployed.
type trialed struct {
	t     *testing.T
	l     *lab.Lab
	i     *lab.Instance
	alike lookAlike
	m     release.Manifest
}

func newTrialed(t *testing.T, alike lookAlike) *trialed {
	t.Helper()
	old := labtest.Baseline(t)
	l := newLab(t, func(o *lab.Options) { o.Agent, o.VM = old, alike.vm(t) })
	jobs, agent := trialRelease(t)
	m := manifest(append(jobs, forker()), tool("one"), agent)
	i := mustDeploy(t, l, m)
	run(t, i, "cp", agentPath, "/root/old")
	return &trialed{t, l, i, alike, m}
}

type errandResult struct {
	Stdout, Stderr string
	ExitCode       int `json:"exit_code"`
}

// errand runs one as a Director does.
func (x *trialed) errand(name string) (r errandResult) {
	x.t.Helper()
	if err := x.i.Agent.Into(x.t.Context(), &r, "run_errand", name); err != nil {
		x.t.Fatalf("errand %s: %v", name, err)
	}
	x.t.Logf("errand %s: %+v", name, r)
	return r
}

func (x *trialed) refused(name, want string) {
	x.t.Helper()
	if r := x.errand(name); r.ExitCode != 1 || !strings.Contains(r.Stderr, want) {
		x.t.Errorf("errand %s: %+v, want a refusal with %q", name, r, want)
	}
}

func (x *trialed) done(name, want string) {
	x.t.Helper()
	if r := x.errand(name); r.ExitCode != 0 || !strings.Contains(r.Stdout, want) {
		x.t.Fatalf("errand %s: %+v, want %q", name, r, want)
	}
}

// record reads the outcome, as scripts do.
func (x *trialed) record() (r struct{ State, Reason string }) {
	x.t.Helper()
	if data, err := x.i.ReadFile("/var/vcap/instance/agent_trial.json"); err == nil {
		if err := json.Unmarshal(data, &r); err != nil {
			x.t.Fatal(err)
		}
	}
	return r
}

// becomes waits for an outcome and for the alert about it.
func (x *trialed) becomes(state, reason string, since time.Time) {
	x.t.Helper()
	eventually.Within(x.t, 4*time.Minute, "the trial: "+state, func() error {
		if r := x.record(); r.State != state || !strings.Contains(r.Reason, reason) {
			return fmt.Errorf("it is %+v", r)
		}
		return nil
	})
	alert, err := x.l.Monitor.Wait(x.t.Context(), since, func(e director.Event) bool {
		return e.Kind == "alert" && e.Agent == x.i.AgentID && bytes.Contains(e.Body, []byte(state))
	})
	if err != nil || !bytes.Contains(alert.Body, []byte("bosh-agent")) {
		x.t.Errorf("the alert is %s (%v)", alert.Body, err)
	}
	eventually.True(x.t, "the end of the trial's process", func() bool { return x.unlocked() })
}

// unlocked reports that no operation is under way.
func (x *trialed) unlocked() bool {
	return run(x.t, x.i, "sh", "-c", "flock -n "+trialDir+"lock true && echo free || true") == "free\n"
}

// runs checks which agent runs, and that it serves.
func (x *trialed) runs(binary string) {
	x.t.Helper()
	ready(x.t, x.i)
	pid := strings.TrimSpace(run(x.t, x.i, x.alike.pid...))
	if got := run(x.t, x.i, "sh", "-c", "cmp /proc/"+pid+"/exe "+binary+" && echo same || true"); got != "same\n" {
		x.t.Errorf("process %s does not run %s: %s", pid, binary, got)
	}
	eventually.True(x.t, "the job", func() bool { return stateOf(x.t, x.i).JobState == "running" })
}

// job returns the process of the job.
func (x *trialed) job() string {
	x.t.Helper()
	return run(x.t, x.i, "cat", "/var/vcap/sys/run/forker/forker.pid")
}

// TestMachineTrial: the way of a canary until a reboot, by the errands of the release.
func TestMachineTrial(t *testing.T) {
	t.Parallel()
	tryUntilReboot(t, noble())
}

// TestMachineTrialKept: a canary that is kept and then given up, by the errands of the release.
func TestMachineTrialKept(t *testing.T) {
	t.Parallel()
	keepAndGoBack(t, noble())
}

// tryUntilReboot starts a trial on a machine that looks like a stock stemcell's, and reboots the machine to end it.
func tryUntilReboot(t *testing.T, alike lookAlike) {
	x := newTrialed(t, alike)
	before := x.job()
	x.done("status", "none")
	x.refused("back", "nothing to go back from")
	x.refused("keep", "run try first")
	x.runs("/root/old")

	began := time.Now()
	x.done("try", "begins 30s after")
	x.refused("try", "under way")
	x.refused("back", "under way")
	x.done("status", "scheduled")
	x.becomes("confirmed", "", began)
	x.runs(trialDir + "agent")
	if now := x.job(); now != before {
		t.Errorf("the job's process %q became %q", before, now)
	}
	x.done("status", "confirmed")
	x.refused("try", "run back first")
	// A Director's flow, which the new agent serves: an update, with the release itself in it.
	x.m.Groups[0].PersistentDisk = 1024
	mustDeploy(t, x.l, x.m)
	x.runs(trialDir + "agent")

	if err := x.i.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	x.runs("/root/old")
	x.done("status", "a reboot has brought the stemcell's agent back")
	x.done("try", "begins 30s after")
}

// keepAndGoBack starts a trial on a machine that looks like a stock stemcell's, keeps the agent, and then goes back to
// the old one.
func keepAndGoBack(t *testing.T, alike lookAlike) {
	x := newTrialed(t, alike)
	began := time.Now()
	x.done("try", "begins 30s after")
	x.becomes("confirmed", "", began)
	x.done("keep", "kept")
	x.refused("keep", "kept already")
	x.runs(trialDir + "agent")
	if err := x.i.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	x.runs(trialDir + "agent")

	before := x.job()
	began = time.Now()
	x.done("back", "begins 30s after")
	x.becomes("ended", "on request", began)
	x.runs("/root/old")
	if now := x.job(); now != before {
		t.Errorf("the job's process %q became %q", before, now)
	}
	if got := run(t, x.i, "sh", "-c", "ls -d /var/vcap/instance/agent_version /var/vcap/bosh/bin/*swap* 2>/dev/null; "+
		"findmnt "+agentPath+" || true"); got != "" {
		t.Errorf("left after the way back: %s", got)
	}
}

// TestMachineTrialOfABadAgent: whatever is wrong with the new agent, the old one serves again.
func TestMachineTrialOfABadAgent(t *testing.T) {
	t.Parallel()
	tryBadAgents(t, noble())
}

// tryBadAgents tries agents and machines that cannot do, on a machine that looks like a stock stemcell's.
func tryBadAgents(t *testing.T, alike lookAlike) {
	x := newTrialed(t, alike)
	run(t, x.i, "cp", trialDir+"agent", "/root/agent")
	x.badBinaries()
	x.badMachine()
	broken, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := x.i.WriteFile(machine.File{Path: trialDir + "agent", Data: broken, Mode: 0o755}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ way, reason string }{{"crashes", "has ended"}, {"hangs", "it hangs"}} {
		if err := x.i.WriteFile(machine.File{Path: brokenAgent, Data: []byte(c.way), Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		run(t, x.i, "/root/agent", "trial", "try", "--delay", "0s", "--time", "15s")
		x.becomes("failed", c.reason, began)
		x.runs("/root/old")
		if r := x.errand("status"); r.ExitCode != 1 || !strings.Contains(r.Stdout, c.reason) {
			t.Errorf("an agent that %s: status says %+v", c.way, r)
		}
	}
	run(t, x.i, "sh", "-ec", "rm "+brokenAgent+"; cp /root/agent "+trialDir+"new; mv "+trialDir+"new "+trialDir+"agent")
	// The Director's server is away while the new agent is tried.
	x.l.Bus.Stop()
	began := time.Now()
	run(t, x.i, "/root/agent", "trial", "try", "--delay", "0s", "--time", "15s")
	eventually.Within(t, 4*time.Minute, "the end of the trial", func() error {
		if r := x.record(); r.State != "failed" || !strings.Contains(r.Reason, "did not reach the bus") {
			return fmt.Errorf("it is %+v", r)
		}
		return nil
	})
	if err := x.l.Bus.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	x.becomes("failed", "did not reach the bus", began)
	x.runs("/root/old")
}

// badBinaries: what is wrong with the file is said before anything is changed.
func (x *trialed) badBinaries() {
	x.t.Helper()
	agent, err := x.i.ReadFile(trialDir + "agent")
	if err != nil {
		x.t.Fatal(err)
	}
	arm := bytes.Clone(agent)
	arm[18] = 0xb7
	for _, c := range []struct {
		data []byte
		want string
	}{{nil, "does not run on this machine"}, {[]byte("#!/bin/sh\nexit 1\n"), "does not run on this machine"},
		{arm, "does not run on this machine"}, {agent[:len(agent)/2], "does not run"}} {
		if err := x.i.WriteFile(machine.File{Path: trialDir + "agent", Data: c.data, Mode: 0o755}); err != nil {
			x.t.Fatal(err)
		}
		x.refused("try", c.want)
	}
	for name, want := range map[string]string{"arm": "different architectures", "text": "not a program for Linux"} {
		data := map[string][]byte{"arm": arm, "text": []byte("#!/bin/sh\nexit 0\n")}[name]
		if err := x.i.WriteFile(machine.File{Path: trialDir + "agent", Data: data, Mode: 0o755}); err != nil {
			x.t.Fatal(err)
		}
		x.fails(want)
	}
	run(x.t, x.i, "mv", trialDir+"errand", "/root/errand")
	x.refused("try", "deploy the job cambium-agent to this VM first")
	run(x.t, x.i, "mv", "/root/errand", trialDir+"errand")
	run(x.t, x.i, "rm", trialDir+"agent")
	x.fails("is missing: deploy the job cambium-agent to this VM first")
	if err := x.i.WriteFile(machine.File{Path: trialDir + "agent", Data: agent, Mode: 0o755}); err != nil {
		x.t.Fatal(err)
	}
}

// fails runs a trial that must be refused.
func (x *trialed) fails(want string) {
	x.t.Helper()
	if got := run(x.t, x.i, "sh", "-c", "/root/agent trial try 2>&1 && echo done || true"); !strings.Contains(got,
		want) || strings.Contains(got, "done") {
		x.t.Errorf("got %q, want a refusal with %q", got, want)
	}
}

// badMachine: a machine in the wrong state is left as it is.
func (x *trialed) badMachine() {
	x.t.Helper()
	const fill = "/var/vcap/data/fill"
	run(x.t, x.i, "sh", "-c", "fallocate -l $(($(stat -fc '%f*%S' /var/vcap/data) - 23068672)) "+fill)
	x.fails("MiB free")
	if got := run(x.t, x.i, "sh", "-c", "/var/vcap/jobs/cambium-agent/bin/pre-start 2>&1 || echo failed; "+
		"cmp /root/agent "+trialDir+"agent && ls -A "+trialDir); !strings.Contains(got, "No space left") ||
		!strings.Contains(got, "failed\n") || strings.Contains(got, "\n.new") {
		x.t.Errorf("pre-start on a full disk: %s", got)
	}
	run(x.t, x.i, "rm", fill)
	run(x.t, x.i, "sh", "-c", `echo '{"1": {"TaskID": "1", "Method": "update_settings"}}' >/var/vcap/bosh/tasks.json`)
	x.fails("the agent works on update_settings")
	run(x.t, x.i, "rm", "/var/vcap/bosh/tasks.json")
	run(x.t, x.i, "sh", "-ec", "d=/var/vcap/store_migration_target; mkdir -p $d; mount -t tmpfs none $d")
	x.fails("being migrated")
	run(x.t, x.i, "umount", "/var/vcap/store_migration_target")
}

// TestMachineAgentRelease: the released bosh CLI makes the release, and its templates refuse values that make no sense.
func TestMachineAgentRelease(t *testing.T) {
	t.Parallel()
	cli := boshCLI(t)
	dir := filepath.Join(t.TempDir(), "release")
	if out, err := exec.CommandContext(t.Context(), "../../scripts/agent-release", dir, labtest.Agent(t),
		labtest.Agent(t)).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	tarball := filepath.Join(t.TempDir(), "agent.tgz")
	for _, args := range [][]string{{"create-release", "--dir", dir, "--force", "--version", "1.2.3", "--tarball",
		tarball}, {"inspect-local-release", tarball}} {
		c := exec.CommandContext(t.Context(), cli, append([]string{"--non-interactive"}, args...)...)
		c.Env = append(os.Environ(), "HOME="+t.TempDir())
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%q: %v: %s", args, err, out)
		}
		for _, part := range []string{"cambium-agent/", "try/", "keep/", "status/", "back/"} {
			if !strings.Contains(string(out), part) {
				t.Errorf("%q does not list %s: %s", args, part, out)
			}
		}
	}
	// A Director renders templates so.
	const render = `require "erb"; value = eval(ARGV[1]); define_method(:p) { |name| value }
print ERB.new(File.read(ARGV[0]), trim_mode: "-").result(binding)`
	for value, want := range map[string]string{"45": "try --time 45s\n", "600": "try --time 600s\n", "5": "",
		"100000": "", `"45"`: "", `"; reboot"`: "", "nil": "", "4.5": ""} {
		c := exec.CommandContext(t.Context(), "ruby", "-e", render, filepath.Join(dir, "jobs/try/templates/run"), value)
		out, err := c.CombinedOutput()
		if (err == nil) != (want != "") || want != "" && !strings.HasSuffix(string(out), want) ||
			want == "" && !strings.Contains(string(out), "not a number of seconds from 10 to 1800") {
			t.Errorf("time: %s: %v: %s", value, err, out)
		}
	}
}
