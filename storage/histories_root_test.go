//go:build root

package storage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"cambium/internal/looptest"
	"cambium/platform/disk"
	"cambium/platform/disk/layout"
	"cambium/platform/mount"
	"cambium/settings"
	"cambium/storage/decide"
	"cambium/storage/identity"
	"cambium/storage/persistent"
	"cambium/storage/record"
)

// The histories of docs/adr/0036-a-store-says-who-it-is.md, on real disks.

// clone returns a byte-identical copy of a disk, like a restored snapshot.
func clone(t *testing.T, of *looptest.Device) *looptest.Device {
	t.Helper()
	image := filepath.Join(t.TempDir(), "clone.img")
	b, err := exec.Command("sync", of.Path).CombinedOutput()
	if err != nil {
		t.Fatalf("sync: %v: %s", err, b)
	}
	if out, err := exec.Command("cp", "--sparse=always", of.Image, image).CombinedOutput(); err != nil {
		t.Fatalf("cp: %v: %s", err, out)
	}
	return looptest.Attach(t, image)
}

// used mounts a disk by a boot, or otherwise by mount_disk, and checks its content.
func (b *bench) used(dev *looptest.Device, cid, content string) {
	b.t.Helper()
	b.onStoreIs(dev, cid)
	b.wantFile(b.Dirs.Store(), content)
}

// withheld checks that neither a boot nor mount_disk of the disk mounts anything on the store.
func (b *bench) withheld(cid string, texts ...string) {
	b.t.Helper()
	b.fails(boot(b.disks()), texts...)
	b.nothingOnStore()
	b.fails(b.Mount(ctx, cid), texts...)
	b.nothingOnStore()
}

// aStore returns a disk on the store with the file of a job.
func aStore(t *testing.T) (*bench, *looptest.Device) {
	t.Helper()
	b := newBench(t, Options{})
	dev := b.disk(64<<20, "old")
	b.ok(b.Mount(ctx, "old"))
	b.put("one")
	return b, dev
}

// away is the hint of a disk that is not attached.
const away = "/dev/cambium-away"

// a: first deploy; reboot; recreate with the same disk; the disk moved to another VM and back.
func TestRootHistoryMoves(t *testing.T) {
	b, dev := aStore(t)
	b.reboot()
	b.used(dev, "old", "one")
	b.unmountAll()
	other := newBench(t, Options{})
	other.attach("old", dev.Path)
	other.ok(other.Mount(ctx, "old"))
	other.used(dev, "old", "one")
	other.put("two")
	other.reboot()
	other.used(dev, "old", "two")
	other.unmountAll()
	b.ok(boot(b.disks()))
	b.used(dev, "old", "two")
}

// interrupted returns a machine on which a migration was cut off before a step, with all mounts gone.
func interrupted(t *testing.T, step string) (b *bench, old, fresh *looptest.Device) {
	t.Helper()
	b, old, fresh = migrating(t, 64<<20)
	b.put("one")
	b.killedAt(step, func() { _ = b.Migrate(ctx, "old", "new") })
	b.unmountAll()
	return b, old, fresh
}

// migrationSteps returns the steps at which a migration can be cut off.
func migrationSteps(t *testing.T) (steps []string) {
	t.Helper()
	b, _, _ := migrating(t, 64<<20)
	b.CrashPoint = func(name string) {
		if !slices.Contains(steps, name) {
			steps = append(steps, name)
		}
	}
	b.ok(b.Migrate(ctx, "old", "new"))
	return steps
}

