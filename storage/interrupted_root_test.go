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
