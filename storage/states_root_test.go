//go:build root

package storage

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cambium/internal/looptest"
	"cambium/platform/mount"
)

// reboot unmounts everything, and does what the start of an agent does.
func (b *bench) reboot() {
	b.t.Helper()
	for _, dir := range []string{b.Dirs.StoreMigrationTarget(), b.Dirs.Store()} {
		b.ok(mount.Unmount(ctx, dir))
	}
	b.ok(boot(b.disks()))
}

func (b *bench) onStoreIs(dev *looptest.Device, cid string) {
	b.t.Helper()
	if got := mountedSource(b.t, b.Dirs.Store()); got != dev.Path+"p1" || b.records.mounted != cid {
		b.t.Fatalf("store is %q, recorded %q; want %s with %s", got, b.records.mounted, dev.Path, cid)
	}
	write(b.t, filepath.Join(b.Dirs.Store(), "writable"), "x")
}

// TestRootMigrateAgainAfterAReboot: the success of one migration must not be the reply to the next one, or the Director
// would detach the disk with the data.
func TestRootMigrateAgainAfterAReboot(t *testing.T) {
	for name, c := range map[string]struct{ from, to string }{"with names": {"new", "third"}, "without": {}} {
		t.Run(name, func(t *testing.T) {
			b, _, fresh := migrating(t, 128<<20)
			third := b.disk(128<<20, "third")
			b.ok(b.Migrate(ctx, "", ""))
			b.ok(b.Migrate(ctx, "old", "new"))
			b.unmounted("old", "Partition of old is not mounted")
			b.ok(b.Remove(ctx, "old"))
			sum := treeSum(t, b.Dirs.Store())
			// Killed before it is on record that the disk is mounted.
			b.killedAt("record disk", func() { _ = b.Mount(ctx, "third") })
			b.reboot()
			b.fails(b.Migrate(ctx, c.from, c.to), "nothing is mounted on "+b.Dirs.StoreMigrationTarget(), " first")
			// In the middle of the copying.
			b.ok(b.Mount(ctx, "third"))
			b.killedAt("verify", func() { _ = b.Migrate(ctx, c.from, c.to) })
			b.reboot()
			b.onStoreIs(fresh, "new")
			b.ok(os.Remove(filepath.Join(b.Dirs.Store(), "writable")))
			b.fails(b.Migrate(ctx, c.from, c.to), " first")
			b.ok(b.Mount(ctx, "third"))
			b.ok(b.Migrate(ctx, c.from, c.to))
			if got := treeSum(t, b.Dirs.Store()); got != sum {
				t.Error("the files are not the same")
			}
			b.onStoreIs(third, "third")
			b.ok(b.Migrate(ctx, c.from, c.to))
		})
	}
}

// TestRootBusyMigrationTarget: a process that begins to use the migration target during the copy is reported and does
// not delay its end.
func TestRootBusyMigrationTarget(t *testing.T) {
	b, _, fresh := migrating(t, 128<<20)
	b.CrashPoint = func(name string) {
		if name == "complete copy" {
			startIn(t, b.Dirs.StoreMigrationTarget(), "sleep", "1000")
		}
	}
	b.ok(b.Migrate(ctx, "old", "new"))
	b.onStoreIs(fresh, "new")
	if got := mountedSource(t, b.Dirs.StoreMigrationTarget()); got != "" {
		t.Errorf("migration target is still %q", got)
	}
	if !strings.Contains(b.log.String(), "sleep (pid") {
		t.Error("the user is not named in the log")
	}
}

// forgetful has records that cannot name another disk.
type forgetful struct {
	*records
	full bool
}

func (f *forgetful) SetManagedCID(cid string) error {
	if f.full {
		return unix.ENOSPC
	}
	return f.records.SetManagedCID(cid)
}

// TestRootMigrateWithoutRoomForTheRecord: if the new disk cannot be recorded, the old one is mounted on the store
// again.
func TestRootMigrateWithoutRoomForTheRecord(t *testing.T) {
	for _, kind := range []string{"disk", "directory"} {
		t.Run(kind, func(t *testing.T) {
			var b *bench
			if kind == "disk" {
				b, _, _ = migrating(t, 128<<20)
			} else {
				b, _ = binding(t)
			}
			full := &forgetful{records: b.records, full: true}
			b.Persistent.Known = full
			err := b.Migrate(ctx, "old", "new")
			if !errors.Is(err, unix.ENOSPC) {
				t.Errorf("Migrate = %v, want no space left", err)
			}
			if list := b.list(); len(list) == 0 || list[0] != "old" {
				t.Errorf("mounted are %q; want old on the store", list)
			}
			write(t, filepath.Join(b.Dirs.Store(), "writable"), "x")
			// Killed at that moment, it is clear what to do.
			b.ok(mount.Unmount(ctx, b.Dirs.Store()))
			full.full = false
			b.fails(b.Migrate(ctx, "old", "new"), "nothing is mounted on", "run mount_disk old first")
			b.ok(b.Mount(ctx, "old"))
			b.ok(b.Migrate(ctx, "old", "new"))
			if read(t, filepath.Join(b.Dirs.Store(), "writable")) != "x" || b.records.mounted != "new" {
				t.Errorf("recorded %q, want new with what was written last", b.records.mounted)
			}
		})
	}
}