// b: cut off at every step, then a reboot: there is one complete store. Then the old disk is detached.
func TestRootHistoryCutMigration(t *testing.T) {
	for _, step := range migrationSteps(t) {
		t.Run(step, func(t *testing.T) {
			b, old, fresh := interrupted(t, step)
			b.ok(boot(b.disks()))
			b.wantFile(b.Dirs.Store(), "one")
			if got := mountedSource(t, b.Dirs.Store()); got == fresh.Path+"p1" {
				delete(b.records.disks, "old")
				b.reboot()
				b.used(fresh, "new", "one")
				return
			}
			b.used(old, "old", "one")
			b.put("two") // makes the copy stale, if there is one
			b.unmountAll()
			delete(b.records.disks, "old")
			for _, err := range []error{boot(b.disks()), b.Mount(ctx, "new")} {
				if err == nil && !slices.Contains([]string{"mark migration target"}, step) {
					t.Errorf("a stale copy is the store: %q", mountedSource(t, b.Dirs.Store()))
				}
				b.unmountAll()
			}
		})
	}
}

// c: the copy is complete, the power is cut, the new disk appears late, and jobs write to the old one. Then both are
// attached, and the migration is repeated.
func TestRootHistoryLateCopy(t *testing.T) {
	steps := migrationSteps(t)
	for _, step := range steps[slices.Index(steps, "complete tree"):] {
		t.Run(step, func(t *testing.T) {
			b, old, fresh := interrupted(t, step)
			path := b.records.disks["new"].Hint.Path
			b.attach("new", away)
			if err := boot(b.disks()); err != nil {
				// The record names the new disk, which may have been the store.
				b.fails(err, "timed out")
				b.nothingOnStore()
				b.attach("new", path)
				b.ok(boot(b.disks()))
				b.wantFile(b.Dirs.Store(), "one")
				return
			}
			b.used(old, "old", "one")
			b.put("later")
			b.attach("new", path)
			b.reboot()
			b.used(old, "old", "later")
			b.ok(b.Mount(ctx, "new"))
			b.ok(b.Migrate(ctx, "old", "new"))
			b.used(fresh, "new", "later")
			b.reboot()
			b.used(fresh, "new", "later")
		})
	}
}

// d: the migration fails half-way and is repeated, and the target dies meanwhile. A disk that had content is not
// emptied.
func TestRootHistoryFailedMigration(t *testing.T) {
	for name, empty := range map[string]bool{"an empty disk": true, "a disk with files": false} {
		t.Run(name, func(t *testing.T) {
			b, old, fresh := migrating(t, 64<<20)
			b.put("one")
			if !empty {
				write(t, filepath.Join(b.Dirs.StoreMigrationTarget(), "theirs"), "x")
			}
			stop, cancel := context.WithCancel(ctx)
			defer cancel()
			b.CrashPoint = func(name string) {
				if name == "verify" {
					cancel()
				}
			}
			b.fails(b.Migrate(stop, "old", "new"), "canceled")
			b.CrashPoint = func(string) {}
			b.used(old, "old", "one")
			b.ok(os.Remove(filepath.Join(b.Dirs.Store(), "two")))
			path := b.records.disks["new"].Hint.Path
			b.attach("new", away) // dead
			b.reboot()
			b.used(old, "old", "one")
			b.unmountAll()
			b.attach("new", path)
			delete(b.records.disks, "old")
			b.fails(b.Mount(ctx, "new"), "incomplete copy of old", "agent disk accept new")
			b.attach("old", old.Path)
			b.ok(boot(b.disks()))
			b.ok(b.Mount(ctx, "new"))
			b.ok(b.Migrate(ctx, "old", "new"))
			b.used(fresh, "new", "one")
			_, theirs := os.Stat(filepath.Join(b.Dirs.Store(), "theirs"))
			_, removed := os.Stat(filepath.Join(b.Dirs.Store(), "two"))
			if empty && removed == nil || !empty && theirs != nil {
				t.Errorf("a removed file is back: %v; theirs is kept: %v", removed == nil, theirs == nil)
			}
		})
	}
}

