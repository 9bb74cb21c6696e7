//go:build machine

package machine

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/internal/status"
	"cambium/lab"
	"cambium/lab/labtest"
	"cambium/lab/machine"
)

// doneAsPlanned compares the plan before the agent's last start with what that boot says it changed.
// Each of want is a change that both have, "step: text".
func doneAsPlanned(t *testing.T, i *lab.Instance, when string, want ...string) labtest.PlannedBoot {
	t.Helper()
	ready(t, i)
	ended(t, i)
	p, d := endedAsPlanned(t, i, when, status.Ready)
	done, _ := labtest.BootSays(d)
	for _, text := range want {
		step, change, _ := strings.Cut(text, ": ")
		if !slices.ContainsFunc(done[step], func(have string) bool { return strings.Contains(have, change) }) {
			t.Errorf("%s: step %s changed %q, want %q among it", when, step, done[step], change)
		}
	}
	if unchanged := len(p.Texts()) == 0; d.Unchanged != unchanged {
		t.Errorf("%s: %d steps planned changes, and the boot says unchanged %v", when, len(p.Texts()), d.Unchanged)
	}
	return p
}

// endedAsPlanned waits for a boot that came to this state and to what was planned before it.
func endedAsPlanned(t *testing.T, i *lab.Instance, when string, state status.State) (p labtest.PlannedBoot,
	d status.Document) {
	t.Helper()
	eventually.Nil(t, when+": a boot that does what was planned", func() error {
		d = agentStatus(t, i) // what is deferred until the verdict is recorded a moment later
		if d.State != state {
			return fmt.Errorf("%s %q, warnings %q", d.State, d.Verdict, d.Warnings)
		}
		out := run(t, i, "cat", "/run/plan.json")
		p = labtest.PlannedBoot{}
		if err := json.Unmarshal([]byte(out), &p); err != nil {
			return fmt.Errorf("plan: %w: %s%s", err, out, run(t, i, "cat", "/run/plan.err"))
		}
		return p.Compare(d)
	})
	return p, d
}

// nothingIsPlanned is true of a machine that has been booted.
func nothingIsPlanned(t *testing.T, i *lab.Instance, when string) {
	t.Helper()
	run(t, i, "systemctl", "restart", "bosh-agent")
	if p := doneAsPlanned(t, i, when+", agent restarted"); len(p.Texts()) != 0 {
		t.Errorf("%s: the second plan is %q, want nothing", when, p.Texts())
	}
	asWanted(t, i, when)
}

// asWanted: the doctor, who warns of what a boot would change, finds nothing.
func asWanted(t *testing.T, i *lab.Instance, when string) {
	t.Helper()
	out := run(t, i, "sh", "-c", "agent doctor -v --timeout 1s || true")
	if !strings.Contains(out, "the machine is as the settings want it") {
		t.Errorf("%s: the doctor sees a machine that is not as the settings want it:\n%s", when, out)
	}
}

// TestMachinePlanIsWhatBootDoes has each boot planned before it is done, for many kinds of settings.
func TestMachinePlanIsWhatBootDoes(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	t.Run("one machine", func(t *testing.T) { planOneMachine(t, l) })
	t.Run("leases", func(t *testing.T) { planLeases(t, l) })
	t.Run("no ephemeral disk", func(t *testing.T) { planWithoutDisk(t, l) })
	t.Run("in memory", func(t *testing.T) { planInMemory(t, l) })
	t.Run("refusals", func(t *testing.T) { planRefusals(t, l) })
	t.Run("interrupted work", func(t *testing.T) { planInterrupted(t, l) })
}

