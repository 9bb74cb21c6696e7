//go:build root

package storage

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"cambium/settings"
)

func TestRootPersistentLifecycle(t *testing.T) {
	ctx := context.Background()
	b := newBench(t, Options{})
	dev := b.disk(256<<20, "vol-1")
	b.ok(b.Mount(ctx, "vol-1"))
	if got, want := mountedSource(t, b.Dirs.Store()), dev.Path+"p1"; got != want {
		t.Errorf("store is %q, want %q", got, want)
	}
	if b.records.mounted != "vol-1" {
		t.Errorf("recorded %q, want vol-1", b.records.mounted)
	}
	write(t, filepath.Join(b.Dirs.Store(), "data"), "precious")
	b.ok(b.Mount(ctx, "vol-1"))
	list, err := b.List(ctx)
	b.ok(err)
	if len(list) != 1 || list[0] != "vol-1" {
		t.Errorf("List = %v, want [vol-1]", list)
	}
	b.unmounted("vol-1", "Unmounted partition of vol-1")
	b.unmounted("vol-1", "Partition of vol-1 is not mounted")
	b.ok(boot(b.disks()))
	if got := read(t, filepath.Join(b.Dirs.Store(), "data")); got != "precious" {
		t.Errorf("data is %q after a remount", got)
	}
	b.unmounted("vol-1", "Unmounted partition of vol-1")
	if info, err := os.Stat(b.Dirs.Store()); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mount point: %v, %v; want 0700", info, err)
	}
	b.ok(b.Remove(ctx, "never-there"))
	if b.records.mounted != "vol-1" {
		t.Errorf("removing another disk left %q on record, want vol-1", b.records.mounted)
	}
	b.ok(b.Remove(ctx, "vol-1"))
	if b.records.mounted != "" {
		t.Errorf("recorded %q after removal, want nothing", b.records.mounted)
	}
	b.ok(boot(b.disks()))
}

// TestRootDetachedDisksDoNotCount: cloud-check detaches disks without remove_persistent_disk, so a known disk need not
// be attached.
func TestRootDetachedDisksDoNotCount(t *testing.T) {
	b := newBench(t, Options{})
	b.disk(64<<20, "vol-1")
	b.disk(64<<20, "vol-2")
	b.records.disks["vol-3"] = settings.PersistentDisk{CID: "vol-3",
		Hint: settings.DiskHint{Path: filepath.Join(t.TempDir(), "gone")}}
	b.records.disks["vol-4"] = settings.PersistentDisk{CID: "vol-4", Hint: b.records.disks["vol-1"].Hint} // attached in its place
	b.ok(b.Persistent.CheckKnown(nil))
	b.disk(64<<20, "vol-5")
	b.fails(b.Persistent.CheckKnown(nil), "3 persistent disks are attached")
}