// e: from "publish store" on, nothing can be recorded.
func TestRootHistoryNoRecord(t *testing.T) {
	b, old, fresh := migrating(t, 64<<20)
	b.put("one")
	full := &forgetful{records: b.records, full: true}
	b.Persistent.Known = full
	if err := b.Migrate(ctx, "old", "new"); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("Migrate = %v, want no space left", err)
	}
	b.put("later")
	for range 2 {
		b.reboot()
		b.wantFile(b.Dirs.Store(), "later")
	}
	full.full = false
	b.reboot()
	b.used(old, "old", "later")
	b.ok(b.Mount(ctx, "new"))
	b.ok(b.Migrate(ctx, "old", "new"))
	b.used(fresh, "new", "later")
}

// copyAsTheOldAgent copies like cloudfoundry/bosh-agent: with tar and all extended attributes, after the new disk was
// recorded.
func (b *bench) copyAsTheOldAgent(whole bool) {
	b.t.Helper()
	b.records.mounted = "new"
	what := "."
	if !whole {
		what = "./one"
	}
	copying := exec.Command("sh", "-ec", `tar -C "$0" --xattrs --xattrs-include='*.*' -cf - `+what+
		` | tar -C "$1" --xattrs --xattrs-include='*.*' -xpf -`, b.Dirs.Store(), b.Dirs.StoreMigrationTarget())
	if out, err := copying.CombinedOutput(); err != nil {
		b.t.Fatalf("tar: %v: %s", err, out)
	}
}

// f: the old agent has migrated, completely or in part, and the old disk is still attached.
func TestRootHistoryOldAgent(t *testing.T) {
	for name, whole := range map[string]bool{"copied wholly": true, "killed in the copy": false} {
		for where, here := range map[string]bool{"on this machine": true, "on another": false} {
			t.Run(name+", "+where, func(t *testing.T) {
				b, old, fresh := migrating(t, 64<<20)
				b.put("one")
				b.copyAsTheOldAgent(whole)
				b.unmountAll()
				if !here {
					b = newBench(t, Options{})
					b.attach("old", old.Path)
					b.attach("new", fresh.Path)
					b.fails(b.Mount(ctx, "new"), "old", fresh.Path, "agent disk accept new")
					b.nothingOnStore()
				} else {
					b.withheld("new", "old", "new", "agent disk accept")
				}
				b.ok(b.Mount(ctx, "old"))
				b.used(old, "old", "one")
				b.unmountAll()
				b.records.mounted = "new"
				delete(b.records.disks, "old")
				if here {
					b.ok(b.Record.Update(func(r *record.Record) { r.Store = "" }))
				}
				b.ok(b.Mount(ctx, "new"))
				b.onStoreIs(fresh, "new")
				b.reboot()
				b.onStoreIs(fresh, "new")
			})
		}
	}
}

// g and h: a snapshot of the store is restored as another disk.
func TestRootHistoryClones(t *testing.T) {
	for _, kind := range []string{"ext4", "xfs"} {
		t.Run(kind, func(t *testing.T) {
			b := newBench(t, Options{})
			original := b.disk(512<<20, "old")
			p := b.records.disks["old"]
			p.FileSystem = kind
			b.records.disks["old"] = p
			b.ok(b.Mount(ctx, "old"))
			b.put("one")
			b.unmountAll()
			copied := clone(t, original)
			b.attach("copy", copied.Path)
			b.fails(b.Mount(ctx, "copy"), "it says that it is persistent disk old", "agent disk accept copy")
			b.nothingOnStore()
			// Only their paths tell them apart.
			b.withheld("old", "agent disk accept old")
			b.ok(b.Record.Ask(record.Accept, "old", ""))
			b.ok(boot(b.disks()))
			b.used(original, "old", "one")
			b.put("later")
			// Beside it, it is not a target either.
			b.ok(b.Mount(ctx, "copy"))
			b.lists("old", "copy")
			b.fails(b.Migrate(ctx, "old", "copy"), "copy is a clone of old")
			b.used(original, "old", "later")
			b.reboot()
			b.used(original, "old", "later")
			// j: their paths are exchanged.
			b.unmountAll()
			b.attach("old", copied.Path)
			b.attach("copy", original.Path)
			b.withheld("old", "agent disk accept old")
			b.attach("old", original.Path)
			b.attach("copy", copied.Path)
			b.ok(boot(b.disks()))
			b.used(original, "old", "later")
			b.unmountAll()
			b.ok(b.Remove(ctx, "old"))
			b.ok(b.Mount(ctx, "copy"))
			b.used(copied, "copy", "one")
			b.reboot()
			b.used(copied, "copy", "one")
		})
	}
}

