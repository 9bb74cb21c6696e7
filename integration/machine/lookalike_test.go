//go:build machine

package machine

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"cambium/lab"
	"cambium/lab/machine"
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
		textFile("/etc/systemd/system/runit.service",
			"[Unit]\nWants=monit-proxy.service\nAfter=sysinit.target dbus.socket\n[Service]\n"+
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
	return lookAlike{files: files, restart: []string{"sv", "-w", "30", "restart", "agent"},
		pid: []string{"cat", "/etc/service/agent/supervise/pid"}, log: "current"}
}

const nobleStart = `ExecStart=/bin/bash -c 'PATH=/var/vcap/bosh/bin:$PATH exec nice -n -15 /var/vcap/bosh/bin/bosh-agent -P $(cat /var/vcap/bosh/etc/operating_system) -C /var/vcap/bosh/agent.json'
`

// noble: systemd runs the agent through a shell, without notifications or a watchdog, and monit.
func noble() lookAlike {
	return lookAlike{manager: "systemd", files: []machine.File{
		textFile("/etc/systemd/system/bosh-agent.service", `[Unit]
Wants=monit-proxy.service
After=network.target
[Service]
WorkingDirectory=/var/vcap/bosh
`+nobleStart+`Restart=always
KillMode=process
StandardOutput=journal
StandardError=journal
SyslogIdentifier=bosh-agent
[Install]
WantedBy=multi-user.target
Alias=agent.service
`),
		// What the lab's installer has put there is its own supervisor.
		script("/var/vcap/bosh/bin/monit", `exec /usr/bin/monit "$@"`),
		// In place of the baseline's on other machines.
		textFile("/etc/systemd/system/bosh-agent.service.d/noble.conf", "[Service]\nExecStart=\n"+nobleStart)},
		restart: []string{"systemctl", "restart", "bosh-agent"},
		pid:     []string{"systemctl", "show", "-P", "MainPID", "bosh-agent"}, log: "current",
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
