//go:build root

package storage

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cambium/internal/looptest"
	"cambium/platform/mount"
)

func init() {
	// The disk is on the store already and has become larger.
	flows["grow"] = func(d Disks, _ job) error { return d.Persistent.Mount(ctx, "old") }
}

// grown puts a disk with xfs, which can be grown here while mounted, on the store and enlarges the disk.
func grown(w *world) {
	w.t.Helper()
	w.old = looptest.New(w.t, 400<<20)
	w.job.Disks["old"] = w.old.Path
	part := partitioned(w.t, w.old, "label: gpt\nstart=2048, name=\"bosh-partition-0\"\n")
	tool(w.t, part, "mkfs.xfs", "-qf", part)
	if err := os.MkdirAll(w.dirs().Store(), 0o700); err != nil {
		w.t.Fatal(err)
	}
	if err := mount.MountDevice(ctx, part, w.dirs().Store(), "xfs", nil); err != nil {
		w.t.Fatal(err)
	}
	write(w.t, filepath.Join(w.dirs().Store(), "file"), "precious")
	w.old.Grow(w.t, 800<<20)
}

func (w *world) checkGrown() {
	w.t.Helper()
	if got := bytesOf(w.t, w.dirs().Store()); got < 700<<20 {
		w.t.Errorf("file system has %d MiB, want those of its disk of 800", got>>20)
	}
	if got := read(w.t, filepath.Join(w.dirs().Store(), "file")); got != "precious" {
		w.t.Errorf("the file holds %q", got)
	}
	w.unmount()
	tool(w.t, w.old.Path+"p1", "xfs_repair", "-n", w.old.Path+"p1")
	tool(w.t, w.old.Path, "sfdisk", "--verify", w.old.Path)
}

// TestRootCrashGrowInUse: growing a mounted disk can be interrupted anywhere. The next mount_disk completes it without
// a reboot.
func TestRootCrashGrowInUse(t *testing.T) { crashes(t, "grow", 3, grown, (*world).checkGrown) }

// TestRootMountOfWhatCannotBeGrown: a file system that cannot be grown is mounted nevertheless.
func TestRootMountOfWhatCannotBeGrown(t *testing.T) {
	b := newBench(t, Options{})
	dev := b.disk(900<<20, "vol-1")
	part := partitioned(t, dev, "label: gpt\nstart=2048\n")
	tool(t, part, "mkfs.xfs", "-qf", "-d", "size=400m", part)
	p := b.records.disks["vol-1"]
	p.MountOptions = []string{"ro"}
	b.records.disks["vol-1"] = p
	for range 2 {
		b.ok(b.Mount(ctx, "vol-1"))
		if got := mountedSource(t, b.Dirs.Store()); got != part || b.records.mounted != "vol-1" {
			t.Errorf("store is %q, recorded %q; want the disk", got, b.records.mounted)
		}
		b.wantShort(b.Dirs.Store(), "400.0 MiB of 900.0 MiB are used: grow xfs on "+part, "read-only file system",
			"attach a new disk and migrate to it")
	}
	if n := strings.Count(b.log.String(), "a file system is smaller than its disk"); n != 2 {
		t.Errorf("%d warnings, want one for each call", n)
	}
	b.unmounted("vol-1", "Unmounted partition of vol-1")
	b.wantShort(b.Dirs.Store())
}

// wantShort checks the reported shortfall of the file system on a directory; without texts, there must be none.
func (b *bench) wantShort(dir string, texts ...string) {
	b.t.Helper()
	got := b.short[dir]
	if (got == "") != (len(texts) == 0) {
		b.t.Errorf("%s is said to be smaller than its disk because %q, want %q", dir, got, texts)
	}
	for _, text := range texts {
		if !strings.Contains(got, text) {
			b.t.Errorf("%s is smaller than its disk because %q, want %q", dir, got, text)
		}
	}
}

// TestRootPartitionSmallerThanItsDisk: a partition that cannot be grown is reported at each mount, and when its disk
// grows while in use.
func TestRootPartitionSmallerThanItsDisk(t *testing.T) {
	b := newBench(t, Options{})
	dev := b.disk(400<<20, "vol-1")
	part := partitioned(t, dev, "label: dos\nstart=2048\n")
	tool(t, part, "mkfs.xfs", "-qf", part)
	b.ok(b.Mount(ctx, "vol-1"))
	b.wantShort(b.Dirs.Store())
	dev.Grow(t, 3<<40)
	const want = "399.0 MiB of 3072.0 GiB are used: the partition cannot be grown: it would cross 2 TiB"
	b.ok(b.Mount(ctx, "vol-1"))
	b.wantShort(b.Dirs.Store(), want)
	b.unmounted("vol-1", "Unmounted partition of vol-1")
	b.wantShort(b.Dirs.Store())
	b.did(b.bootLast())
	b.wantShort(b.Dirs.Store(), want)
}

// bootLast mounts the store as a boot does.
func (b *bench) bootLast() ([]Change, error) {
	made, _, err := b.MountStore(ctx, true)
	return made, err
}