// planOneMachine follows one machine through its life.
func planOneMachine(t *testing.T, l *lab.Lab) {
	i := start(t, l, lab.VM{Ephemeral: 4 * lab.GiB,
		Files: slices.Concat(hooks(), removable, []machine.File{labtest.PlanFirst})})
	defer remove(t, i)
	first := doneAsPlanned(t, i, "static network, blank ephemeral disk",
		"runtime-hook: run /var/vcap/bosh/bin/bosh-agent-rc", "settings: write /var/vcap/bosh/settings.json",
		"passwords: set password of vcap",
		"hostname: set host name to "+i.AgentID, "hostname: write /etc/hosts", "network: add address "+i.IP+"/24",
		"ephemeral-disk: create GPT", "ephemeral-disk: mount on /var/vcap/data",
		"directories: make directory /var/vcap/data/sys", "directories: bind /var/vcap/data/root_log to /var/log",
		"supervisor: start monit",
		"audit: run /var/vcap/bosh/bin/bosh-start-logging-and-auditing")
	for _, s := range first.Plan {
		for _, c := range s.Changes {
			if below := strings.Contains(c.Text, " /var/vcap/data/"); s.Step == "directories" &&
				(c.After == "ephemeral-disk") != below {
				t.Errorf("%s: planned after %q", c.Text, c.After)
			}
			if runs := strings.HasPrefix(c.Text, "run ") || c.Text == "start monit"; runs && !c.Runs {
				t.Errorf("%s is not marked as run", c.Text)
			}
		}
	}
	nothingIsPlanned(t, i, "first boot")

	// The plan touches nothing, however often it is made, also while an agent runs.
	// The agent itself writes its history of boots a moment after it is ready.
	const files = "cat /var/vcap/bosh/settings.json /etc/shadow; ls -lR /var/vcap/bosh | grep -v -e total -e cambium_boots"
	before := run(t, i, "sh", "-c", files)
	run(t, i, "/var/vcap/bosh/bin/bosh-agent", "plan", "--timeout", "5s")
	if after := run(t, i, "sh", "-c", files); after != before {
		t.Errorf("a plan changed the machine from\n%s\nto\n%s", before, after)
	}

	change(t, i, func(d lab.Document) {
		d.Set("env.bosh.password", "$6$salt$hash").Set("env.bosh.authorized_keys",
			[]string{"ssh-ed25519 ENV"}).Set("env.bosh.ipv6.enable", true)
		d.Set("env.bosh.ntp", []string{"10.99.0.123"}).Set("env.bosh.remove_dev_tools",
			true).Set("env.bosh.remove_static_libraries", true)
	})
	doneAsPlanned(t, i, "keys, passwords, IPv6, time servers, dev tools", "passwords: set password of root",
		"env-keys: set authorized keys of vcap",
		"time: write /var/vcap/bosh/etc/ntpserver", "dev-tools: remove")
	nothingIsPlanned(t, i, "further settings")

	change(t, i, func(d lab.Document) {
		d.Set("networks.second", map[string]any{"type": "manual", "ip": "fd88::77", "netmask": "ffff:ffff:ffff:ffff::",
			"mac": i.MAC(0).String()})
	})
	doneAsPlanned(t, i, "second network, IPv6", "network: add address fd88::77/64")
	nothingIsPlanned(t, i, "second network")

	mountNew(t, i)
	if err := i.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	doneAsPlanned(t, i, "reboot with a persistent disk",
		"persistent-disk: mount on /var/vcap/store", "ephemeral-disk: mount on /var/vcap/data",
		"directories: mount tmpfs at /var/vcap/data/sys/run", "supervisor: start monit")
	nothingIsPlanned(t, i, "reboot")
}

// mountNew gives the machine a store on a new disk, disk-1, and returns the disk's path.
func mountNew(t *testing.T, i *lab.Instance) string {
	t.Helper()
	disk, err := i.AttachNew(t.Context(), "disk-1", lab.GiB)
	if err != nil {
		t.Fatal(err)
	}
	mountStore(t, i, disk.Path)
	return disk.Path
}

func mountStore(t *testing.T, i *lab.Instance, path string) {
	t.Helper()
	for _, call := range [][]any{{"add_persistent_disk", "disk-1", path}, {"mount_disk", "disk-1"}} {
		if _, err := i.Agent.Do(t.Context(), call[0].(string), call[1:]...); err != nil {
			t.Fatal(err)
		}
	}
}

// change delivers other settings and restarts the agent.
func change(t *testing.T, i *lab.Instance, edit func(lab.Document)) {
	t.Helper()
	if err := i.Change(t.Context(), edit); err != nil {
		t.Fatal(err)
	}
	run(t, i, "systemctl", "restart", "bosh-agent")
}

