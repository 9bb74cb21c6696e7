package bootstrap

import (
	"time"

	"cambium/bootstrap/engine"
)

// settingsAnnounceAfter is how long a machine waits for settings before it announces a verdict. Settings may
// come at any time, so the step has no deadline; by then each source has been asked more than ten times.
const settingsAnnounceAfter = 20 * time.Second

// Steps is the boot table. docs/boot.md lists it for people; a test compares the two. A row
// whose part of the machine is missing (a dummy machine has no disks) is skipped.
//
// Deadlines are at least as long as the waits of cloudfoundry/bosh-agent add up to, because a
// failed first boot costs the VM. The steps on the way to the bus run to their end even when
// another has failed the boot, because the verdict travels over it.
func Steps(m *Machine) []engine.Step {
	has := func(part bool) func() bool { return func() bool { return part } }
	// The service manager does one thing at a time, and ready waits for the supervisor's start.
	supervision := []string{"job-directories", "supervisor"}
	// Disks are worked on one at a time, too.
	disks := append([]string{"persistent-disk", "directories"}, supervision...)
	return []engine.Step{
		{Name: "runtime-hook", Optional: true, Deadline: time.Minute, If: has(m.Host != nil && m.Tree != nil), Plan: m.planRuntimeHook, Run: m.runRuntimeHook},
		// Before the agent reads a medium, and before any job runs.
		{Name: "media", Optional: true, Deadline: time.Minute, If: m.hasMedia, Plan: m.planMedia,
			Run: m.keepMediaToRoot},
		{Name: "settings", Needs: []string{"media"}, AnnounceAfter: settingsAnnounceAfter, Plan: m.planSettings,
			Run: m.loadSettings, Advice: "see 'agent settings --explain' for what each source said"},
		// An operator can log in to a machine that failed, with the passwords and keys of the settings and no others.
		{Name: "passwords", Always: true, Needs: []string{"settings"}, Deadline: time.Minute, If: has(m.Users != nil), Plan: m.planPasswords, Run: m.setPasswords,
			Advice: "give env.bosh.password a crypt hash, and the machine the accounts root and vcap"},
		{Name: "env-keys", Always: true, Needs: []string{"settings"}, Optional: true, Deadline: time.Minute, If: m.hasEnvKeys, Plan: m.planEnvKeys, Run: m.authorizeEnvKeys},
		{Name: "ipv6", Always: true, Needs: []string{"settings"}, Deadline: time.Minute, If: m.wantsIPv6, Plan: m.planIPv6, Run: m.enableIPv6,
			Advice: "boot the kernel without ipv6.disable=1"},
		{Name: "hostname", Needs: []string{"settings"}, Optional: true, Deadline: time.Minute, If: has(m.Host != nil), Plan: m.planHostname, Run: m.setHostname},
		{Name: "firewall", Always: true, Needs: []string{"settings"}, Optional: true, Deadline: time.Minute, If: has(m.Firewall != nil), Plan: m.planFirewall, Run: m.setFirewall},
		// Without IPv6 the boot has failed, but the verdict may still reach the Director over IPv4.
		{Name: "network", Always: true, Needs: []string{"settings"}, Yields: []string{"ipv6"}, Deadline: 5 * time.Minute, If: has(m.Network != nil), Plan: m.planNetwork, Run: m.setUpNetwork,
			Advice: "compare the settings' networks with the machine's links"},
		{Name: "bus", Always: true, Needs: []string{"network"}, Deadline: time.Minute, Run: m.startBus,
			Advice: "correct mbus URLs and certificates in the settings"},
		{Name: "authorized-keys", Always: true, Needs: []string{"env-keys", "network"}, Yields: []string{"bus"}, Background: true, Deadline: 5 * time.Minute, If: has(m.Users != nil), Plan: m.planKeys, Run: m.authorizeKeys},
		{Name: "raw-disks", Needs: []string{"settings"}, Deadline: 15 * time.Minute, If: m.hasRawDisks, Plan: m.planRawDisks, Run: m.setUpRawDisks,
			Advice: "attach the raw ephemeral disks that the settings name"},
		{Name: "ephemeral-disk", Needs: []string{"raw-disks"}, Deadline: 15 * time.Minute, If: has(m.Ephemeral != nil), Plan: m.planEphemeralDisk, Run: m.setUpEphemeralDisk,
			Advice: "attach the ephemeral disk that the settings name"},
		{Name: "persistent-disk", Needs: []string{"ephemeral-disk"}, Deadline: 15 * time.Minute, If: has(m.Persistent != nil), Plan: m.planPersistentDisk, Run: m.mountPersistentDisk,
			Advice: "attach the persistent disk again, or let the Director detach it"},
		{Name: "directories", Needs: []string{"ephemeral-disk"}, Deadline: 2 * time.Minute, If: has(m.Tree != nil), Plan: m.planDirectories, Run: m.makeDirectories},
		{Name: "boot-once", Needs: []string{"directories"}, Deadline: time.Minute, If: m.inMemory, Plan: m.planBootOnce, Run: m.armBootOnce},
		{Name: "job-directories", Needs: []string{"directories"}, Deadline: time.Minute, If: has(m.JobNames != nil && m.Tree != nil), Plan: m.planJobDirectories, Run: m.makeJobDirectories,
			Advice: "look at bosh/spec.json below the base directory"},
		{Name: "supervisor", Needs: []string{"job-directories", "persistent-disk", "firewall"}, Deadline: 2 * time.Minute,
			If: func() bool { return m.Supervisor != nil && m.JobsWithheld() == "" }, Plan: m.planSupervisor, Run: m.startSupervisor, Advice: "see the journal of the monit service"},
		{Name: "root-disk", Needs: []string{"ephemeral-disk"}, Yields: disks, Background: true, Deadline: 10 * time.Minute, If: has(m.Ephemeral != nil), Plan: m.planRootDisk, Run: m.growRootDisk},
		// The resolver is restarted, and its private /var/tmp cannot be made while ours is bound there.
		{Name: "dns", Always: true, Needs: []string{"directories", "network"}, Yields: supervision, Background: true, Deadline: time.Minute, If: has(m.Resolver != nil), Plan: m.planDNS, Run: m.setDNS},
		{Name: "time", Needs: []string{"directories", "network"}, Yields: supervision, Background: true, Deadline: 3 * time.Minute, If: has(m.Host != nil), Plan: m.planTimeServers, Run: m.setTimeServers},
		{Name: "audit", Needs: []string{"directories"}, Yields: supervision, Background: true, Deadline: time.Minute, If: has(m.Host != nil), Plan: m.planAuditing, Run: m.startAuditing},
		{Name: "dev-tools", Needs: []string{"settings"}, Optional: true, Deadline: 5 * time.Minute, If: has(m.Host != nil), Plan: m.planDevTools, Run: m.removeDevTools},
	}
}