// i: the CID of a volume changes, and the hint of the former CID remains.
func TestRootHistoryUpdateDisk(t *testing.T) {
	for name, left := range map[string]bool{"with a leftover hint": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			b, dev := aStore(t)
			b.unmounted("old", "Unmounted partition of old")
			if !left {
				b.ok(b.Remove(ctx, "old"))
			}
			b.attach("new", dev.Path)
			b.ok(b.Mount(ctx, "new"))
			b.used(dev, "new", "one")
			b.lists("new")
			b.reboot()
			b.used(dev, "new", "one")
		})
	}
}

// j: the paths of two disks are exchanged. The other one has no statement, or has been a store, too.
func TestRootHistoryExchangedPaths(t *testing.T) {
	exchange := func(b *bench, old, fresh *looptest.Device) {
		b.attach("old", fresh.Path)
		b.attach("new", old.Path)
	}
	t.Run("beside a new disk", func(t *testing.T) {
		b, old, fresh := migrating(t, 64<<20)
		b.put("one")
		b.unmountAll()
		exchange(b, old, fresh)
		b.withheld("old", "agent disk accept old")
		b.fails(b.Mount(ctx, "new"), "it says that it is persistent disk old")
		b.nothingOnStore()
	})
	t.Run("after a migration", func(t *testing.T) {
		b, old, fresh := migrating(t, 64<<20)
		b.put("one")
		b.ok(b.Migrate(ctx, "old", "new"))
		b.unmountAll()
		exchange(b, old, fresh)
		b.withheld("new", "agent disk accept new")
		b.attach("old", old.Path)
		b.attach("new", fresh.Path)
		b.ok(boot(b.disks()))
		b.used(fresh, "new", "one")
	})
}

// k: the volume is set back to an older snapshot under its CID.
func TestRootHistoryReverted(t *testing.T) {
	b, dev := aStore(t)
	b.unmountAll()
	snapshot := clone(t, dev)
	b.ok(boot(b.disks()))
	b.put("two")
	b.reboot()
	b.unmountAll()
	from, err := os.Open(snapshot.Path)
	b.ok(err)
	to, err := os.OpenFile(dev.Path, os.O_WRONLY, 0)
	b.ok(err)
	_, err = io.Copy(to, from)
	b.ok(errors.Join(err, to.Sync(), to.Close(), from.Close()))
	b.ok(boot(b.disks()))
	b.used(dev, "old", "one")
	if !strings.Contains(b.log.String(), "set back to an earlier state") {
		t.Error("it is not in the log")
	}
}

// l: a known disk other than the recorded one is on the store when the agent starts.
func TestRootHistoryAnotherDiskOnTheStore(t *testing.T) {
	b, old, fresh := migrating(t, 64<<20)
	b.put("one")
	b.unmountAll()
	b.ok(mount.MountDevice(ctx, layout.PartitionPath(fresh.Path, 1), b.Dirs.Store(), "ext4", nil))
	for range 2 {
		b.fails(boot(b.disks()), "new is mounted on", "but old is on record", "agent disk accept new")
		if r, err := b.Record.Read(); err != nil || r.Store != "old" || b.records.mounted != "old" {
			t.Fatalf("on record is %+v, %v, and %q", r, err, b.records.mounted)
		}
	}
	b.unmounted("new", "Unmounted partition of new")
	b.ok(boot(b.disks()))
	b.used(old, "old", "one")
	b.unmountAll()
	b.ok(mount.MountDevice(ctx, layout.PartitionPath(fresh.Path, 1), b.Dirs.Store(), "ext4", nil))
	b.records.mounted = "new" // another agent did that
	b.ok(boot(b.disks()))
	b.onStoreIs(fresh, "new")
}

