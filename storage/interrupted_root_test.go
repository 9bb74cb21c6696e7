//go:build root

package storage

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"cambium/platform/mount"
)

// interrupted is a migration that ended in the middle of the copying, with both disks unmounted as a reboot leaves them.
func interrupted(t *testing.T, b *bench) {
	t.Helper()
	write(t, filepath.Join(b.Dirs.Store(), "rotated"), "copied, and then removed from the store")
	write(t, filepath.Join(b.Dirs.Store(), "data"), "precious")
	b.killedAt("verify", func() { _ = b.Migrate(ctx, "old", "new") })
	for _, dir := range []string{b.Dirs.StoreMigrationTarget(), b.Dirs.Store()} {
		b.ok(mount.Unmount(ctx, dir))
	}
}

// A migration that is called again begins anew: what the store has lost in between does not come back, and files that
// the new disk held before the first attempt are kept.
func TestRootResumedMigrationRemovesLeftovers(t *testing.T) {
	b, _, fresh := migrating(t, 64<<20)
	interrupted(t, b)
	for range 2 { // mounted twice
		b.ok(errors.Join(b.Mount(ctx, "old"), b.Mount(ctx, "new")))
		b.unmounted("new", "Unmounted partition of new")
		b.unmounted("old", "Unmounted partition of old")
	}
	b.ok(errors.Join(b.Mount(ctx, "old"), b.Mount(ctx, "new")))
	b.ok(os.Remove(filepath.Join(b.Dirs.Store(), "rotated")))
	b.ok(b.Migrate(ctx, "old", "new"))
	b.onStoreIs(fresh, "new")
	if _, err := os.Lstat(filepath.Join(b.Dirs.Store(), "rotated")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that was removed from the store is back: %v", err)
	}
	if got := read(t, filepath.Join(b.Dirs.Store(), "data")); got != "precious" {
		t.Errorf("data is %q", got)
	}
}

// cloudfoundry/bosh-agent records the new disk before the store is copied to it. Neither disk is mounted at boot;
// mount_disk of the old one goes on.
func TestRootHalfCopiedByAnotherAgent(t *testing.T) {
	other := newBench(t, Options{})
	old, half := other.disk(64<<20, "old"), other.disk(64<<20, "new")
	other.ok(other.Mount(ctx, "old"))
	write(t, filepath.Join(other.Dirs.Store(), "data"), "precious")
	other.ok(other.Mount(ctx, "new"))
	write(t, filepath.Join(other.Dirs.StoreMigrationTarget(), "half"), "a part of it")
	for _, dir := range []string{other.Dirs.StoreMigrationTarget(), other.Dirs.Store()} {
		other.ok(mount.Unmount(ctx, dir))
	}

	b := newBench(t, Options{}) // with none of the records
	b.attach("old", old.Path)
	b.attach("new", half.Path)
	b.records.mounted = "new"
	before := checksum(t, old) + checksum(t, half)
	for range 2 {
		b.fails(boot(b.disks()), "name the persistent disks new and old", "may be an incomplete copy", "agent disk accept old")
	}
	if mountedSource(t, b.Dirs.Store()) != "" || checksum(t, old)+checksum(t, half) != before {
		t.Fatal("a disk was mounted or changed")
	}
	_, _, err := b.PlanMountLast(ctx)
	b.fails(err, "may be an incomplete copy")
	b.ok(errors.Join(b.Mount(ctx, "old"), b.Mount(ctx, "new"), b.Migrate(ctx, "old", "new")))
	if got := read(t, filepath.Join(b.Dirs.Store(), "data")) + read(t, filepath.Join(b.Dirs.Store(), "half")); got != "preciousa part of it" {
		t.Errorf("the store holds %q", got)
	}
	b.reboot()
	b.onStoreIs(half, "new")
}

// After a migration, the next disk is mounted on the migration target, and the agent is killed before that is on record: the
// success of the last migration is not that of the next.
func TestRootKilledWhileMountingTheNextTarget(t *testing.T) {
	b, _, fresh := migrating(t, 64<<20)
	b.ok(b.Migrate(ctx, "old", "new"))
	b.disk(64<<20, "third")
	b.killedAt("record disk", func() { _ = b.Mount(ctx, "third") })
	b.reboot()
	b.onStoreIs(fresh, "new")
	b.fails(b.Migrate(ctx, "", ""), "run mount_disk of the new disk first")
}
