//go:build vm && nightly

package vm

import (
	"context"
	"strings"
	"testing"

	"cambium/lab"
	"cambium/lab/machine"
)

// TestNightlyVMDisksSCSI finds disks behind a SCSI controller by what the IaaS knows of them. There is no ephemeral disk.
func TestNightlyVMDisksSCSI(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	i := create(t, l, lab.VM{AgentJSON: agentJSONFor(t, "scsi")})
	for _, id := range []string{"scsifirst", "volscsi1"} {
		if _, err := i.Attach(t.Context(), machine.Disk{ID: id, Image: blank(t, 128<<20), Bus: machine.SCSI}); err != nil {
			t.Fatal(err)
		}
	}
	if err := i.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	ready(t, i)
	for _, c := range []struct {
		name string
		hint map[string]any
	}{
		{"id, dashes left out", map[string]any{"id": "vol-scsi-1"}},
		{"volume id is the target on the first disk's controller", map[string]any{"volume_id": "1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			does(t, i, "add_persistent_disk", "vol", c.hint)
			does(t, i, "mount_disk", "vol")
			onStore(t, i, "scsi-0QEMU_QEMU_HARDDISK_volscsi1")
			does(t, i, "unmount_disk", "vol")
			does(t, i, "remove_persistent_disk", "vol")
		})
	}
	t.Run("a target that is not there", func(t *testing.T) {
		does(t, i, "add_persistent_disk", "vol", map[string]any{"volume_id": "9"})
		ctx, cancel := context.WithTimeout(t.Context(), readyTimeout)
		defer cancel()
		if _, err := i.Agent.Do(ctx, "mount_disk", "vol"); err == nil || !strings.Contains(err.Error(), "timed out") {
			t.Errorf("mount_disk = %v, want what was looked for", err)
		} else {
			t.Log(err)
		}
	})
}
