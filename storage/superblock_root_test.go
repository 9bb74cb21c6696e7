//go:build root

package storage

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"cambium/internal/looptest"
	"cambium/platform/disk"
	"cambium/storage/record"
)

// TestRootNoSettingFormatsASuperblock: no setting formats a disk with a superblock of ext4 or xfs, whether foreign
// content may be formatted or random bytes count as blank. The refusal describes what was found, and its advice
// resolves it. There is a row for each way in which a disk is examined; the formats of superblocks are covered in
// package probe.
func TestRootNoSettingFormatsASuperblock(t *testing.T) {
	const size = 480 << 20
	const ours = "label: gpt\nstart=2048, name=\"bosh-partition-0\"\n"
	noTable := func(t *testing.T, dev *looptest.Device) {
		poke(t, dev.Path, 0, make([]byte, 34*512))
		poke(t, dev.Path, -33*512, make([]byte, 33*512))
		if err := disk.Announce(ctx, dev.Path); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name string
		make func(t *testing.T, dev *looptest.Device)
		what string
	}{
		{"bare xfs", func(t *testing.T, dev *looptest.Device) { filled(t, dev.Path, "xfs") }, "xfs begins at byte 0"},
		{"bare ext4 below a DOS table", func(t *testing.T, dev *looptest.Device) {
			tool(t, dev.Path, "mkfs.ext4", "-qF", dev.Path)
			sfdisk := "sfdisk -q --no-reread --no-tell-kernel --wipe never -X dos "
			tool(t, dev.Path, "sh", "-c", "echo start=2048 | "+sfdisk+dev.Path)
		}, "ext4"},
		{"two partitions", func(t *testing.T, dev *looptest.Device) {
			partitioned(t, dev, "label: gpt\nsize=20M\nsize=400M\n")
			filled(t, dev.Path+"p2", "xfs")
		}, "xfs"},
		{"ext4 without its magic", func(t *testing.T, dev *looptest.Device) {
			part := partitioned(t, dev, ours)
			filled(t, part, "ext4")
			poke(t, part, 1080, []byte("xx"))
		}, "ext4"},
		{"a lost table, xfs at 101 MiB", func(t *testing.T, dev *looptest.Device) {
			filled(t, partitioned(t, dev, "label: gpt\nstart=101M\n"), "xfs")
			noTable(t, dev)
		}, "xfs begins at byte 105906176"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, Options{})
			b.Persistent.Foreign = func() string { return "format" }
			b.Persistent.Blank = func() string { return "noise" }
			dev := b.disk(size, "vol-1")
			c.make(t, dev)
			before := checksum(t, dev)
			err := b.Mount(ctx, "vol-1")
			b.fails(err, "is refused", c.what, "no setting allows formatting it", "agent disk format vol-1 --yes")
			if strings.Contains(err.Error(), "persistent_disk_foreign") {
				t.Errorf("%v: the advice does not help", err)
			}
			if checksum(t, dev) != before {
				t.Fatal("the disk was changed")
			}
			b.ok(b.Record.Ask(record.Format, "vol-1", ""))
			b.ok(b.Mount(ctx, "vol-1"))
		})
	}
}

// beneath writes the head of a file system over the whole disk, as far as a table of sfdisk would have kept it.
func beneath(t testing.TB, dev *looptest.Device, kind string) {
	t.Helper()
	f, err := os.Open(dev.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		t.Fatal(err)
	}
	image := looptest.Image(t, size)
	force := map[string]string{"ext4": "-qF", "xfs": "-qf", "ntfs": "-qFf"}[kind]
	if out, err := exec.Command("mkfs."+kind, force, image).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.%s: %v: %s", kind, err, out)
	}
	head := tool(t, dev.Path, "head", "-c", "1048576", image)
	poke(t, dev.Path, 0, []byte(head[:440]))
	poke(t, dev.Path, 512, []byte(head[512:]))
}

// TestRootTornSuperblock: the superblock of an ext4 spans two sectors. After a power cut one of them may be old; then
// the kernel rejects it, and e2fsck requires a decision. The error contains a remedy that loses nothing.
func TestRootTornSuperblock(t *testing.T) {
	b := newBench(t, Options{})
	dev := b.disk(64<<20, "vol-1")
	b.ok(b.Mount(ctx, "vol-1"))
	b.put("data")
	b.unmounted("vol-1", "Unmounted partition of vol-1")
	part := dev.Path + "p1"
	poke(t, part, 1024+0x30, []byte{1, 2, 3, 4}) // the time of its last write
	err := b.Mount(ctx, "vol-1")
	b.fails(err, "the file system is damaged", "take a snapshot of the disk first, then run 'e2fsck -f "+part+"'")
	writing := lookAround(t, dev, err)
	if len(writing) != 1 {
		t.Fatalf("commands that write: %q, want the repair", writing)
	}
	tool(t, part, "sh", "-c", writing[0]+" -y || [ $? = 1 ]")
	b.ok(b.Mount(ctx, "vol-1"))
	b.wantFile(b.Dirs.Store(), "data")
}

// TestRootDamagedXFS: an xfs that the kernel rejects is repaired by the advised command, after an inspection that does
// not write.
func TestRootDamagedXFS(t *testing.T) {
	b := newBench(t, Options{})
	dev := b.disk(400<<20, "vol-1")
	p := b.records.disks["vol-1"]
	p.FileSystem = "xfs"
	b.records.disks["vol-1"] = p
	b.ok(b.Mount(ctx, "vol-1"))
	b.put("data")
	b.unmounted("vol-1", "Unmounted partition of vol-1")
	part := dev.Path + "p1"
	const rootInode = "xfs_db -r -c 'inode '$(xfs_db -r -c 'sb 0' -c 'p rootino' $0 | sed 's/.* //') -c daddr $0 | " +
		"sed 's/.* //'"
	sector, err := strconv.ParseInt(strings.TrimSpace(tool(t, part, "sh", "-ec", rootInode, part)), 10, 64)
	b.ok(err)
	poke(t, part, sector*512, []byte("xx"))
	err = b.Mount(ctx, "vol-1")
	b.fails(err, "the file system is damaged", "take a snapshot of the disk first, then run 'xfs_repair "+part+"'")
	tool(t, part, "sh", "-ec", lookAround(t, dev, err)[0])
	b.ok(b.Mount(ctx, "vol-1"))
	found, err := filepath.Glob(filepath.Join(b.Dirs.Store(), "lost+found", "*"))
	if b.ok(err); len(found) != 1 || read(t, found[0]) != "data" {
		t.Errorf("in lost+found is %q, want the file", found)
	}
}