// m: attributes cannot be written: the disks are used as before, and the mark of an incomplete copy is a file.
func TestRootHistoryWithoutAttributes(t *testing.T) {
	b := newBench(t, Options{BindMountPersistentDisk: true, UsePreformattedPersistentDisk: true})
	dirs := map[string]string{}
	for _, cid := range []string{"old", "new"} {
		dir := filepath.Join(t.TempDir(), "volume")
		b.ok(os.Mkdir(dir, 0o755))
		b.ok(unix.Mount("ramfs", dir, "ramfs", 0, ""))
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
		b.records.disks[cid] = settings.PersistentDisk{CID: cid, Hint: settings.DiskHint{Path: dir}}
		dirs[cid] = dir
	}
	t.Cleanup(b.unmountAll)
	if err := unix.Setxattr(dirs["old"], "trusted.x", []byte("x"), 0); !errors.Is(err, unix.ENOTSUP) {
		t.Fatalf("ramfs takes attributes: %v", err)
	}
	b.ok(b.Mount(ctx, "old"))
	b.put("one")
	b.reboot()
	b.wantFile(b.Dirs.Store(), "one")
	b.ok(b.Mount(ctx, "new"))
	mark := identity.Store{CID: "new", Incomplete: true, Origin: identity.Origin{CID: "old"}}
	b.ok(b.Persistent.MarkIncomplete(mark))
	b.unmountAll()
	b.fails(b.Mount(ctx, "new"), "incomplete copy of old")
	b.ok(boot(b.disks()))
	b.ok(b.Mount(ctx, "new"))
	b.ok(b.Persistent.MarkIncomplete(mark))
	b.ok(b.Persistent.MarkComplete(mark)) // after the copying process has removed the file
	b.ok(os.Chmod(dirs["new"], 0o751))
	if _, err := os.Lstat(filepath.Join(dirs["new"], persistent.MarkName)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the mark is left: %v", err)
	}
}

// m: a disk without room for an attribute is used as before, and can be the source of a migration, but not the target,
// since it cannot be marked.
func TestRootHistoryFullDisk(t *testing.T) {
	full := func(b *bench, cid string) *looptest.Device {
		dev := b.disk(64<<20, cid)
		part := partitioned(t, dev, "label: gpt\nstart=2048, name=\"bosh-partition-0\"\n")
		mkfs(t, part, "ext4")
		filledBy(t, part, "ext4", func(dir string) {
			write(t, filepath.Join(dir, "file"), cid)
			for i := 0; ; i++ { // blocks that were set aside for metadata become free by and by
				fill(t, filepath.Join(dir, fmt.Sprintf("filler%d", i)))
				unix.Sync()
				err := unix.Setxattr(dir, "trusted.x", make([]byte, 200), 0)
				if errors.Is(err, unix.ENOSPC) {
					return
				}
				if b.ok(errors.Join(err, unix.Removexattr(dir, "trusted.x"))); i > 20 {
					t.Fatal("the disk is not full")
				}
			}
		})
		return dev
	}
	b := newBench(t, Options{})
	dev := full(b, "old")
	for _, again := range []func() error{func() error { return b.Mount(ctx, "old") },
		func() error { return boot(b.disks()) }} {
		b.ok(again())
		if got := mountedSource(t, b.Dirs.Store()); got != dev.Path+"p1" {
			t.Fatalf("the store is %q", got)
		}
		b.wantFile(b.Dirs.Store(), "old")
		if r, err := b.Record.Read(); err != nil || r.Store != "old" || r.Disks["old"].Generation != 0 {
			t.Errorf("on record is %+v, %v", r, err)
		}
		b.unmountAll()
	}
	if !strings.Contains(b.log.String(), "the disk cannot say that it is the store") {
		t.Error("it is not in the log")
	}
	b.ok(boot(b.disks()))
	fresh := b.disk(128<<20, "new")
	b.ok(b.Mount(ctx, "new"))
	b.ok(b.Migrate(ctx, "old", "new"))
	b.used(fresh, "new", "old")
	b.reboot()
	b.used(fresh, "new", "old")

	b = newBench(t, Options{})
	source := b.disk(32<<20, "source")
	b.ok(b.Mount(ctx, "source"))
	b.put("one")
	full(b, "target")
	b.ok(b.Mount(ctx, "target"))
	err := b.Persistent.MarkIncomplete(identity.Store{CID: "target", Incomplete: true,
		Origin: identity.Origin{CID: "source"}})
	if !errors.Is(err, unix.ENOSPC) {
		t.Errorf("Mark = %v, want no space left", err)
	}
	if err := b.Migrate(ctx, "source", "target"); err == nil ||
		!errors.Is(err, unix.ENOSPC) && !strings.Contains(err.Error(), "too small") {
		t.Errorf("Migrate = %v, want no space left, or that it is too small", err)
	}
	b.wantFile(b.Dirs.StoreMigrationTarget(), "target")
	b.used(source, "source", "one")
}

