//go:build vm

package vm

import (
	"math/rand/v2"
	"testing"
	"time"

	"cambium/integration/lab"
	"cambium/integration/lab/machine"
	"cambium/integration/lab/machine/qemu"
)

// hold keeps the agent from starting as long as /etc/hold is there.
var hold = []machine.File{
	{Path: "/etc/systemd/system/bosh-agent.service.d/hold.conf", Data: []byte("[Unit]\nConditionPathExists=!/etc/hold\n"), Mode: 0o644},
	{Path: "/etc/hold", Data: []byte("\n"), Mode: 0o644},
}

// cuts is how many power cuts of the first bootstrap are part of every run.
const cuts = 6

// TestVMPowerCutDuringFirstBoot cuts the power at random moments of the first bootstrap, boots,
// and wants a machine like any other. Each cut begins with the same machine, whose agent has
// never run.
func TestVMPowerCutDuringFirstBoot(t *testing.T) {
	t.Parallel()
	cutFirstBoot(t, cuts)
}

func cutFirstBoot(t *testing.T, times int) {
	l := newLab(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	i := start(t, l, lab.VM{Ephemeral: 2 * lab.GiB, Files: hold})
	vm := i.Machine.(*qemu.Machine)
	run(t, i, "sh", "-c", "until systemctl is-active --quiet multi-user.target; do sleep 0.2; done; sync")
	if err := vm.Snapshot(t.Context(), "new"); err != nil {
		t.Fatal(err)
	}
	// One undisturbed boot tells how long there is to cut, and what has to come out of it.
	begin := time.Now()
	letGo(t, i)
	ready(t, i)
	whole := time.Since(begin)
	want := layout(t, i)
	t.Logf("a first bootstrap takes %.1f s", whole.Seconds())
	for n := range times {
		if err := vm.Rewind(t.Context(), "new"); err != nil {
			t.Fatal(err)
		}
		letGo(t, i)
		after := time.Duration(random.Int64N(int64(whole)))
		time.Sleep(after)
		if err := i.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := i.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		ready(t, i)
		wantReady(t, i)
		if got := layout(t, i); got != want {
			t.Errorf("cut %d, after %v: the machine has\n%s\nwant\n%s", n, after, got, want)
		}
		// Writable, and whole in the eyes of a judge.
		run(t, i, "sh", "-c", "echo x >/var/vcap/data/x && sync && rm /var/vcap/data/x")
	}
	within := t.Context()
	if err := i.Stop(within); err != nil {
		t.Fatal(err)
	}
}

// letGo lets the agent start, now and at every boot.
func letGo(t testing.TB, i *lab.Instance) {
	t.Helper()
	run(t, i, "sh", "-c", "rm /etc/hold && sync && systemctl start --no-block bosh-agent")
}

// layout is what a bootstrap leaves: partitions, file systems, mounts, directories with their
// modes and owners, addresses.
func layout(t testing.TB, i *lab.Instance) string {
	t.Helper()
	return run(t, i, "sh", "-c", `lsblk -n -b -o NAME,SIZE,FSTYPE,PARTLABEL,MOUNTPOINTS /dev/vdb
findmnt -n -l -o TARGET,SOURCE,FSTYPE | grep /var/vcap | sort
find /var/vcap -xdev -maxdepth 3 -not -path '*/bosh/*' -not -path '*/monit/*' -printf '%M %u:%g %p\n' | sort
ip -o address show scope global | awk '{print $2, $4}'
cat /etc/hostname`)
}
