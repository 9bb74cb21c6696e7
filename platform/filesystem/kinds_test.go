package filesystem

import (
	"slices"
	"testing"
)

// A row that lacks something would fail only on the disk that needs it.
func TestManagedKindsAreComplete(t *testing.T) {
	for _, row := range managedKinds {
		if row.mountType == "" || row.mkfs == nil || row.finished == nil || row.length == nil || row.grow == nil {
			t.Errorf("the row of %s is not complete", row.kind)
		}
		if !row.kind.Managed() || row.kind.MountType() != row.mountType || !(Content{Kind: row.kind}).Data() {
			t.Errorf("%s is not used", row.kind)
		}
		magic := row.kind
		if row.kind == Ext4 {
			magic = extFamily
		}
		if readers[magic] == nil || !slices.ContainsFunc(signatures, func(s signature) bool { return s.kind == magic }) {
			t.Errorf("%s is never recognized", row.kind)
		}
	}
	if Btrfs.Managed() || Btrfs.GrowsUnmounted() || Btrfs.MountType() != "btrfs" || !Ext4.GrowsUnmounted() || XFS.GrowsUnmounted() {
		t.Error("a kind without a row is managed, or one with a row is not")
	}
	if got := ManagedNames(); got != "ext4 and xfs" {
		t.Errorf("names %q", got)
	}
}