// m: a read-only disk is an error and unchanged, and does not withhold other disks.
func TestRootHistoryReadOnlyDisk(t *testing.T) {
	b, dev := aStore(t)
	b.unmountAll()
	before := checksum(t, dev)
	readOnly := func(dev *looptest.Device) {
		tool(t, dev.Path, "blockdev", "--setro", dev.Path)
		t.Cleanup(func() { tool(t, dev.Path, "blockdev", "--setrw", dev.Path) }) // it outlives the image
	}
	readOnly(dev)
	b.withheld("old", "read-only")
	tool(t, dev.Path, "blockdev", "--setrw", dev.Path)
	if checksum(t, dev) != before {
		t.Error("a read-only disk was changed")
	}
	blank := b.disk(64<<20, "new")
	readOnly(blank)
	b.ok(boot(b.disks()))
	b.used(dev, "old", "one")
	b.fails(b.Mount(ctx, "new"), "read-only")
	b.used(dev, "old", "one")
}

// m: without CAP_SYS_ADMIN, as in a container with a user namespace, attributes are hidden. Stores are used as before,
// even if their generation is on record, and a file marks an incomplete copy.
func TestRootHistoryWithoutCapability(t *testing.T) {
	const inside = "CAMBIUM_TEST_IN_USER_NAMESPACE"
	if os.Getenv(inside) == "" {
		looptest.Require(t)
		all := []syscall.SysProcIDMap{{Size: 65536}}
		contained := exec.Command("/proc/self/exe", "-test.run", "^"+t.Name()+"$", "-test.v")
		contained.Env = append(os.Environ(), inside+"=1")
		contained.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS, UidMappings: all,
			GidMappings: all, GidMappingsEnableSetgroups: true}
		if out, err := contained.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	b, dir := binding(t)
	if err := unix.Setxattr(dir, "trusted.x", []byte("x"), 0); !errors.Is(err, unix.EPERM) {
		t.Fatalf("an attribute can be written: %v", err)
	}
	b.put("one")
	b.killedAt("verify", func() { _ = b.Migrate(ctx, "old", "new") })
	b.unmountAll()
	b.fails(b.Mount(ctx, "new"), "incomplete copy of old")
	b.ok(boot(b.disks()))
	b.wantFile(b.Dirs.Store(), "one")
	b.ok(b.Mount(ctx, "new"))
	b.ok(b.Migrate(ctx, "old", "new"))
	b.wantFile(b.Dirs.Store(), "one")
	// By an agent with that capability.
	b.ok(b.Record.Update(func(r *record.Record) { r.Put("new", record.Disk{Generation: 5}) }))
	b.reboot()
	b.wantFile(b.Dirs.Store(), "one")
	b.lists("new")
}

