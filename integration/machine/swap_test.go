//go:build machine && nightly

package machine

import (
	"os"
	"strings"
	"testing"

	"cambium/internal/eventually"
	"cambium/lab"
	"cambium/lab/labtest"
	"cambium/lab/machine"
	"cambium/lab/release"
)

// swapThereAndBack swaps this agent into a machine with upstream's agent and a running job, boots it, and swaps it out again.
func swapThereAndBack(t *testing.T, s lookAlike) {
	old, ours := labtest.Baseline(t), labtest.Agent(t)
	l := newLab(t, func(o *lab.Options) { o.Agent, o.VM = old, s.vm(t) })
	i := mustDeploy(t, l, manifest([]release.Job{forker()}, tool("one")))
	for path, from := range map[string]string{"/root/swap": "../../stemcell-assets/swap", "/root/agent": ours} {
		data, err := os.ReadFile(from)
		if err == nil {
			err = i.WriteFile(machine.File{Path: path, Data: data, Mode: 0o755})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	running := func(when string) {
		t.Helper()
		ready(t, i)
		pid := strings.TrimSpace(run(t, i, s.pid...))
		if same := run(t, i, "sh", "-c", "cmp /proc/"+pid+"/exe /var/vcap/bosh/bin/bosh-agent && echo same"); same != "same\n" {
			t.Errorf("%s: another program runs: %s", when, same)
		}
		eventually.True(t, "the job", func() bool { return stateOf(t, i).JobState == "running" })
	}
	job := func() string { return run(t, i, "cat", "/var/vcap/sys/run/forker/forker.pid") }
	before := job()
	for _, change := range []struct{ name, argument string }{{"there", "/root/agent"}, {"back", "--back"}} {
		run(t, i, "/root/swap", "/", change.argument)
		if got := run(t, i, "systemctl", "show", "-P", "ExecStart", "monit"); strings.Contains(got, "supervise") {
			t.Errorf("%s: monit.service starts %s", change.name, got)
		}
		run(t, i, s.restart...)
		running(change.name)
		if now := job(); now != before {
			t.Errorf("%s: the job's process %q became %q", change.name, before, now)
		}
		if err := i.Reboot(t.Context()); err != nil {
			t.Fatal(err)
		}
		running(change.name + ", booted")
		before = job()
		if change.name == "there" {
			asWanted(t, i, "swapped, and booted")
			if log := logsOf(t, l, i, "agent")["./"+s.log]; !strings.Contains(log, "agent starting") {
				t.Errorf("%s of the agent's logs does not hold its start: %.500q", s.log, log)
			}
		}
		if s.own == nil {
			continue
		}
		// The old agent finds the jobs under this one's supervisor, until it boots.
		if change.name == "there" {
			run(t, i, s.own...)
			running("under the own supervisor")
			if got := inUnit(t, i); !strings.Contains(got, "supervise") {
				t.Errorf("in monit.service runs %q", got)
			}
		} else if got := inUnit(t, i) + run(t, i, "sh", "-c",
			"ls -d /run/cambium /run/systemd/system/monit.service.d 2>/dev/null; true"); strings.Contains(got, "supervise") ||
			strings.Contains(got, "/run/") {
			t.Errorf("after a boot with the old agent: got %q", got)
		}
	}
}

// TestNightlySwap follows docs/stemcells.md on machines that look like jammy and noble; see swapThereAndBack.
// TestMachineTakeover is about this project's own unit.
func TestNightlySwap(t *testing.T) {
	t.Run("jammy", func(t *testing.T) { swapThereAndBack(t, jammy(t)) })
	t.Run("noble", func(t *testing.T) { swapThereAndBack(t, noble()) })
}

// TestNightlyAgentLog: the agent's log is in `bosh logs --agent` under one name, whichever way the installer was told to
// log.
func TestNightlyAgentLog(t *testing.T) {
	l := newLab(t)
	i := start(t, l, lab.VM{Ephemeral: 2 * lab.GiB})
	ready(t, i)
	logs := logsOf(t, l, i, "agent")
	if !strings.Contains(logs["./current"], "agent starting") {
		t.Errorf("logged to the journal: got %.500q", logs)
	}
	dropIn, err := os.ReadFile("../../stemcell-assets/log/file.conf")
	if err != nil {
		t.Fatal(err)
	}
	run(t, i, "mkdir", "-p", "/etc/systemd/system/bosh-agent.service.d")
	if err := i.WriteFile(machine.File{Path: "/etc/systemd/system/bosh-agent.service.d/log.conf", Data: dropIn,
		Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	run(t, i, "systemctl", "daemon-reload")
	run(t, i, "systemctl", "restart", "bosh-agent")
	ready(t, i)
	logs = logsOf(t, l, i, "agent")
	if _, journal := logs["./journal.log"]; journal || !strings.Contains(logs["./current"], "agent starting") {
		t.Errorf("logged to a file: got %.500q", logs)
	}
}
