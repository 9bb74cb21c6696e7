//go:build root

package storage

import (
	"os"
	"testing"
)

// TestRootTakeoverBeforeAMigration: cloudfoundry/bosh-agent records a disk as the store when it mounts it on the
// migration target. An agent that takes over then continues the migration.
func TestRootTakeoverBeforeAMigration(t *testing.T) {
	b, old, fresh := migrating(t, 128<<20)
	sum := treeSum(t, b.Dirs.Store())
	b.records.mounted = "new"
	b.ok(boot(b.disks()))
	if b.records.mounted != "old" {
		t.Errorf("recorded as the store is %q, want old, which is mounted on %s from %s", b.records.mounted, b.Dirs.Store(),
			old.Path)
	}
	b.ok(b.Migrate(ctx, "old", "new"))
	if got := treeSum(t, b.Dirs.Store()); got != sum {
		t.Error("the files are not the same")
	}
	b.onStoreIs(fresh, "new")
}

// TestRootTakeoverAfterAFailedMigration: the same if the new disk is no longer mounted. A boot that finds the store
// mounted records that disk, so that the other one, which may be incomplete, does not become the store at the next
// boot.
func TestRootTakeoverAfterAFailedMigration(t *testing.T) {
	b, old, _ := migrating(t, 64<<20)
	b.unmounted("new", "Unmounted partition of new")
	b.ok(os.Remove(b.Dirs.DiskRecord())) // the other agent has none
	b.records.mounted = "new"
	b.ok(boot(b.disks()))
	b.onStoreIs(old, "old")
	b.reboot()
	b.onStoreIs(old, "old")
}