// planLeases changes from a static address to a lease: before its first boot, a machine whose source
// needs a network has nothing to plan by.
func planLeases(t *testing.T, l *lab.Lab) {
	i := start(t, l, lab.VM{Source: lab.HTTP, PublicKey: "ssh-ed25519 IAAS", Ephemeral: lab.GiB,
		Files: []machine.File{labtest.PlanFirst}})
	defer remove(t, i)
	ready(t, i)
	ended(t, i) // the resolver's files are written in the background
	if said := run(t, i, "cat", "/run/plan.json", "/run/plan.err"); !strings.Contains(said, "network") ||
		!strings.Contains(said, "exit 1") {
		t.Errorf("without a network the plan is %s, want an error and why", said)
	}
	nothingIsPlanned(t, i, "static address")
	change(t, i, func(d lab.Document) { d.Set("networks.default.type", "dynamic") })
	doneAsPlanned(t, i, "lease", "network: write /etc/systemd/network/10_eth0.network")
	nothingIsPlanned(t, i, "lease")
}

// planWithoutDisk has the data on the root disk.
func planWithoutDisk(t *testing.T, l *lab.Lab) {
	agentJSON := `{"Platform":{"Linux":{"SkipDiskSetup":true,"ServiceManager":"systemd","UseDefaultTmpDir":true}},
		"Infrastructure":{"Settings":{"Sources":[{"Type":"File","SettingsPath":"/var/vcap/bosh/agent-bootstrap-env.json"}]}}}`
	i := create(t, l, lab.VM{AgentJSON: []byte(agentJSON), Files: []machine.File{labtest.PlanFirst}})
	defer remove(t, i)
	if err := i.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	doneAsPlanned(t, i, "no ephemeral disk", "directories: make directory /var/vcap/data/sys")
	nothingIsPlanned(t, i, "no ephemeral disk")
}

// planInMemory keeps settings and jobs in memory.
func planInMemory(t *testing.T, l *lab.Lab) {
	i := start(t, l, lab.VM{Ephemeral: lab.GiB, Files: []machine.File{labtest.PlanFirst}, Edit: func(d lab.Document) {
		d.Set("env.bosh.agent.settings.tmpfs", true).Set("env.bosh.job_dir.tmpfs", true).Set("env.bosh.job_dir.tmpfs_size",
			"32m").Set("env.bosh.swap_size", 0)
	}})
	defer remove(t, i)
	doneAsPlanned(t, i, "settings and jobs in memory", "settings: mount tmpfs at",
		"directories: mount tmpfs at /var/vcap/data/jobs, size 32m", "boot-once: write")
	nothingIsPlanned(t, i, "in memory")
}

// planRefusals has disks refused: a boot then comes to what its plan said, in the same words.
func planRefusals(t *testing.T, l *lab.Lab) {
	i := start(t, l, lab.VM{Ephemeral: lab.GiB, Files: []machine.File{labtest.PlanFirst}})
	defer remove(t, i)
	ready(t, i)
	disk := mountNew(t, i)
	without := func(script string) {
		t.Helper()
		run(t, i, "sh", "-ec", "systemctl stop bosh-agent monit; umount /var/vcap/store; "+script+
			"; systemctl start --no-block bosh-agent")
	}

	// The disk has lost its head.
	without("dd if=" + disk + " of=/root/head bs=1M count=2; dd if=/dev/zero of=" + disk + " bs=1M count=2 conv=fsync")
	p, d := endedAsPlanned(t, i, "refused last disk", status.Degraded)
	if !strings.Contains(d.JobsWithheld(), "is refused") {
		t.Errorf("refused last disk: no job is started: %q", d.JobsWithheld())
	}
	for _, s := range p.Plan {
		if s.Step == "supervisor" {
			t.Errorf("refused last disk: planned %+v, and no job is started", s)
		}
	}
	run(t, i, "dd", "if=/root/head", "of="+disk, "conv=fsync")
	mountStore(t, i, disk)

	// Only a record that another agent left says that there was a store.
	without("rm /var/vcap/bosh/disks.json /var/vcap/bosh/persistent_disk_hints.json")
	_, d = endedAsPlanned(t, i, "empty store", status.Degraded)
	if !slices.ContainsFunc(d.Warnings, func(w string) bool { return strings.Contains(w, "the store is empty") }) {
		t.Errorf("empty store: warnings %q", d.Warnings)
	}
	mountStore(t, i, disk)

	// The settings name the store as the ephemeral disk.
	if err := i.Change(t.Context(), func(d lab.Document) { d.Set("disks.ephemeral", disk) }); err != nil {
		t.Fatal(err)
	}
	without("true")
	settled(t, i, 3*time.Minute)
	run(t, i, "systemctl", "restart", "--no-block", "bosh-agent") // a retry does not repeat the change of the settings
	_, d = endedAsPlanned(t, i, "foreign ephemeral disk", status.Failed)
	if !strings.Contains(d.Verdict, "is the persistent disk") {
		t.Errorf("foreign ephemeral disk: the verdict is %q", d.Verdict)
	}
}

