//go:build vm

package vm

import (
	"context"
	"strings"
	"testing"
	"time"

	"cambium/lab"
	"cambium/lab/machine"
)

// lateDisk has the CPI name the node of one disk as the path of another, which is plugged in seconds after mount_disk: the identity that
// udev tells then is believed, not the path. The disk that has the node stays the store.
func lateDisk(t *testing.T, i *lab.Instance) {
	const first, late = "vol-first", "vol-late"
	attach := func(id string) {
		t.Helper()
		if _, err := i.Attach(t.Context(), machine.Disk{ID: id, Image: blank(t, 128<<20)}); err != nil {
			t.Fatal(err)
		}
	}
	lists := func(want string) {
		t.Helper()
		if got := does(t, i, "list_disk"); got != want {
			t.Errorf("list_disk = %s, want %s", got, want)
		}
	}
	attach(first)
	does(t, i, "add_persistent_disk", first, "/dev/sdz")
	does(t, i, "mount_disk", first)
	onStore(t, i, "virtio-"+first)
	run(t, i, "sh", "-c", "echo first > /var/vcap/store/whose && sync")

	node := strings.TrimSpace(run(t, i, "readlink", "-f", "/dev/disk/by-id/virtio-"+first))
	does(t, i, "add_persistent_disk", late, node)
	mounted := make(chan error, 1)
	go func() {
		_, err := i.Agent.Do(t.Context(), "mount_disk", late)
		mounted <- err
	}()
	// The node is there and udev has finished with it. If the path were believed, it would be by now.
	select {
	case err := <-mounted:
		t.Fatalf("mount_disk of a disk that is not there yet has ended: %v", err)
	case <-time.After(3 * time.Second):
	}
	if got := run(t, i, "sh", "-c", "findmnt -no TARGET "+node+"1"); got != "/var/vcap/store\n" {
		t.Errorf("the disk that has the node is on %q", got)
	}
	attach(late)
	if err := <-mounted; err != nil {
		t.Fatal(err)
	}
	lists(`["` + first + `","` + late + `"]`)
	got := strings.Fields(run(t, i, "sh", "-c",
		"findmnt -no SOURCE /var/vcap/store_migration_target; udevadm wait --timeout=120 /dev/disk/by-id/virtio-"+late+
			"-part1 && readlink -f /dev/disk/by-id/virtio-"+late+"-part1; ls /var/vcap/store_migration_target"))
	if len(got) < 2 || got[0] != got[1] || strings.Contains(strings.Join(got, " "), "whose") {
		t.Errorf("the migration target is %q, want the partition of %s", got, late)
	}
	does(t, i, "unmount_disk", late)
	onStore(t, i, "virtio-"+first)
	lists(`["` + first + `"]`)
	does(t, i, "remove_persistent_disk", late)
	if err := i.Detach(t.Context(), late); err != nil {
		t.Fatal(err)
	}
	within, cancel := context.WithTimeout(t.Context(), readyTimeout)
	defer cancel()
	if err := i.Reboot(within); err != nil {
		t.Fatal(err)
	}
	ready(t, i)
	onStore(t, i, "virtio-"+first)
	if got := run(t, i, "cat", "/var/vcap/store/whose"); got != "first\n" {
		t.Errorf("after a reboot the store has %q", got)
	}
	lists(`["` + first + `"]`)
}