// n: a bind-mounted store whose volume is not mounted later.
func TestRootHistoryDirectory(t *testing.T) {
	b := newBench(t, Options{BindMountPersistentDisk: true, UsePreformattedPersistentDisk: true})
	dev := looptest.New(t, 64<<20)
	tool(t, dev.Path, "mkfs.ext4", "-qF", dev.Path)
	dir := filepath.Join(t.TempDir(), "volume")
	b.ok(os.Mkdir(dir, 0o755))
	b.ok(mount.MountDevice(ctx, dev.Path, dir, "ext4", nil))
	b.attach("old", dir)
	t.Cleanup(b.unmountAll)
	b.ok(b.Mount(ctx, "old"))
	b.put("one")
	b.reboot()
	b.wantFile(b.Dirs.Store(), "one")
	b.unmountAll()
	b.ok(mount.Unmount(ctx, dir))
	b.withheld("old", "its volume may not be mounted", "agent disk accept old")
	b.ok(mount.MountDevice(ctx, dev.Path, dir, "ext4", nil))
	b.ok(boot(b.disks()))
	b.wantFile(b.Dirs.Store(), "one")
}

// o: disks.json is lost, damaged or newer: the disks themselves decide.
func TestRootHistoryLostRecord(t *testing.T) {
	for name, lose := range map[string]func(b *bench) error{
		"lost":    func(b *bench) error { return os.Remove(b.Dirs.DiskRecord()) },
		"damaged": func(b *bench) error { return os.WriteFile(b.Dirs.DiskRecord(), []byte(`{"version":1,"di`), 0o600) },
		"newer":   func(b *bench) error { return os.WriteFile(b.Dirs.DiskRecord(), []byte(`{"version":9}`), 0o600) },
	} {
		for _, told := range []bool{true, false} {
			t.Run(name+map[bool]string{true: ", the other file is there", false: ", and the other file"}[told],
				func(t *testing.T) {
					b, old, fresh := migrating(t, 64<<20)
					b.put("one")
					b.ok(b.Migrate(ctx, "old", "new"))
					b.put("two")
					forget := func() {
						b.unmountAll()
						b.ok(lose(b))
						if !told {
							b.records.mounted = ""
						}
					}
					forget()
					b.ok(boot(b.disks())) // both are attached
					b.used(fresh, "new", "two")
					forget()
					delete(b.records.disks, "old")
					b.ok(boot(b.disks()))
					b.used(fresh, "new", "two")
					b.reboot()
					b.used(fresh, "new", "two")
					forget()
					b.records.disks, b.records.mounted = map[string]settings.PersistentDisk{}, ""
					b.ok(boot(b.disks()))
					b.ok(b.setupEphemeral(b.disk(256<<20, "").Path, nil))
					_ = old
				})
		}
	}
}

