package filesystem

import (
	"testing"

	"cambium/platform/filesystem/probe"
)

// A row that lacks something would fail only on the disk that needs it.
func TestManagedKindsAreComplete(t *testing.T) {
	for kind, row := range managedKinds {
		if row.mkfs == nil || row.finished == nil || row.length == nil || row.grow == nil || len(row.lookFlags) == 0 {
			t.Errorf("the row of %s is not complete", kind)
		}
		if !kind.Managed() {
			t.Errorf("%s is not used", kind)
		}
	}
	if len(managedKinds) != 2 || GrowsUnmounted(probe.Btrfs) || !GrowsUnmounted(probe.Ext4) ||
		GrowsUnmounted(probe.XFS) {
		t.Error("a kind without a row can be grown, or one with a row cannot")
	}
}
