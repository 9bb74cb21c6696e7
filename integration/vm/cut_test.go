//go:build vm

package vm

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"cambium/lab"
	"cambium/lab/machine"
	"cambium/lab/machine/qemu"
)

// hold keeps the agent from starting as long as /etc/hold is there.
var hold = []machine.File{
	{Path: "/etc/systemd/system/bosh-agent.service.d/hold.conf", Mode: 0o644,
		Data: []byte("[Unit]\nConditionPathExists=!/etc/hold\n")},
	{Path: "/etc/hold", Data: []byte("\n"), Mode: 0o644},
}

// TestVMPowerCut cuts the power at a random moment of the first bootstrap, boots, and wants a machine like any other.
// TestNightlyPowerCut does it more often, and also while the Director has a blank disk mounted and a full one migrated
// to it; integration/writes cuts each of these between any two writes.
func TestVMPowerCut(t *testing.T) {
	t.Parallel()
	cutPower(t, 1, 0)
}

// cutPower cuts the power in first bootstraps, each of the same machine, whose agent has never run, and then in
// migrations.
func cutPower(t *testing.T, firstBoots, migrations int) {
	l := newLab(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	i := create(t, l, lab.VM{Ephemeral: 2 * lab.GiB, Files: hold})
	for _, id := range []string{"vol-old", "vol-new"} {
		if _, err := i.Attach(t.Context(), machine.Disk{ID: id, Image: blank(t, 512<<20)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := i.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	vm := i.Machine.(*qemu.Machine)
	run(t, i, "sh", "-c", "until systemctl is-active --quiet multi-user.target; do sleep 0.2; done; sync")
	if err := vm.Snapshot(t.Context(), "new"); err != nil {
		t.Fatal(err)
	}
	// One undisturbed boot says how long there is to cut, and what has to come out of it.
	begin := time.Now()
	letGo(t, i)
	ready(t, i)
	duration := time.Since(begin)
	want := layout(t, i)
	t.Logf("a first bootstrap takes %.1f s", duration.Seconds())
	for n := range firstBoots {
		if err := vm.Rewind(t.Context(), "new"); err != nil {
			t.Fatal(err)
		}
		letGo(t, i)
		after := time.Duration(random.Int64N(int64(duration)))
		cutAfter(t, i, after)
		if got := layout(t, i); got != want {
			t.Errorf("cut %d, after %v: the machine has\n%s\nwant\n%s", n, after, got, want)
		}
		// Writable, and whole in the eyes of a judge.
		run(t, i, "sh", "-c", "echo x >/var/vcap/data/x && sync && rm /var/vcap/data/x")
	}
	if migrations > 0 {
		cutMigration(t, i, random, migrations)
	}
	if err := i.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// cutAfter cuts the power after a while, and waits for the next boot to end well.
func cutAfter(t testing.TB, i *lab.Instance, after time.Duration) {
	t.Helper()
	time.Sleep(after)
	if err := i.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := i.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	ready(t, i)
	wantReady(t, i)
}

// userFiles are many small ones, and a large one.
const userFiles = `cd /var/vcap/store && mkdir -p a/b && head -c 4M /dev/urandom | split -a 3 -b 8k - a/b/f &&
	head -c 60M /dev/urandom >large && ln large hard && ln -s large soft &&
	chown 1234:4321 a && chmod 4711 a/b/faaa && sync`

// cutMigration has the machine's agent prepare the disk vol-old and fills it. Each cut begins there and
// falls into mount_disk of the blank disk vol-new, or into migrate_disk. The next boot must have
// a whole store, whichever disk it is, and the Director's repeated requests an end.
func cutMigration(t *testing.T, i *lab.Instance, random *rand.Rand, times int) {
	t.Helper()
	vm := i.Machine.(*qemu.Machine)
	for _, cid := range []string{"vol-old", "vol-new"} {
		does(t, i, "add_persistent_disk", cid, "/dev/disk/by-id/virtio-"+cid)
	}
	does(t, i, "mount_disk", "vol-old")
	onStore(t, i, "virtio-vol-old")
	run(t, i, "sh", "-ec", userFiles)
	sum := run(t, i, "sh", "-c", storeSum)
	// A rewound connection would be noticed late, hence there is none.
	run(t, i, "systemctl", "stop", "bosh-agent")
	startAgent := func() {
		t.Helper()
		run(t, i, "systemctl", "start", "--no-block", "bosh-agent")
		ready(t, i)
	}
	if err := vm.Snapshot(t.Context(), "filled"); err != nil {
		t.Fatal(err)
	}
	// One undisturbed sequence says how long there is to cut.
	startAgent()
	begin := time.Now()
	does(t, i, "mount_disk", "vol-new")
	mounting := time.Since(begin)
	does(t, i, "migrate_disk", "vol-old", "vol-new")
	duration := time.Since(begin)
	t.Logf("mount_disk takes %.1f s, migrate_disk %.1f s", mounting.Seconds(), (duration - mounting).Seconds())
	ended := func(what string) {
		t.Helper()
		onStore(t, i, "virtio-vol-new")
		if got := run(t, i, "sh", "-c", storeSum); got != sum {
			t.Errorf("%s: the store's sum is %s, want %s", what, got, sum)
		}
		does(t, i, "unmount_disk", "vol-old")
		does(t, i, "unmount_disk", "vol-new")
		run(t, i, "sh", "-ec", `for d in old new; do
	p=/dev/disk/by-id/virtio-vol-$d-part1; udevadm wait --timeout=120 $p; e2fsck -nf $p
done`)
	}
	ended("undisturbed")
	for n := range times {
		if err := vm.Rewind(t.Context(), "filled"); err != nil {
			t.Fatal(err)
		}
		startAgent()
		after := time.Duration(random.Int64N(int64(mounting)))
		if n%2 == 1 {
			after = mounting + time.Duration(random.Int64N(int64(duration-mounting)))
		}
		asking, cancel := context.WithCancel(t.Context())
		asked := make(chan string, 1)
		go func() {
			for _, request := range [][]any{{"mount_disk", "vol-new"}, {"migrate_disk", "vol-old", "vol-new"}} {
				if _, err := i.Agent.Do(asking, request[0].(string), request[1:]...); err != nil {
					asked <- request[0].(string)
					return
				}
			}
			asked <- "nothing"
		}()
		cutAfter(t, i, after)
		cancel()
		t.Logf("cut %d, after %v, interrupted %s", n, after, <-asked)
		if got := run(t, i, "sh", "-c", storeSum); got != sum {
			t.Fatalf("cut %d, after %v: the store's sum is %s, want %s; it is %s", n, after, got, sum,
				run(t, i, "findmnt", "-n", "/var/vcap/store"))
		}
		does(t, i, "mount_disk", "vol-new")
		does(t, i, "migrate_disk", "vol-old", "vol-new")
		ended(fmt.Sprintf("cut %d, after %v", n, after))
	}
}

// letGo lets the agent start, now and at every boot.
func letGo(t testing.TB, i *lab.Instance) {
	t.Helper()
	run(t, i, "sh", "-c", "rm /etc/hold && sync && systemctl start --no-block bosh-agent")
}

// layout describes the result of a bootstrap: partitions, file systems, mounts, directories with their modes and
// owners, addresses. blkid reads the disk itself: lsblk takes content from udev's database, which may still lag. An
// active unit has sent READY=1, after writing its last file except health.json, which get_state writes.
func layout(t testing.TB, i *lab.Instance) string {
	t.Helper()
	does(t, i, "get_state")
	return run(t, i, "sh", "-ec", `until systemctl is-active --quiet bosh-agent; do sleep 0.1; done
lsblk -n -b -o NAME,SIZE,MOUNTPOINTS /dev/vdb
blkid -p -s TYPE -s PART_ENTRY_NAME /dev/vdb1
findmnt -n -l -o TARGET,SOURCE,FSTYPE | grep /var/vcap | sort
find /var/vcap -xdev -maxdepth 3 -not -path '*/bosh/*' -not -path '*/monit/*' -not -name '.*.cambium-tmp-*' \
	-printf '%M %u:%g %p\n' | sort
ip -o address show scope global | awk '{print $2, $4}'
cat /etc/hostname`)
}
