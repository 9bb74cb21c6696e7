//go:build root

package storage

import "testing"

// cloudfoundry/bosh-agent records a disk as the store when it mounts it on the migration target. An agent that takes over there goes
// on with the migration.
func TestRootTakeoverBeforeAMigration(t *testing.T) {
	b, old, fresh := migrating(t, 128<<20)
	sum := treeSum(t, b.Dirs.Store())
	b.records.mounted = "new"
	b.ok(boot(b.disks()))
	if b.records.mounted != "old" {
		t.Errorf("recorded as the store is %q, want old, which is mounted on %s from %s", b.records.mounted, b.Dirs.Store(), old.Path)
	}
	b.ok(b.Migrate(ctx, "old", "new"))
	if got := treeSum(t, b.Dirs.Store()); got != sum {
		t.Error("the files are not the same")
	}
	b.onStoreIs(fresh, "new")
}
