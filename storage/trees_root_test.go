//go:build root

package storage

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cambium/internal/looptest"
	"cambium/internal/treetest"
	"cambium/platform/mount"
	"cambium/settings"
)

// TestRootMigrateEveryKindOfFile: a tree with all kinds of files is the same after a migration between two file
// systems, by a copying process.
func TestRootMigrateEveryKindOfFile(t *testing.T) {
	for _, kinds := range [][2]string{{"ext4", "ext4"}, {"ext4", "xfs"}, {"xfs", "ext4"}} {
		t.Run(kinds[0]+" to "+kinds[1], func(t *testing.T) {
			b := newBench(t, Options{})
			old, fresh := b.disk(400<<20, "old"), b.disk(400<<20, "new")
			for i, cid := range []string{"old", "new"} {
				p := b.records.disks[cid]
				p.FileSystem = kinds[i]
				b.records.disks[cid] = p
			}
			b.ok(b.Mount(ctx, "old"))
			treetest.Fill(t, b.Dirs.Store())
			b.ok(b.Mount(ctx, "new"))
			b.ok(b.Migrate(ctx, "old", "new"))
			dir := filepath.Join(t.TempDir(), "old")
			b.ok(os.Mkdir(dir, 0o755))
			b.ok(mount.MountDevice(ctx, old.Path+"p1", dir, kinds[0], nil))
			if diff := treetest.Diff(t, dir, b.Dirs.Store()); diff != "" {
				t.Errorf("rsync sees differences:\n%s", diff)
			}
			if e, _, err := mount.At(b.Dirs.Store()); err != nil || e.Type != kinds[1] || e.Source != fresh.Path+"p1" {
				t.Errorf("store is %+v, %v", e, err)
			}
			for _, phase := range []string{"copy", "verify"} {
				found := false
				for _, line := range strings.Split(b.log.String(), "\n") {
					found = found || strings.Contains(line, `msg="disk migration"`) && strings.Contains(line, "phase="+phase) &&
						!strings.Contains(line, " bytes=0 ") && !strings.Contains(line, "files=0 ")
				}
				if !found {
					t.Errorf("the log has no progress of phase %s", phase)
				}
			}
		})
	}
}

// TestRootMigrateToADiskThatFillsUp: if the new disk fills up, the old store stays in place. Once there is room, the
// migration succeeds.
func TestRootMigrateToADiskThatFillsUp(t *testing.T) {
	b, old, fresh := migrating(t, 128<<20)
	for n := range 4 {
		b.ok(os.WriteFile(filepath.Join(b.Dirs.Store(), fmt.Sprint(n)), []byte(strings.Repeat(fmt.Sprint(n), 8<<20)), 0o600))
	}
	sum := treeSum(t, b.Dirs.Store())
	// Something that has no name takes the room when the free space was checked already.
	var ballast *os.File
	b.CrashPoint = func(name string) {
		if name != "copy" || ballast != nil {
			return
		}
		path := filepath.Join(b.Dirs.StoreMigrationTarget(), "ballast")
		var err error
		ballast, err = os.Create(path)
		b.ok(errors.Join(err, os.Remove(path), unix.Fallocate(int(ballast.Fd()), 0, 0, 100<<20)))
	}
	if err := b.Migrate(ctx, "old", "new"); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("Migrate = %v, want no space left", err)
	}
	b.ok(ballast.Close())
	b.onStoreIs(old, "old")
	b.ok(os.Remove(filepath.Join(b.Dirs.Store(), "writable")))
	b.ok(b.Migrate(ctx, "old", "new"))
	if got := treeSum(t, b.Dirs.Store()); got != sum {
		t.Error("the files are not the same")
	}
	b.onStoreIs(fresh, "new")
}

func TestRootMigrateToADiskWithFewInodes(t *testing.T) {
	b := newBench(t, Options{})
	old := b.disk(64<<20, "old")
	b.ok(b.Mount(ctx, "old"))
	fresh := b.disk(64<<20, "new")
	part := partitioned(t, fresh, "label: gpt\nstart=2048\n")
	tool(t, part, "mkfs.ext4", "-qF", "-N", "64", part)
	b.ok(b.Mount(ctx, "new"))
	for n := range 200 {
		write(t, filepath.Join(b.Dirs.Store(), fmt.Sprint(n)), "")
	}
	b.fails(b.Migrate(ctx, "old", "new"), "too few inodes")
	b.onStoreIs(old, "old")
}

// TestRootMigrateBindMountedNeedsRoomForItsTreeOnly: for a bind-mounted store only its tree counts, not the rest of its
// file system.
func TestRootMigrateBindMountedNeedsRoomForItsTreeOnly(t *testing.T) {
	b := newBench(t, Options{BindMountPersistentDisk: true, UsePreformattedPersistentDisk: true})
	small := func(size int64) string {
		dev := looptest.New(t, size)
		tool(t, dev.Path, "mkfs.ext4", "-qF", dev.Path)
		dir := filepath.Join(t.TempDir(), "m")
		b.ok(os.Mkdir(dir, 0o755))
		b.ok(mount.MountDevice(ctx, dev.Path, dir, "ext4", nil))
		return dir
	}
	// The old store is a directory of a disk that is nearly full.
	largeFile := small(200 << 20)
	b.ok(os.WriteFile(filepath.Join(largeFile, "others"), make([]byte, 120<<20), 0o600))
	old := filepath.Join(largeFile, "old")
	b.ok(os.Mkdir(old, 0o755))
	b.ok(os.WriteFile(filepath.Join(old, "file"), make([]byte, 12<<20), 0o600))
	b.ok(os.Link(filepath.Join(old, "file"), filepath.Join(old, "link")))
	for cid, dir := range map[string]string{"old": old, "tiny": small(8 << 20), "new": small(48 << 20)} {
		b.records.disks[cid] = settings.PersistentDisk{CID: cid, Hint: settings.DiskHint{Path: dir}}
	}
	t.Cleanup(func() {
		_ = unix.Unmount(b.Dirs.StoreMigrationTarget(), unix.MNT_DETACH)
		_ = unix.Unmount(b.Dirs.Store(), unix.MNT_DETACH)
	})
	b.ok(unix.Syncfs(int(opened(t, largeFile).Fd())))
	b.ok(errors.Join(b.Mount(ctx, "old"), b.Mount(ctx, "tiny")))
	b.fails(b.Migrate(ctx, "old", "tiny"), "too small: 12 MiB")
	b.unmounted("tiny", "Unmounted partition of tiny")
	b.ok(b.Mount(ctx, "new"))
	var total int64
	b.Migration.Progress = func(p MigrationProgress) { total = max(total, p.TotalBytes) }
	b.ok(b.Migrate(ctx, "old", "new"))
	if total < 12<<20 || total > 13<<20 {
		t.Errorf("progress counts to %d MiB, want 12", total>>20)
	}
}

func opened(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}
