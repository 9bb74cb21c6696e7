//go:build machine && nightly

package machine

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/lab"
	"cambium/lab/labtest"
)

// TestNightlyTakeover exchanges this agent and the baseline, in both directions, on machines whose persistent disks are in every state
// that the Director can leave them in, and prints what came of it.
func TestNightlyTakeover(t *testing.T) {
	old, ours := labtest.Baseline(t), labtest.Agent(t)
	l := newLab(t, func(o *lab.Options) { o.Agent, o.VM = old, oldStemcell(t) })
	var table []string
	for _, c := range []struct {
		state string
		// run makes the state with the first agent, has the second take over, and says what came of it.
		run func(x *exchange) string
	}{
		{"fresh", (*exchange).fresh},
		{"mounted", (*exchange).mounted},
		{"mounted, then rebooted", (*exchange).rebooted},
		{"grown by the IaaS", (*exchange).grown},
		{"two disks attached", (*exchange).twoDisks},
		{"two disks attached, then rebooted", (*exchange).twoDisksRebooted},
		{"in the middle of a migration", (*exchange).migrating},
		{"in the middle of a migration, then rebooted", (*exchange).migratingRebooted},
		{"being prepared, no file system yet", func(x *exchange) string { return x.preparing("before") }},
		{"being prepared, file system just made", func(x *exchange) string { return x.preparing("after") }},
	} {
		for _, first := range []string{"baseline", "ours"} {
			second := "ours"
			if first == "ours" {
				second = "baseline"
			}
			t.Run(c.state+" by "+first, func(t *testing.T) {
				outcome := "FAILED"
				defer func() { table = append(table, fmt.Sprintf("| %s | %s to %s | %s |", c.state, first, second, outcome)) }()
				x := &exchange{t: t, l: l, agents: map[string]string{"baseline": old, "ours": ours}, first: first, second: second}
				x.i = x.start(first)
				text := c.run(x)
				if !t.Failed() {
					outcome = text
				}
				if err := x.i.Delete(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
	}
	t.Logf("\n| state | exchange | what came of it |\n|---|---|---|\n%s", strings.Join(table, "\n"))
}

// exchange is one machine that the second agent takes over from the first.
type exchange struct {
	t             *testing.T
	l             *lab.Lab
	i             *lab.Instance
	agents        map[string]string // binaries
	first, second string
}

// start makes a machine with one of the agents.
func (x *exchange) start(agent string) *lab.Instance {
	x.t.Helper()
	i := create(x.t, x.l, lab.VM{Ephemeral: lab.GiB})
	replaceAgent(x.t, i, x.agents[agent])
	if err := i.Start(x.t.Context()); err != nil {
		x.t.Fatal(err)
	}
	ready(x.t, i)
	return i
}

func (x *exchange) do(method string, arguments ...any) string {
	x.t.Helper()
	answer, err := x.i.Agent.Do(x.t.Context(), method, arguments...)
	if err != nil {
		x.t.Fatalf("%s %v: %v", method, arguments, err)
	}
	return string(answer)
}

// attach makes a disk unless it is there, and tells the agent.
func (x *exchange) attach(cid string, size int64) {
	x.t.Helper()
	if !x.i.HasDisk(cid) {
		if err := x.i.NewDisk(cid, size); err != nil {
			x.t.Fatal(err)
		}
	}
	x.do("add_persistent_disk", cid, attachAnnounced(x.t, x.i, cid))
}

// store makes a store with files.
func (x *exchange) store(cid string, size int64) {
	x.t.Helper()
	x.attach(cid, size)
	x.do("mount_disk", cid)
	run(x.t, x.i, "sh", "-ec", "cd /var/vcap/store; echo kept >kept; for n in $(seq 200); do head -c 500000 /dev/urandom >file$n; done; sync")
}

const storeSums = "mountpoint -q /var/vcap/store && cd /var/vcap/store && cat kept file* | sha256sum"

func (x *exchange) sums() string {
	x.t.Helper()
	return run(x.t, x.i, "sh", "-c", storeSums)
}

// want looks for a store with the content it had before.
func (x *exchange) want(when, sums, cids string) {
	x.t.Helper()
	if got := x.sums(); got != sums {
		x.t.Errorf("%s: the store's files have other sums: %q, want %q", when, got, sums)
	}
	if got := x.do("list_disk"); got != cids {
		x.t.Errorf("%s: list_disk = %s, want %s", when, got, cids)
	}
}

// reboot starts the machine anew, with the second agent.
func (x *exchange) reboot() {
	x.t.Helper()
	replaceAgent(x.t, x.i, x.agents[x.second])
	if err := x.i.Reboot(x.t.Context()); err != nil {
		x.t.Fatal(err)
	}
}

// refusesToStart has the second agent be the baseline, which does not start with two disks. It must not change them.
func (x *exchange) refusesToStart() string {
	x.t.Helper()
	look := func() string {
		return run(x.t, x.i, "sh", "-c", "for d in /dev/sdc /dev/sdd; do sfdisk -d $d; blkid -p -o export $d ${d}1; done")
	}
	before := look()
	replaceAgent(x.t, x.i, x.agents[x.second])
	run(x.t, x.i, "systemctl", "restart", "--no-block", "bosh-agent")
	x.awaitRefusal()
	if after := look(); after != before {
		x.t.Errorf("the disks were\n%s\nand are\n%s", before, after)
	}
	return "the baseline refuses to start with two disks (`Unexpected disk attached`) and changes neither; "
}

func (x *exchange) awaitRefusal() {
	x.t.Helper()
	eventually.True(x.t, "the baseline's refusal", func() bool {
		journal, err := x.i.Journal(x.t.Context())
		return err == nil && strings.Contains(journal, "Unexpected disk attached")
	})
	ctx, cancel := context.WithTimeout(x.t.Context(), 5*time.Second)
	defer cancel()
	if err := x.i.Ready(ctx); err == nil {
		x.t.Error("the baseline answers with two disks attached")
	}
}

func (x *exchange) fresh() string {
	takeOver(x.t, x.i, x.agents[x.second])
	x.store("disk-a", 512<<20)
	sums := x.sums()
	takeOver(x.t, x.i, x.agents[x.first])
	x.want("given back", sums, `["disk-a"]`)
	return "a blank disk is prepared by the second and used by both"
}

func (x *exchange) mounted() string {
	x.store("disk-a", 512<<20)
	sums := x.sums()
	takeOver(x.t, x.i, x.agents[x.second])
	x.want("taken over", sums, `["disk-a"]`)
	x.do("unmount_disk", "disk-a")
	x.do("mount_disk", "disk-a")
	x.want("mounted again", sums, `["disk-a"]`)
	takeOver(x.t, x.i, x.agents[x.first])
	x.want("given back", sums, `["disk-a"]`)
	return "mounted, with its data, by both; unmounts and mounts"
}

func (x *exchange) rebooted() string {
	x.store("disk-a", 512<<20)
	sums := x.sums()
	x.reboot()
	ready(x.t, x.i)
	x.want("rebooted", sums, `["disk-a"]`)
	return "mounted after the reboot, with its data"
}

func (x *exchange) grown() string {
	x.store("disk-a", 512<<20)
	sums := x.sums()
	x.do("unmount_disk", "disk-a")
	x.do("remove_persistent_disk", "disk-a")
	if err := x.i.DetachDisk(x.t.Context(), "disk-a"); err != nil {
		x.t.Fatal(err)
	}
	if err := x.i.GrowDisk("disk-a", lab.GiB); err != nil {
		x.t.Fatal(err)
	}
	// The baseline grows what is mounted alone, for which the host's root lacks the capability: ours grows, the baseline gets the result.
	takeOver(x.t, x.i, x.agents["ours"])
	x.attach("disk-a", 0)
	x.do("mount_disk", "disk-a")
	x.want("grown", sums, `["disk-a"]`)
	size := strings.TrimSpace(run(x.t, x.i, "sh", "-c", "df -BM --output=size /var/vcap/store | tail -1"))
	takeOver(x.t, x.i, x.agents["baseline"])
	x.do("unmount_disk", "disk-a")
	x.do("mount_disk", "disk-a")
	x.want("mounted by the baseline", sums, `["disk-a"]`)
	return "ours makes the file system " + size + "iB; mounted with its data by both"
}

// another attaches a second disk beside the store, as the Director does before a migration.
func (x *exchange) another() {
	x.attach("disk-b", lab.GiB)
	x.do("mount_disk", "disk-b")
}

// migrate finishes what the first agent began, with ours, and looks at the result.
func (x *exchange) migrate(sums string) string {
	x.t.Helper()
	x.do("migrate_disk", "disk-a", "disk-b")
	x.want("migrated", sums, `["disk-b"]`)
	x.do("remove_persistent_disk", "disk-a")
	return "ours migrates, and nothing is missing"
}

func (x *exchange) twoDisks() string {
	x.store("disk-a", 512<<20)
	sums, text := x.sums(), ""
	x.another()
	if x.second == "baseline" {
		text = x.refusesToStart()
	}
	takeOver(x.t, x.i, x.agents["ours"])
	x.want("taken over", sums, `["disk-a","disk-b"]`)
	return text + x.migrate(sums)
}

// mountedAnew checks that ours mounts neither disk after a reboot, then has the Director mount both.
func (x *exchange) mountedAnew(sums string) string {
	x.t.Helper()
	if d := agentStatus(x.t, x.i); d.JobsWithheld() == "" {
		x.t.Errorf("ours has mounted a store by itself:\n%s",
			run(x.t, x.i, "sh", "-c", "findmnt /var/vcap/store; ls /var/vcap/store | head"))
	}
	x.do("mount_disk", "disk-a")
	x.do("mount_disk", "disk-b")
	x.want("mounted by the Director", sums, `["disk-a","disk-b"]`)
	return "ours mounts neither and starts no job until mount_disk; " + x.migrate(sums)
}

func (x *exchange) twoDisksRebooted() string {
	x.store("disk-a", 512<<20)
	sums := x.sums()
	x.another()
	if x.second == "baseline" {
		x.reboot()
		x.awaitRefusal()
		takeOver(x.t, x.i, x.agents["ours"])
		x.do("mount_disk", "disk-b")
		x.want("back with ours", sums, `["disk-a","disk-b"]`)
		return "the baseline refuses to start; ours mounts its store again, mount_disk the other; " + x.migrate(sums)
	}
	x.reboot()
	ready(x.t, x.i)
	return x.mountedAnew(sums)
}

// interrupt begins a migration with the first agent and ends the agent in the middle.
func (x *exchange) interrupt() (sums string) {
	x.t.Helper()
	x.store("disk-a", 512<<20)
	run(x.t, x.i, "sh", "-ec", "cd /var/vcap/store; for n in $(seq 300); do cat file1 file2 >file-large$n; done; sync") // lasts a while
	sums = x.sums()
	x.another()
	if _, err := x.i.Agent.Call(x.t.Context(), "migrate_disk", "disk-a", "disk-b"); err != nil {
		x.t.Fatal(err)
	}
	eventually.True(x.t, "the copy to begin", func() bool {
		return run(x.t, x.i, "sh", "-c", "ls /var/vcap/store_migration_target | grep -c file || true") != "0\n"
	})
	run(x.t, x.i, "systemctl", "kill", "--signal=KILL", "bosh-agent")
	run(x.t, x.i, "systemctl", "stop", "bosh-agent")
	return sums
}

func (x *exchange) migrating() string {
	sums, text := x.interrupt(), ""
	if x.second == "baseline" {
		text = x.refusesToStart()
	}
	takeOver(x.t, x.i, x.agents["ours"])
	x.want("taken over", sums, `["disk-a","disk-b"]`)
	return text + x.migrate(sums)
}

func (x *exchange) migratingRebooted() string {
	sums := x.interrupt()
	x.reboot()
	if x.second == "baseline" {
		x.awaitRefusal()
		takeOver(x.t, x.i, x.agents["ours"])
		x.do("mount_disk", "disk-b")
		x.want("back with ours", sums, `["disk-a","disk-b"]`)
		return "the baseline refuses to start; ours mounts its store again, mount_disk the other; " + x.migrate(sums)
	}
	ready(x.t, x.i)
	return x.mountedAnew(sums)
}

// preparing ends the first agent while mkfs runs, before or after it has done its work. The disk then goes to another machine, with
// the second agent, and back to one with the first.
func (x *exchange) preparing(moment string) string {
	t := x.t
	holdFormatting(t, x.i, moment)
	x.attach("disk-a", 256<<20)
	if _, err := x.i.Agent.Call(t.Context(), "mount_disk", "disk-a"); err != nil {
		t.Fatal(err)
	}
	awaitFormatting(t, x.i)
	lost := x.i
	if err := lost.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	x.i = x.start(x.second)
	moveDisk(t, lost, x.i, "disk-a")
	if err := lost.Delete(t.Context()); err != nil {
		t.Error(err)
	}
	x.attach("disk-a", 0)
	outcome := "finished on another VM by the second, mounted by both"
	if x.second == "baseline" {
		// It does not know the name of the partition, wants to make another, and finds no room for it.
		_, err := x.i.Agent.Do(t.Context(), "mount_disk", "disk-a")
		if err == nil || !strings.Contains(err.Error(), "Partitioning disk") {
			t.Errorf("the baseline's mount_disk: %v, want an error", err)
		}
		if got := run(t, x.i, "sfdisk", "-d", "/dev/sdc"); !strings.Contains(got, "being-prepared") {
			t.Errorf("the baseline has changed the table:\n%s", got)
		}
		takeOver(t, x.i, x.agents["ours"])
		outcome = "the baseline fails on another VM (`Partitioning disk`) and changes nothing; ours finishes it, and both mount it"
	}
	x.do("mount_disk", "disk-a")
	run(t, x.i, "sh", "-ec", "cd /var/vcap/store; echo kept >kept; echo file >file; sync")
	sums := x.sums()
	x.want("finished", sums, `["disk-a"]`)
	takeOver(t, x.i, x.agents["baseline"])
	x.want("taken over by the baseline", sums, `["disk-a"]`)
	x.do("unmount_disk", "disk-a")
	x.do("mount_disk", "disk-a")
	x.want("mounted by the baseline", sums, `["disk-a"]`)
	return outcome
}