// killInMkfs has the next mkfs.ext4 kill the agent instead, once.
const killInMkfs = `real=$(readlink -f "$(command -v mkfs.ext4)"); mv "$real" "$real.kept"
printf '#!/bin/sh\nmv %s.kept %s\nkill -9 $PPID\n' "$real" "$real" >"$real"; chmod 755 "$real"`

// killedIn has the agent killed in the middle of a task: a script ends when that has happened.
func killedIn(t *testing.T, i *lab.Instance, killed, method string, arguments ...any) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := i.Agent.Do(ctx, method, arguments...)
		ended <- err
	}()
	run(t, i, "timeout", "300", "sh", "-ec", killed)
	cancel()
	if err := <-ended; err == nil {
		t.Fatalf("%s has ended, want the agent killed in it", method)
	}
}

// planInterrupted has the agent killed in the middle of a preparation and of a migration, and a disk grown: the next
// boot comes to what its plan said.
func planInterrupted(t *testing.T, l *lab.Lab) {
	i := start(t, l, lab.VM{Ephemeral: lab.GiB, Files: []machine.File{labtest.PlanFirst}})
	defer remove(t, i)
	// An agent that is ready may still be asking systemd to restart the resolver, which the next plan would repeat.
	doneAsPlanned(t, i, "before an interruption")
	first, err := i.AttachNew(t.Context(), "disk-1", lab.GiB)
	if err != nil {
		t.Fatal(err)
	}
	run(t, i, "sh", "-ec", killInMkfs)
	do(t, i, "{}", "add_persistent_disk", "disk-1", first.Path)
	killedIn(t, i, `until [ "$(systemctl show -P NRestarts bosh-agent)" -gt 0 ]; do sleep 0.05; done`, "mount_disk",
		"disk-1")
	doneAsPlanned(t, i, "interrupted preparation")
	do(t, i, "{}", "mount_disk", "disk-1")

	if err := i.Resize(t.Context(), "disk-1", 2*lab.GiB); err != nil {
		t.Fatal(err)
	}
	if err := i.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	doneAsPlanned(t, i, "grown disk", "persistent-disk: grow")

	second, err := i.AttachNew(t.Context(), "disk-2", 2*lab.GiB)
	if err != nil {
		t.Fatal(err)
	}
	run(t, i, "sh", "-ec", "mkdir /var/vcap/store/many; cd /var/vcap/store/many; seq 20000 | xargs touch")
	do(t, i, "{}", "add_persistent_disk", "disk-2", second.Path)
	do(t, i, "{}", "mount_disk", "disk-2")
	killedIn(t, i, "until [ -d /var/vcap/store_migration_target/many ]; do sleep 0.01; done; "+
		"systemctl kill -s KILL bosh-agent", "migrate_disk", "disk-1", "disk-2")
	doneAsPlanned(t, i, "interrupted migration")
	if got := run(t, i, "sh", "-c", "ls /var/vcap/store/many | wc -l"); got != "20000\n" {
		t.Errorf("after an interrupted migration the store has %s files", got)
	}
	do(t, i, "{}", "migrate_disk", "disk-1", "disk-2")
}
