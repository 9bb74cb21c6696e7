//go:build machine && nightly

package machine

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"cambium/internal/eventually"
	"cambium/lab"
	"cambium/lab/labtest"
	"cambium/lab/machine"
	"cambium/lab/release"
)

// lookAlike is a stemcell with upstream's agent, as far as agents can tell: it has the files, the service manager and the
// log of one of upstream's lines over the lab's Debian.
type lookAlike struct {
	// manager is the service manager named in agent.json.
	manager string
	files   []machine.File
	// restart restarts the agent, pid prints its process.
	restart, pid []string
	// log is the member of the agent's logs that holds it.
	log string
	// own has this agent run the jobs with its own supervisor; nil where it cannot.
	own []string
}

func script(path, body string) machine.File {
	return machine.File{Path: path, Mode: 0o755, Data: []byte("#!/bin/sh\n" + body + "\n")}
}

func textFile(path, content string) machine.File {
	return machine.File{Path: path, Mode: 0o644, Data: []byte(content)}
}

// jammy: systemd runs runit, which runs the agent, its log and monit.
func jammy(t *testing.T) lookAlike {
	t.Helper()
	const bin = "/var/vcap/bosh/bin/"
	files := []machine.File{
		// What the lab's installer has put there is not jammy's.
		textFile("/etc/systemd/system/bosh-agent.service.d/jammy.conf", "[Unit]\nConditionPathExists=!/etc/sv/agent\n"),
		textFile("/etc/systemd/system/monit.service", "[Service]\nExecStart=/bin/false\n"),
		textFile("/etc/systemd/system/multi-user.target.d/runit.conf", "[Unit]\nWants=runit.service\n"),
		textFile("/etc/systemd/system/runit.service", "[Unit]\nWants=monit-proxy.service\nAfter=sysinit.target dbus.socket\n[Service]\n"+
			"ExecStartPre="+bin+"make-group\nExecStartPre="+bin+"make-virtual\nExecStart=/usr/sbin/runsvdir-start\nRestart=always\nKillMode=process\n"),
		script("/usr/sbin/runsvdir-start", "mkdir -p /etc/service\nln -sfn /etc/sv/agent /etc/service/agent\nmountpoint -q /var/vcap/data/sys/run || rm -f /etc/service/monit\n"+
			"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\nexec env - PATH=$PATH runsvdir -P /etc/service"),
		script("/etc/sv/agent/run", "exec 2>&1\nexport PATH=/var/vcap/bosh/bin:$PATH\ncd /var/vcap/bosh\nexec nice -n -15 "+bin+"bosh-agent -P $(cat /var/vcap/bosh/etc/operating_system) -C /var/vcap/bosh/agent.json"),
		script("/etc/sv/agent/log/run", "exec svlogd -tt /var/vcap/bosh/log"),
		script("/etc/sv/monit/run", "exec 2>&1\nexec "+bin+"monit -I -c /var/vcap/bosh/etc/monitrc"),
		textFile("/etc/sv/monit/down", ""),
		script("/etc/sv/monit/log/run", "mkdir -p /var/vcap/monit/svlog\nexec svlogd -tt /var/vcap/monit/svlog"),
		script(bin+"monit", `exec /var/vcap/bosh/bin/monit-actual "$@"`),
		script(bin+"monit-actual", `exec /usr/bin/monit "$@"`),
		textFile("/var/vcap/bosh/etc/monit-access-helper.sh", ""),
		script("/usr/sbin/resolvconf", "mkdir -p /run/resolvconf\ncat /etc/resolvconf/resolv.conf.d/* >/run/resolvconf/resolv.conf"),
	}
	for _, program := range []string{"runsvdir", "runsv", "sv", "svlogd"} {
		from, err := exec.LookPath(program)
		if err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, machine.File{Path: "/usr/bin/" + program, Mode: 0o755, Data: data})
	}
	return lookAlike{files: files, restart: []string{"sv", "-w", "30", "restart", "agent"}, pid: []string{"cat", "/etc/service/agent/supervise/pid"}, log: "current"}
}

// noble: systemd runs the agent through a shell, without notifications or a watchdog, and monit.
func noble() lookAlike {
	return lookAlike{manager: "systemd", files: []machine.File{
		textFile("/etc/systemd/system/bosh-agent.service", `[Unit]
Wants=monit-proxy.service
After=network.target
[Service]
WorkingDirectory=/var/vcap/bosh
ExecStart=/bin/bash -c 'PATH=/var/vcap/bosh/bin:$PATH exec nice -n -15 /var/vcap/bosh/bin/bosh-agent -P $(cat /var/vcap/bosh/etc/operating_system) -C /var/vcap/bosh/agent.json'
Restart=always
KillMode=process
StandardOutput=journal
StandardError=journal
SyslogIdentifier=bosh-agent
[Install]
WantedBy=multi-user.target
Alias=agent.service
`)}, restart: []string{"systemctl", "restart", "bosh-agent"}, pid: []string{"systemctl", "show", "-P", "MainPID", "bosh-agent"}, log: "current",
		// The proxy has the port of stemcells' monit, which the supervisor serves by itself.
		own: []string{"sh", "-ec", `d=/run/systemd/system; mkdir -p $d/bosh-agent.service.d $d/monit-proxy.service.d
printf '[Unit]\nConditionPathExists=/absent\n' >$d/monit-proxy.service.d/own.conf
printf '` + fmt.Sprintf(choice, "systemd") + `' >$d/bosh-agent.service.d/own.conf
systemctl daemon-reload; systemctl stop monit-proxy; systemctl restart bosh-agent
rm $d/bosh-agent.service.d/own.conf; systemctl daemon-reload`}}
}

// vm makes a machine of the lab one of that stemcell.
func (s lookAlike) vm(t *testing.T) func(*lab.VM) {
	t.Helper()
	old := oldStemcell(t)
	firewall := "false" // jammy's keeps others away from monit by itself
	if s.manager == "" {
		firewall = "true"
	}
	return func(vm *lab.VM) {
		old(vm)
		vm.Files = append(vm.Files, s.files...)
		vm.AgentJSON = []byte(`{"Platform": {"Linux": {"PartitionerType": "parted", "ServiceManager": "` + s.manager + `", "UseMonitIptablesFirewall": ` + firewall + `}},
"Infrastructure": {"Settings": {"Sources": [{"Type": "File", "SettingsPath": "/var/vcap/bosh/agent-bootstrap-env.json"}], "UseServerName": true, "UseRegistry": true}}}`)
	}
}

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
	if err := i.WriteFile(machine.File{Path: "/etc/systemd/system/bosh-agent.service.d/log.conf", Data: dropIn, Mode: 0o644}); err != nil {
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
