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
	"cambium/storage/record"
)

// reboot takes away all mounts, and brings back what the start of an agent does.
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

// The success of one migration is no answer for the next: the Director would take the full disk away.
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
			b.ok(b.Mount(ctx, "third"))
			b.reboot()
			b.fails(b.Migrate(ctx, c.from, c.to), "nothing is mounted on "+b.Dirs.StoreMigrationTarget(), " first")
			// In the middle of the copying.
			b.ok(b.Mount(ctx, "third"))
			func() {
				defer func() { _ = recover() }()
				b.CrashPoint = func(name string) {
					if name == "verify" {
						panic("power cut")
					}
				}
				_ = b.Migrate(ctx, c.from, c.to)
			}()
			b.CrashPoint = func(string) {}
			b.reboot()
			b.onStoreIs(fresh, "new")
			b.ok(os.Remove(filepath.Join(b.Dirs.Store(), "writable")))
			b.fails(b.Migrate(ctx, c.from, c.to), "first", "new to third is not complete")
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

// Names that do not fit what is mounted are refused before anything is done.
func TestRootMigrateOtherDisksThanNamed(t *testing.T) {
	b, old, _ := migrating(t, 128<<20)
	b.fails(b.Migrate(ctx, "old", "third"), "new is on", "not third")
	b.fails(b.Migrate(ctx, "other", "new"), "old is on", "not other")
	b.onStoreIs(old, "old")
	b.ok(b.Migrate(ctx, "old", "new"))
	b.fails(b.Migrate(ctx, "new", "third"), "run mount_disk third first")
}

// A disk that is only half copied never becomes the store.
func TestRootHalfCopiedDiskIsNoStore(t *testing.T) {
	interrupted := func(b *bench) {
		b.killedAt("verify", func() { _ = b.Migrate(ctx, "", "") })
		for _, dir := range []string{b.Dirs.StoreMigrationTarget(), b.Dirs.Store()} {
			b.ok(mount.Unmount(ctx, dir))
		}
		for range 2 {
			b.fails(b.Mount(ctx, "new"), "incomplete copy of old", "run mount_disk old")
		}
		if got := mountedSource(b.t, b.Dirs.Store()); got != "" || b.records.mounted != "old" {
			b.t.Errorf("store is %q, recorded %q; want nothing and old", got, b.records.mounted)
		}
	}
	t.Run("disk", func(t *testing.T) {
		b, _, fresh := migrating(t, 128<<20)
		interrupted(b)
		// Also when another program has put it there.
		b.ok(mount.Device(ctx, fresh.Path+"p1", b.Dirs.Store(), "ext4", nil))
		b.fails(b.Mount(ctx, "new"), "incomplete copy of old")
		b.ok(mount.Unmount(ctx, b.Dirs.Store()))
		b.ok(b.Mount(ctx, "old"))
		b.ok(b.Mount(ctx, "new"))
		b.ok(b.Migrate(ctx, "old", "new"))
		b.onStoreIs(fresh, "new")
	})
	t.Run("directory", func(t *testing.T) {
		b, _ := binding(t)
		interrupted(b)
		b.ok(errors.Join(b.Mount(ctx, "old"), b.Mount(ctx, "new"), b.Migrate(ctx, "old", "new")))
		if b.records.mounted != "new" {
			t.Errorf("recorded %q, want new", b.records.mounted)
		}
	})
	t.Run("released", func(t *testing.T) {
		b, _, fresh := migrating(t, 128<<20)
		interrupted(b)
		b.ok(b.Remove(ctx, "old"))
		b.fails(b.Mount(ctx, "new"), "incomplete copy of old", "'agent disk accept new'")
		b.ok(b.Record.Ask(record.Accept, "new"))
		b.ok(b.Mount(ctx, "new"))
		b.onStoreIs(fresh, "new")
	})
}

// A process that comes to the migration target during the copy is named and does not hold up the end.
func TestRootBusyMigrationTarget(t *testing.T) {
	b, _, fresh := migrating(t, 128<<20)
	b.CrashPoint = func(name string) {
		if name == "remove mark" {
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

// forgetful cannot record another disk.
type forgetful struct {
	*records
	full bool
}

func (f *forgetful) SetMountedCID(cid string) error {
	if f.full {
		return unix.ENOSPC
	}
	return f.records.SetMountedCID(cid)
}

// When the new disk cannot be recorded, the old one goes back to the store.
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
			b.Persistent.Records = full
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

// A disk on the migration target grows like any other, and so does one that became larger on its way to the store.
func TestRootMigrationTargetGrows(t *testing.T) {
	b := newBench(t, Options{})
	b.disk(64<<20, "old")
	fresh := b.disk(400<<20, "new")
	withXFS(b, "new") // which needs no capability to be grown that is withheld here
	b.ok(errors.Join(b.Mount(ctx, "old"), b.Mount(ctx, "new")))
	fresh.Grow(t, 700<<20)
	b.ok(b.Mount(ctx, "new"))
	if got := bytesOf(t, b.Dirs.StoreMigrationTarget()); got < 600<<20 {
		t.Errorf("on the migration target it has %d MiB, want those of its disk of 700", got>>20)
	}
	fresh.Grow(t, 1000<<20)
	b.ok(b.Migrate(ctx, "old", "new"))
	if got := bytesOf(t, b.Dirs.Store()); got < 900<<20 {
		t.Errorf("on the store it has %d MiB, want those of its disk of 1000", got>>20)
	}
}
