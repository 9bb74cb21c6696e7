//go:build root

package storage

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"cambium/internal/eventually"
	"cambium/platform/mount"
)

func bytesOf(t testing.TB, dir string) int64 {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	return int64(st.Blocks) * st.Bsize
}

func withXFS(b *bench, cid string) {
	p := b.records.disks[cid]
	p.FileSystem = "xfs"
	b.records.disks[cid] = p
}

// TestRootResizeWhileMounted: a mounted disk is grown by mount_disk, and by itself when the kernel reports a new size.
// Here the disk is mounted after the watch has begun, since mounting causes no event.
func TestRootResizeWhileMounted(t *testing.T) {
	b := newBench(t, Options{})
	dev := b.disk(400<<20, "vol-1")
	withXFS(b, "vol-1")
	b.ok(b.Mount(ctx, "vol-1"))
	write(t, filepath.Join(b.Dirs.Store(), "data"), "precious")
	dev.Grow(t, 900<<20)
	b.ok(b.Mount(ctx, "vol-1"))
	before := bytesOf(t, b.Dirs.Store())
	if before < 780<<20 {
		t.Errorf("file system has %d MiB", before>>20)
	}
	b.unmounted("vol-1", "Unmounted partition of vol-1")
	watching, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- b.WatchSizes(watching) }()
	b.ok(b.Mount(ctx, "vol-1"))
	dev.Grow(t, 1500<<20)
	eventually.Nil(t, "a file system as large as its disk of 1500 MiB", func() error {
		if now := bytesOf(t, b.Dirs.Store()); now <= before+500<<20 {
			return fmt.Errorf("it has %d MiB", now>>20)
		}
		return nil
	})
	stop()
	b.ok(<-done)
	if read(t, filepath.Join(b.Dirs.Store(), "data")) != "precious" {
		t.Error("data lost")
	}
}

// TestRootD19GrowBesideAnotherDisk: a disk can be grown while another one is on the store.
func TestRootD19GrowBesideAnotherDisk(t *testing.T) {
	b := newBench(t, Options{})
	b.disk(64<<20, "other")
	b.ok(b.Mount(ctx, "other"))
	dev := b.disk(900<<20, "vol-1")
	part := partitioned(t, dev, "label: gpt\nsize=400M\n")
	tool(t, part, "mkfs.ext4", "-qF", part)
	b.ok(b.Mount(ctx, "vol-1"))
	if got := bytesOf(t, b.Dirs.StoreMigrationTarget()); got < 780<<20 {
		t.Errorf("file system has %d MiB", got>>20)
	}
	if mountedSource(t, b.Dirs.StoreMigrationTarget()) != part {
		t.Error("not on the migration target")
	}
	b.ok(mount.Unmount(ctx, b.Dirs.StoreMigrationTarget()))
	tool(t, part, "e2fsck", "-nf", part)
}