// q: a preparation in a table without names is cut off before each step, or within mkfs, and the VM is lost. Another VM
// finishes it.
func TestRootHistoryLostPreparation(t *testing.T) {
	dos := func(t *testing.T) (b *bench, dev *looptest.Device) {
		b = newBench(t, Options{PartitionerType: "sfdisk"})
		return b, b.disk(64<<20, "old")
	}
	var steps []string
	b, _ := dos(t)
	b.CrashPoint = func(name string) { steps = append(steps, name) }
	b.ok(b.Mount(ctx, "old"))
	b.unmountAll()
	if !slices.Contains(steps, string(decide.MakeFileSystem)) || !slices.Contains(steps, string(decide.NamePartition)) {
		t.Fatalf("the steps are %q", steps)
	}
	for i, step := range steps {
		for _, half := range []bool{false, true} {
			if half && step != string(decide.NamePartition) {
				continue
			}
			name := fmt.Sprintf("%d, before %s, superblock written %v", i, step, !half)
			t.Run(name, func(t *testing.T) {
				lost, dev := dos(t)
				lost.killedAt(step, func() { _ = lost.Mount(ctx, "old") })
				lost.unmountAll()
				if half { // mkfs writes the first superblock last
					f, err := os.OpenFile(dev.Path+"p1", os.O_WRONLY, 0)
					lost.ok(err)
					_, err = f.WriteAt(make([]byte, 64<<10), 0)
					lost.ok(errors.Join(err, f.Sync(), f.Close()))
				}
				b := newBench(t, Options{PartitionerType: "sfdisk"})
				b.attach("old", dev.Path)
				planned, err := b.PlanMount(ctx)
				if b.ok(err); len(planned) == 0 || planned[0].Op == decide.Reject {
					t.Errorf("planned is %q", planned)
				}
				b.ok(b.Mount(ctx, "old"))
				b.put("one")
				b.used(dev, "old", "one")
				s, err := disk.Inspect(dev.Path)
				if p := s.Table.Partitions; err != nil || s.Table.Label != layout.MBR || p[0].Name != "" ||
					p[0].Type != layout.LinuxMBR {
					t.Errorf("the table is %+v, %v", s.Table, err)
				}
				b.reboot()
				b.used(dev, "old", "one")
			})
		}
	}
}

// q: foreign raw data has the same partition type, and is refused.
func TestRootHistoryForeignRawData(t *testing.T) {
	b := newBench(t, Options{PartitionerType: "sfdisk"})
	dev := b.disk(64<<20, "old")
	part := partitioned(t, dev, "label: dos\nstart=2048, type=da\n")
	f, err := os.OpenFile(part, os.O_WRONLY, 0)
	b.ok(err)
	_, err = f.WriteAt([]byte("records of a database"), 3<<20)
	b.ok(errors.Join(err, f.Sync(), f.Close()))
	for _, content := range []string{"raw data", "nothing"} {
		sum := checksum(t, dev)
		b.fails(b.Mount(ctx, "old"), map[string]string{"raw data": "data at byte 4194304",
			"nothing": "nothing shows that this agent made it"}[content])
		if checksum(t, dev) != sum {
			t.Errorf("a disk with %s was changed", content)
		}
		tool(t, part, "blkdiscard", "-z", part)
	}
}

// p: an operator makes a request about the disk that was shown, and then the paths are exchanged.
func TestRootHistoryRequestLapses(t *testing.T) {
	for _, a := range []record.Action{record.Accept, record.Format} {
		t.Run(string(a), func(t *testing.T) {
			b, old := aStore(t)
			b.unmountAll()
			foreign := b.disk(64<<20, "new")
			tool(t, foreign.Path, "mkfs.ext4", "-qF", foreign.Path)
			text, shown, err := b.Persistent.Describe(ctx, "new", a)
			b.ok(err)
			if !strings.Contains(text, foreign.Path) || shown == "" {
				t.Errorf("shown are %q and %q", text, shown)
			}
			b.ok(b.Record.Ask(a, "new", shown))
			b.attach("new", old.Path)
			b.attach("old", away)
			b.fails(b.Mount(ctx, "new"), "it says that it is persistent disk old")
			if r, err := b.Record.Read(); err != nil || len(r.Asked) > 0 {
				t.Errorf("still asked: %v, %v", r.Asked, err)
			}
			b.attach("old", old.Path)
			b.attach("new", foreign.Path)
			b.ok(boot(b.disks()))
			b.used(old, "old", "one")
			if a == record.Format { // of the disk that was shown
				b.ok(b.Record.Ask(a, "new", shown))
				b.ok(b.Mount(ctx, "new"))
			}
		})
	}
}
