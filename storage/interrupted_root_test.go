//go:build root

package storage

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

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
	b.fails(b.Migrate(ctx, "", ""), "run mount_disk for the new disk first")
}

// Wherever the end of a migration is cut off, the store is the old disk and the new one says that it is incomplete, or
// the store is the new disk: what is deleted from the store afterwards does not come back, and its top directory is as
// it was.
func TestRootPowerCutAtTheEndOfAMigration(t *testing.T) {
	kinds := map[string]func(t *testing.T) *bench{
		"disk":      func(t *testing.T) *bench { b, _, _ := migrating(t, 64<<20); return b },
		"directory": func(t *testing.T) *bench { b, _ := binding(t); return b },
	}
	for kind, make := range kinds {
		var steps []string
		b := make(t)
		b.CrashPoint = func(name string) { steps = append(steps, name) }
		b.ok(b.Migrate(ctx, "old", "new"))
		end := slices.Index(steps, "unmount old store")
		if end < 0 {
			t.Fatalf("steps are %q", steps)
		}
		for i := end; i < len(steps); i++ {
			t.Run(kind+" before "+steps[i], func(t *testing.T) {
				b := make(t)
				store := b.Dirs.Store()
				write(t, filepath.Join(store, "kept"), "precious")
				b.ok(errors.Join(os.Chown(store, 1234, 4321), os.Chmod(store, 0o751)))
				at := -1
				b.CrashPoint = func(string) {
					if at++; at == i {
						panic("power cut")
					}
				}
				func() {
					defer func() { _ = recover() }()
					_ = b.Migrate(ctx, "old", "new")
				}()
				b.CrashPoint = func(string) {}
				b.unmountAll()
				planned, _, err := b.PlanMountLast(ctx)
				b.ok(err)
				done, _, err := b.MountLast(ctx)
				b.ok(err)
				if texts(planned) != texts(done) {
					t.Errorf("planned\n%s\ndone\n%s", texts(planned), texts(done))
				}
				b.ok(os.Remove(filepath.Join(store, "one")))
				if on := b.list(); on[0] == "old" {
					b.ok(b.Mount(ctx, "new"))
				}
				b.ok(b.Migrate(ctx, "old", "new"))
				b.reboot()
				if _, err := os.Lstat(filepath.Join(store, "one")); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("a file that was removed from the store is back: %v", err)
				}
				var st unix.Stat_t
				b.ok(unix.Stat(store, &st))
				if read(t, filepath.Join(store, "kept")) != "precious" || b.list()[0] != "new" || st.Uid != 1234 ||
					st.Gid != 4321 || st.Mode&0o7777 != 0o751 {
					t.Errorf("on the store is %q, with %d:%d %o", b.list(), st.Uid, st.Gid, st.Mode&0o7777)
				}
			})
		}
	}
}
