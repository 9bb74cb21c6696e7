package bootstrap

import (
	"time"

	"cambium/bootstrap/engine"
	"cambium/platform/host"
	"cambium/settings"
)

// settingsAnnounceAfter is the time that a machine waits for settings before it announces a verdict. Settings may come
// at any time, so the step has no deadline. By then each source has been asked more than ten times.
const settingsAnnounceAfter = 20 * time.Second

// lookAtDisks is the advice for disk failures that have no advice of their own.
const lookAtDisks = "look for errors of the disk in the kernel log ('journalctl -k')"

// Steps returns the boot table. docs/operating.md also lists the steps, and a test compares the two. Steps
// for parts that the machine lacks are skipped; a dummy machine, for example, has no disks.
//
// A deadline is at least the sum of cloudfoundry/bosh-agent's waits for the same work, because a failed first boot
// costs the VM. The steps that lead to the bus run to their end even if another one has failed the boot, because the
// verdict is sent over the bus.
func Steps(m *Machine) []engine.Step {
	has := func(part bool) func() bool { return func() bool { return part } }
	// The service manager does one thing at a time, and ready waits for the supervisor's start.
	supervision := []string{"job-directories", "supervisor"}
	// Disks are worked on one at a time, too.
	otherDisks := append([]string{"persistent-disk", "directories"}, supervision...)
	return []engine.Step{
		{Name: "runtime-hook", Optional: true, Deadline: time.Minute,
			If: has(m.Host != nil && m.Tree != nil), Wants: m.runtimeHook},
		// Before the agent reads a medium, and before any job runs. Not beside the reading: udev opens the drive, too, and
		// opening one without a disc takes seconds.
		{Name: "media", Optional: true, Deadline: time.Minute,
			If: m.hasMedia, Wants: m.hostIs(host.Desired{RootMedia: true})},
		{Name: "settings", Needs: []string{"media"}, AnnounceAfter: settingsAnnounceAfter, Plan: m.planSettings,
			Run: m.loadSettings, Advice: "see 'agent settings --explain' for the answer of each source"},
		// An operator can log in to a machine that failed, with the passwords and keys of the settings and no others.
		{Name: "passwords", Always: true, Needs: []string{"settings"}, Deadline: time.Minute,
			If: has(m.Users != nil), Wants: m.passwords,
			Advice: "set a crypt hash: correct " + settings.DescribeKey("env.bosh.password")},
		{Name: "env-keys", Always: true, Needs: []string{"settings"}, Optional: true, Deadline: time.Minute,
			If: m.hasEnvKeys, Wants: m.envKeysFirst},
		{Name: "ipv6", Always: true, Needs: []string{"settings"}, Deadline: time.Minute,
			If: m.wantsIPv6, Wants: m.hostIs(host.Desired{IPv6: true}),
			Advice: "boot the kernel without ipv6.disable=1"},
		{Name: "hostname", Needs: []string{"settings"}, Optional: true, Deadline: time.Minute,
			If: has(m.Host != nil), Wants: m.names, Run: m.recordHosts},
		{Name: "firewall", Always: true, Needs: []string{"settings"}, Optional: true, Deadline: time.Minute,
			If: has(m.Firewall != nil), Wants: m.firewallRules},
		// Without IPv6 the boot has failed, but the verdict may still reach the Director over IPv4.
		{Name: "network", Always: true, Needs: []string{"settings"}, Yields: []string{"ipv6"},
			Deadline: 5 * time.Minute,
			If:       has(m.Network != nil), Plan: m.planNetwork, Run: m.setUpNetwork,
			Advice: "compare 'agent plan' with 'ip address' and 'ip route'; the kernel log ('journalctl -k') has errors of cards"},
		{Name: "bus", Always: true, Needs: []string{"network"}, Deadline: time.Minute, Run: m.startBus,
			Advice: "correct " + settings.DescribeKey("env.bosh.mbus.urls") + ", or " + settings.DescribeKey("mbus")},
		{Name: "authorized-keys", Always: true, Needs: []string{"env-keys", "network"}, Yields: []string{"bus"},
			Background: true, Deadline: 5 * time.Minute, If: has(m.Users != nil), Wants: m.allKeys},
		{Name: "raw-disks", Needs: []string{"settings"}, Deadline: 15 * time.Minute,
			If: m.hasRawDisks, Wants: m.rawDisks,
			Advice: lookAtDisks},
		{Name: "ephemeral-disk", Needs: []string{"raw-disks"}, Deadline: 15 * time.Minute,
			If: has(m.Ephemeral != nil), Wants: m.ephemeralDisk,
			Advice: lookAtDisks},
		{Name: "persistent-disk", Needs: []string{"ephemeral-disk"}, Deadline: 15 * time.Minute,
			If: has(m.Persistent != nil), Wants: m.persistentDisk,
			Advice: lookAtDisks},
		{Name: "directories", Needs: []string{"ephemeral-disk"}, Deadline: 2 * time.Minute,
			If: has(m.Tree != nil), Wants: m.directories},
		{Name: "boot-once", Needs: []string{"directories"}, Deadline: time.Minute, If: m.inMemory, Wants: m.bootOnce},
		{Name: "job-directories", Needs: []string{"directories"}, Deadline: time.Minute,
			If: has(m.JobNames != nil && m.Tree != nil), Wants: m.jobDirectories,
			Advice: "check bosh/spec.json in the base directory"},
		{
			Name:     "supervisor",
			Needs:    []string{"job-directories", "persistent-disk", "firewall"},
			Deadline: 2 * time.Minute,
			If:       func() bool { return m.Supervisor != nil && m.JobsWithheld() == "" },
			Plan:     m.planSupervisor,
			Run:      m.startSupervisor,
			Advice:   "see the journal of the monit service",
		},
		{Name: "root-disk", Needs: []string{"ephemeral-disk"}, Yields: otherDisks, Background: true,
			Deadline: 10 * time.Minute, If: has(m.Ephemeral != nil), Wants: m.rootDisk},
		// The resolver is restarted, and its private /var/tmp cannot be made while ours is bound there.
		{Name: "dns", Always: true, Needs: []string{"directories", "network"}, Yields: supervision, Background: true,
			Deadline: time.Minute, If: has(m.Resolver != nil), Wants: m.nameServers},
		{Name: "time", Needs: []string{"directories", "network"}, Yields: supervision, Background: true,
			Deadline: 3 * time.Minute, If: has(m.Host != nil), Wants: m.timeServers},
		{Name: "audit", Needs: []string{"directories"}, Yields: supervision, Background: true, Deadline: time.Minute,
			If: has(m.Host != nil), Wants: m.hostIs(host.Desired{Hooks: []string{auditHook}})},
		{Name: "dev-tools", Needs: []string{"settings"}, Optional: true, Deadline: 5 * time.Minute,
			If: has(m.Host != nil), Wants: m.withoutTools},
	}
}
