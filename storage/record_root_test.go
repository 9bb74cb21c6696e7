//go:build root

package storage

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"cambium/platform/mount"
	"cambium/settings"
	"cambium/storage/record"
	"cambium/storage/recordfile"
)

// TestRootStoreIsTheDiskOnRecord: jobs use what is visible on the store. If that is not the disk on record, a boot
// returns an error and mounts nothing elsewhere, and list_disk returns the mounted disks.
func TestRootStoreIsTheDiskOnRecord(t *testing.T) {
	tmpfs := func(t *testing.T, b *bench) { b.ok(unix.Mount("tmpfs", b.Dirs.Store(), "tmpfs", 0, "size=1m")) }
	other := func(t *testing.T, b *bench) {
		dev := b.disk(64<<20, "")
		tool(t, dev.Path, "mkfs.ext4", "-qF", dev.Path)
		b.ok(unix.Mount(dev.Path, b.Dirs.Store(), "ext4", 0, ""))
	}
	partition := func(t *testing.T, b *bench) {
		part := partitioned(t, b.disk(64<<20, ""), "label: gpt\nstart=2048, name=\"bosh-partition-0\"\n")
		filled(t, part, "ext4")
		b.ok(mount.MountDevice(ctx, part, b.Dirs.Store(), "ext4", nil))
	}
	for _, c := range []struct {
		name    string
		there   func(*testing.T, *bench)
		mounted bool // the disk is mounted beneath it
		forget  bool // the identity of the disk is not on record
		found   string
	}{
		{"tmpfs", tmpfs, false, false, "tmpfs (tmpfs)"},
		{"tmpfs on top", tmpfs, true, false, "tmpfs (tmpfs)"},
		{"another device", other, false, false, "(ext4)"},
		{"another device on top", other, true, false, "(ext4)"},
		{"another store", partition, false, false, "(ext4)"},
		{"another store, identity unknown", partition, false, true, "(ext4)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, Options{})
			dev := b.disk(64<<20, "vol-1")
			b.ok(b.Mount(ctx, "vol-1"))
			write(t, filepath.Join(b.Dirs.Store(), "data"), "precious")
			if !c.mounted {
				b.ok(mount.Unmount(ctx, b.Dirs.Store()))
			}
			if c.forget {
				b.ok(os.Remove(b.Dirs.DiskRecord()))
			}
			c.there(t, b)
			t.Cleanup(func() { _ = unix.Unmount(b.Dirs.Store(), unix.MNT_DETACH) })
			for range 2 {
				_, _, planned := b.MountStore(ctx, false)
				for _, err := range []error{boot(b.disks()), planned, b.Mount(ctx, "vol-1")} {
					b.fails(err, c.found, "is not a known persistent disk", "umount "+b.Dirs.Store())
				}
			}
			if got := mountedSource(t, b.Dirs.StoreMigrationTarget()); got != "" {
				t.Errorf("%s is on the migration target", got)
			}
			want := []string{}
			if c.mounted {
				want = []string{"vol-1"}
			}
			if list, err := b.List(ctx); err != nil || !slices.Equal(list, want) {
				t.Errorf("List = %v, %v; want %v", list, err, want)
			}
			b.ok(unix.Unmount(b.Dirs.Store(), 0))
			b.ok(boot(b.disks()))
			if got := read(t, filepath.Join(b.Dirs.Store(), "data")); got != "precious" {
				t.Errorf("data is %q", got)
			}
			b.onStoreIs(dev, "vol-1")
			if list, err := b.List(ctx); err != nil || !slices.Equal(list, []string{"vol-1"}) {
				t.Errorf("List = %v, %v", list, err)
			}
		})
	}
	t.Run("directories", func(t *testing.T) {
		b := newBench(t, Options{BindMountPersistentDisk: true, SkipDiskSetup: true})
		b.records.disks["vol-1"] = settings.PersistentDisk{CID: "vol-1", Hint: settings.DiskHint{Path: t.TempDir()}}
		t.Cleanup(func() { _ = unix.Unmount(b.Dirs.Store(), unix.MNT_DETACH) })
		b.ok(b.Mount(ctx, "vol-1"))
		b.unmounted("vol-1", "Unmounted partition of vol-1")
		tmpfs(t, b)
		b.fails(boot(b.disks()), "tmpfs (tmpfs)", "is not a known persistent disk")
		if list, err := b.List(ctx); err != nil || len(list) != 0 {
			t.Errorf("List = %v, %v; want none", list, err)
		}
		b.ok(unix.Unmount(b.Dirs.Store(), 0))
		b.ok(boot(b.disks()))
	})
}

// TestRootStoreIsNotForgotten: an attached store is never replaced by an empty directory, whether an operator has
// released its record or the file for other agents is lost.
func TestRootStoreIsNotForgotten(t *testing.T) {
	for name, lose := range map[string]func(*bench){
		"released":                           func(b *bench) { b.ok(b.Record.Ask(record.Release, "vol-1", "")) },
		"managed_disk_settings.json is lost": func(b *bench) { b.records.mounted = "" },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, Options{})
			dev := b.disk(64<<20, "vol-1")
			b.ok(b.Mount(ctx, "vol-1"))
			b.put("data")
			lose(b)
			b.ok(boot(b.disks()))
			for range 2 {
				b.reboot()
				b.wantFile(b.Dirs.Store(), "data")
				b.onStoreIs(dev, "vol-1")
			}
		})
	}
}

// TestRootRecordsWhatTheKernelDidNotKnow: the record identifies the file system of a partition that the kernel did not
// know before the agent announced it.
func TestRootRecordsWhatTheKernelDidNotKnow(t *testing.T) {
	b := newBench(t, Options{})
	dev := b.disk(64<<20, "vol-1")
	b.ok(b.Mount(ctx, "vol-1"))
	identity := func() record.Disk {
		r, err := recordfile.In(b.Dirs).Read()
		b.ok(err)
		return r.Disks["vol-1"]
	}
	first := identity()
	b.ok(mount.Unmount(ctx, b.Dirs.Store()))
	b.ok(os.Remove(b.Dirs.DiskRecord()))
	tool(t, dev.Path, "partx", "-d", dev.Path)
	b.ok(b.Mount(ctx, "vol-1"))
	got := identity()
	first.Generation = got.Generation
	if got != first || got.FileSystem == "" {
		t.Errorf("on record is %+v, want %+v", got, first)
	}
}
