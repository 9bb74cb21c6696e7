//go:build machine && soak

package machine

import (
	"testing"

	"cambium/integration/lab/machine"
)

// TestMachineSoakSwap follows docs/swap.md on machines that look like jammy and noble; see swapThereAndBack.
// TestMachineTakeover is about this project's own unit.
func TestMachineSoakSwap(t *testing.T) {
	t.Run("jammy", func(t *testing.T) { swapThereAndBack(t, jammy(t)) })
	t.Run("noble", func(t *testing.T) { swapThereAndBack(t, noble()) })
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
`)}, restart: []string{"systemctl", "restart", "bosh-agent"}, pid: []string{"systemctl", "show", "-P", "MainPID", "bosh-agent"}, log: "journal.log"}
}
