//go:build machine

package machine

import (
	"slices"
	"strings"
	"testing"

	"cambium/internal/eventually"
	"cambium/internal/status"
	"cambium/internal/vcap"
	"cambium/lab"
	"cambium/lab/machine"
)

// TestMachineStopWhileBooting stops agents that wait for what never comes. Each ends by itself, long before systemd
// would kill it, and what it was and its verdict stay as they were.
func TestMachineStopWhileBooting(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	source := func(source string) []byte {
		return []byte(`{"Infrastructure":{"Settings":{"Sources":[` + source + `]}}}`)
	}
	hook := machine.File{Path: "/var/vcap/bosh/bin/bosh-agent-rc", Mode: 0o755, Data: []byte("#!/bin/sh\nsleep 9999\n")}
	for _, c := range []struct {
		name       string
		vm         lab.VM
		step, wait string // what it waits for, and in which step
		verdict    string // none unless the boot has failed
	}{
		{name: "NIC", vm: lab.VM{Ephemeral: lab.GiB, Edit: func(d lab.Document) {
			d.Set("networks.other", map[string]any{"type": "manual", "ip": "10.89.0.7", "netmask": "255.255.255.0",
				"mac": "02:00:00:00:be:ef"})
		}}, step: "network", wait: "no NIC has the hardware address "},
		{name: "lease", vm: lab.VM{Ephemeral: lab.GiB, Edit: func(d lab.Document) {
			d.Set("networks", map[string]any{"default": map[string]any{"type": "dynamic"}})
		}}, step: "network", wait: "an address from DHCP"},
		{name: "network for sources", vm: lab.VM{Ephemeral: lab.GiB, AgentJSON: source(
			`{"Type":"HTTP","URI":"http://169.254.169.254","UserDataPath":"/user-data"}`)},
			step: "settings", wait: "a network to reach the settings sources"},
		{name: "settings", vm: lab.VM{Ephemeral: lab.GiB, AgentJSON: source(
			`{"Type":"File","SettingsPath":"/nowhere/settings.json"}`)},
			step: "settings", wait: "/nowhere/settings.json"},
		{name: "hook", vm: lab.VM{Ephemeral: lab.GiB, Files: []machine.File{hook}}, step: "runtime-hook"},
		{name: "disk", vm: lab.VM{Edit: func(d lab.Document) { d.Set("disks.ephemeral", "/dev/nowhere") }},
			step: "ephemeral-disk", wait: "/dev/nowhere"},
		{name: "another try", vm: lab.VM{}, verdict: "ephemeral-disk: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			i := start(t, l, c.vm)
			eventually.True(t, "the agent to wait", func() bool {
				if _, err := i.Output(t.Context(), "test", "-e", vcap.RunDir.Status()); err != nil {
					return false // it has not started
				}
				d := agentStatus(t, i)
				waits := slices.ContainsFunc(d.Steps, func(s status.Step) bool {
					return s.Name == c.step && s.Outcome == status.Running && strings.Contains(s.Waiting, c.wait)
				})
				return waits || d.State == status.Failed && d.NextTry != nil && c.verdict != ""
			})
			run(t, i, "systemctl", "stop", "bosh-agent")
			// Killed by systemd it would be "timeout".
			if got := run(t, i, "systemctl", "show", "-P", "Result", "bosh-agent"); got != "success\n" {
				t.Errorf("the result of the stop is %q, want success", got)
			}
			was := status.Starting
			if c.verdict != "" {
				was = status.Failed
			}
			if d := agentStatus(t, i); d.State != status.NotRunning || d.LastState != was ||
				!strings.HasPrefix(d.Verdict, c.verdict) || c.verdict == "" && d.Verdict != "" {
				t.Errorf("the agent is %s, was %s with the verdict %q; want not running, %s, %q",
					d.State, d.LastState, d.Verdict, was, c.verdict)
			}
			journal := run(t, i, "journalctl", "-q", "-o", "cat", "-u", "bosh-agent")
			if !strings.Contains(journal, "agent stopping on a signal") ||
				c.verdict == "" && strings.Contains(journal, "App setup failed") {
				t.Errorf("the journal announces a verdict, or no stop:\n%s", journal)
			}
			if err := i.Delete(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}
