//go:build vm

package vm

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"cambium/internal/eventually"
	"cambium/internal/status"
	"cambium/lab"
	"cambium/lab/machine"
	"cambium/lab/machine/qemu"
)

// agentJSONFor is a stemcell's that finds disks in the given way.
func agentJSONFor(t testing.TB, resolution string) []byte {
	t.Helper()
	data, err := json.Marshal(map[string]any{
		"Platform": map[string]any{"Linux": map[string]any{"PartitionerType": "parted", "ServiceManager": "systemd",
			"DevicePathResolutionType": resolution,
			"SkipDiskSetup":            resolution == "scsi"}},
		"Infrastructure": map[string]any{"Settings": map[string]any{
			"Sources":       []any{map[string]any{"Type": "File", "SettingsPath": "/var/vcap/bosh/agent-bootstrap-env.json"}},
			"UseServerName": true, "UseRegistry": true}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// does asks the agent over the bus and follows the task.
func does(t testing.TB, i *lab.Instance, method string, arguments ...any) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), readyTimeout)
	defer cancel()
	value, err := i.Agent.Do(ctx, method, arguments...)
	if err != nil {
		t.Fatalf("%s %v: %v", method, arguments, err)
	}
	return string(value)
}

// onStore checks that the first partition of the disk that udev calls link is the store. udev may
// lag: it leaves a disk alone while the agent holds it.
func onStore(t testing.TB, i *lab.Instance, link string) {
	t.Helper()
	got := strings.Fields(run(t, i, "sh", "-c",
		"findmnt -no SOURCE /var/vcap/store; udevadm wait --timeout=120 /dev/disk/by-id/"+link+"-part1 && readlink -f /dev/disk/by-id/"+link+"-part1"))
	if len(got) != 2 || got[0] != got[1] {
		t.Fatalf("the store is %q, want the partition of %s", got, link)
	}
}

const storeSum = "cd /var/vcap/store && find . -path ./lost+found -prune -o -printf '%P %m %U %T@ %l\\n' -type f -exec md5sum {} + | sort | md5sum"

// TestVMDisks has the disks of an IaaS, with the names that a real udev gives them: they come
// while the machine runs, on two buses, grow, and hand the data on.
func TestVMDisks(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	i := create(t, l, lab.VM{Ephemeral: 2 * lab.GiB, AgentJSON: agentJSONFor(t, "virtio")})
	parent := t // images are needed until the machine's end
	attach := func(t testing.TB, id string, size int64, bus machine.Bus) {
		t.Helper()
		if _, err := i.Attach(t.Context(), machine.Disk{ID: id, Image: blank(parent, size), Bus: bus}); err != nil {
			t.Fatal(err)
		}
	}
	if err := i.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	ready(t, i)

	const cid, link = "4d3f2a10-0000-4111-8222-123456789abc", "virtio-4d3f2a10-0000-4111-8"
	var sum string
	ok := t.Run("virtio disk by the 20 characters of its serial number, plugged in while mount_disk waits",
		func(t *testing.T) {
			does(t, i, "add_persistent_disk", cid, map[string]any{"path": "/dev/sdz"})
			mounted := make(chan error, 1)
			go func() {
				_, err := i.Agent.Do(t.Context(), "mount_disk", cid)
				mounted <- err
			}()
			image := blank(t, 512<<20)
			if _, err := i.Attach(t.Context(), machine.Disk{ID: cid, Image: image}); err != nil {
				t.Fatal(err)
			}
			if err := <-mounted; err != nil {
				t.Fatal(err)
			}
			onStore(t, i, link)
		}) && t.Run("the mounted disk grows", func(t *testing.T) {
		run(t, i, "sh", "-c", `cd /var/vcap/store && mkdir d && for n in $(seq 40); do echo $n > d/$n; done && head -c 20000000 /dev/urandom > large &&
			truncate -s 100M sparse && ln large hard && ln -s large soft && chown 1234:4321 d/7 && chmod 4711 d/8 && mkfifo fifo`)
		sum = run(t, i, "sh", "-c", storeSum)
		if err := i.Resize(t.Context(), cid, 1<<30); err != nil {
			t.Fatal(err)
		}
		eventually.True(t, "the larger file system", func() bool {
			mib, err := strconv.Atoi(strings.TrimSpace(run(t, i, "sh", "-c",
				"df -BM --output=size /var/vcap/store | tail -1 | tr -d 'M '")))
			return err == nil && mib > 900
		})
	}) && t.Run("its data moves to an NVMe disk over the bus", func(t *testing.T) {
		attach(t, "volnvme", 1<<30, machine.NVMe)
		does(t, i, "add_persistent_disk", "volnvme", "/dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_volnvme")
		does(t, i, "mount_disk", "volnvme")
		onStore(t, i, link)
		migrateSlowly(t, i, cid, "volnvme")
		onStore(t, i, "nvme-QEMU_NVMe_Ctrl_volnvme")
		if got := run(t, i, "sh", "-c", storeSum); got != sum {
			t.Errorf("after the migration the store's sum is %q, want %q", got, sum)
		}
		does(t, i, "migrate_disk", cid, "volnvme") // again changes nothing
		does(t, i, "unmount_disk", cid)
		does(t, i, "remove_persistent_disk", cid)
		if err := i.Detach(t.Context(), cid); err != nil {
			t.Fatal(err)
		}
		if got := does(t, i, "list_disk"); got != `["volnvme"]` {
			t.Errorf("list_disk = %s", got)
		}
		does(t, i, "unmount_disk", "volnvme")
		does(t, i, "remove_persistent_disk", "volnvme")
	})
	if !ok {
		t.FailNow()
	}
	t.Run("/dev/sdX without identity is the vdX that is there", func(t *testing.T) {
		attach(t, "short", 128<<20, machine.Virtio)
		node := strings.TrimSpace(run(t, i, "sh", "-c",
			"udevadm wait --timeout=60 /dev/disk/by-id/virtio-short && readlink -f /dev/disk/by-id/virtio-short"))
		does(t, i, "add_persistent_disk", "nameless", "/dev/sd"+strings.TrimPrefix(node, "/dev/vd"))
		does(t, i, "mount_disk", "nameless")
		onStore(t, i, "virtio-short")
		does(t, i, "unmount_disk", "nameless")
		does(t, i, "remove_persistent_disk", "nameless")
	})
	t.Run("a path that is another disk's node, before the disk comes", func(t *testing.T) { lateDisk(t, i) })
}

// migrateSlowly has the new disk be slow until the progress of the migration was seen in every place
// where an operator may look.
func migrateSlowly(t testing.TB, i *lab.Instance, from, to string) {
	t.Helper()
	vm := i.Machine.(*qemu.Machine)
	if err := vm.Throttle(t.Context(), to, 1<<20); err != nil {
		t.Fatal(err)
	}
	handle, err := i.Agent.Call(t.Context(), "migrate_disk", from, to)
	var task struct {
		ID string `json:"agent_task_id"`
	}
	if err == nil {
		err = json.Unmarshal(handle, &task)
	}
	if err != nil {
		t.Fatalf("migrate_disk: %v: %s", err, handle)
	}
	running := fmt.Sprintf(`{"agent_task_id":%q,"state":"running"}`, task.ID)
	shown := func() (status.Progress, string) {
		t.Helper()
		text, err := i.Output(t.Context(), "/var/vcap/bosh/bin/bosh-agent", "status")
		if err != nil {
			t.Fatalf("agent status: %v\n%s", err, text)
		}
		var d status.Document
		if data := run(t, i, "/var/vcap/bosh/bin/bosh-agent", "status", "--json"); json.Unmarshal([]byte(data), &d) != nil {
			t.Fatalf("agent status --json: %s", data)
		}
		return d.Progress["migrate_disk"], text
	}
	line := regexp.MustCompile(`progress: migrate_disk: (copy|verify): \d+ files, \d+ of \d+ MiB, \d+ MiB/s, about \S+ left`)
	complete := func(p status.Progress) bool {
		return p.Done > 0 && p.Total > p.Done && p.Rate > 0 && p.Remaining > 0 && p.Text != "" && !p.Updated.IsZero()
	}
	var structured, stderr, file bool
	eventually.True(t, "progress in the file, in text and in JSON", func() bool {
		value, err := i.Agent.Call(t.Context(), "get_task", task.ID)
		if err != nil || string(value) != running {
			t.Fatalf("get_task during the migration: %s (%v), want %s", value, err, running)
		}
		p, text := shown()
		structured, stderr = structured || complete(p), stderr || line.MatchString(strings.Join(strings.Fields(text), " "))
		file = file || complete(agentStatus(t, i).Progress["migrate_disk"])
		return structured && stderr && file
	})
	if err := vm.Throttle(t.Context(), to, 0); err != nil {
		t.Fatal(err)
	}
	var value json.RawMessage
	eventually.True(t, "the end of the migration", func() bool {
		if value, err = i.Agent.Call(t.Context(), "get_task", task.ID); err != nil {
			t.Fatal(err)
		}
		return string(value) != running
	})
	if string(value) != "{}" {
		t.Errorf("migrate_disk = %s, want {}", value)
	}
	eventually.True(t, "the end of the progress", func() bool {
		p, text := shown()
		return p == status.Progress{} && !strings.Contains(text, "migrate_disk") && len(agentStatus(t, i).Progress) == 0
	})
}
