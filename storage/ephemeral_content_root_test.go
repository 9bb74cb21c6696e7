//go:build root

package storage

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cambium/internal/looptest"
	"cambium/settings"
	"cambium/storage/record"
)

// holdingTree creates a file system with directories.
func holdingTree(t testing.TB, part, kind string, names ...string) {
	t.Helper()
	mkfs(t, part, kind)
	filledBy(t, part, kind, func(dir string) {
		for _, name := range names {
			if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// cutOff creates a file system with a directory that is only in its journal, as after a power cut.
func cutOff(t testing.TB, dev *looptest.Device, part, kind, name string) {
	t.Helper()
	mkfs(t, part, kind)
	image := filepath.Join(t.TempDir(), "image")
	filledBy(t, part, kind, func(dir string) {
		err := os.Mkdir(filepath.Join(dir, name), 0o755)
		top, openErr := os.Open(dir)
		if err := errors.Join(err, openErr, top.Sync(), top.Close()); err != nil {
			t.Fatal(err)
		}
		tool(t, part, "cp", "--sparse=always", dev.Image, image)
	})
	tool(t, part, "cp", "--sparse=always", image, dev.Image)
	for _, node := range []string{part, dev.Path} {
		tool(t, node, "blockdev", "--flushbufs", node)
	}
}

// TestRootEphemeralContent: the content of an ephemeral disk is observed. Each row has another fact for
// decide.Replaced. The decisions are in the tables of package decide.
func TestRootEphemeralContent(t *testing.T) {
	const gpt, dos = "label: gpt\nstart=2048\n", "label: dos\nstart=2048, type=83\n"
	const othersNames = "label: gpt\nsize=16M, name=\"bosh-partition-b-0\"\nname=\"bosh-partition-b-1\"\n"
	breakHeaders := func(t *testing.T, d *looptest.Device) {
		t.Helper()
		poke(t, d.Path, 572, []byte("x"))
		poke(t, d.Path, -452, []byte("x"))
	}
	layout := []string{"sys", "jobs", "packages", "blobs", "redis"}
	for _, c := range []struct {
		name        string
		partitioner string
		prepare     func(t *testing.T, dev *looptest.Device)
		kept        bool   // the directory redis of the old content is there
		refused     string // with these words
	}{
		{"Azure's NTFS", "", func(t *testing.T, d *looptest.Device) {
			part := partitioned(t, d, "label: dos\nstart=2048, type=7\n")
			tool(t, part, "mkfs.ntfs", "-qFf", part)
		}, false, ""},
		{"Nova's label", "", func(t *testing.T, d *looptest.Device) {
			holdingTree(t, d.Path, "ext4", "anything")
			tool(t, d.Path, "e2label", d.Path, "ephemeral0")
		}, false, ""},
		{"Nova's vfat", "", func(t *testing.T, d *looptest.Device) {
			tool(t, d.Path, "mkfs.vfat", "-n", "ephemeral0", d.Path)
		}, false, ""},
		{"an empty ext3, as AWS had them", "", func(t *testing.T, d *looptest.Device) {
			tool(t, d.Path, "mkfs.ext3", "-qF", d.Path)
		}, false, ""},
		{"recycled bytes", "", func(t *testing.T, d *looptest.Device) {
			for at := int64(0); at < 400<<20; at += 10 << 20 {
				poke(t, d.Path, at, []byte(strings.Repeat("recycled", 512)))
			}
		}, false, ""},
		{"another VM's ephemeral disk with one copy of its table", "", func(t *testing.T, d *looptest.Device) {
			partitioned(t, d, othersNames)
			holdingTree(t, d.Path+"p2", "ext4", "redis")
			poke(t, d.Path, 512, make([]byte, 33*512))
		}, false, ""},
		{"another VM's ephemeral disk with recorded errors", "", func(t *testing.T, d *looptest.Device) {
			partitioned(t, d, othersNames)
			holdingTree(t, d.Path+"p2", "ext4", "redis")
			tool(t, d.Path+"p2", "debugfs", "-w", "-R", "ssv state 2", d.Path+"p2")
		}, false, ""},
		{"broken table", "", func(t *testing.T, d *looptest.Device) {
			partitioned(t, d, gpt)
			breakHeaders(t, d)
		}, true, "damaged partition table"},
		{"a store whose table is broken", "", func(t *testing.T, d *looptest.Device) {
			holdingTree(t, partitioned(t, d, gpt), "ext4", "redis")
			breakHeaders(t, d)
		}, true, "damaged partition table"},
		{"a store whose table was zapped", "", func(t *testing.T, d *looptest.Device) {
			holdingTree(t, partitioned(t, d, gpt), "xfs", "redis")
			tool(t, d.Path, "sgdisk", "--zap-all", d.Path)
		}, true, "xfs begins at byte 1048576"},
		{"a store whose DOS sector is lost", "", func(t *testing.T, d *looptest.Device) {
			holdingTree(t, partitioned(t, d, "label: dos\nstart=63\n"), "ext4", "redis")
			poke(t, d.Path, 0, make([]byte, 512))
		}, true, "ext4 begins at byte 32256"},
		{"a store whose DOS sector is lost, over the table of an ephemeral disk", "",
			func(t *testing.T, d *looptest.Device) {
				partitioned(t, d, "label: gpt\nstart=2048, name=\"bosh-partition-b-0\"\n")
				sector := make([]byte, 512)
				holdingTree(t, partitioned(t, d, dos), "ext4", "redis")
				poke(t, d.Path, 0, sector)
			}, true, "it may be a store"},
		{"a store on the whole disk without its first superblock", "", func(t *testing.T, d *looptest.Device) {
			holdingTree(t, d.Path, "ext4", "redis")
			poke(t, d.Path, 0, make([]byte, 4096))
		}, true, "backup superblock of ext4"},
		{"an xfs on the whole disk without its first superblock", "", func(t *testing.T, d *looptest.Device) {
			holdingTree(t, d.Path, "xfs", "redis")
			poke(t, d.Path, 0, make([]byte, 4096))
		}, true, "backup superblock of xfs"},
		{"a store on a disk that became smaller", "", func(t *testing.T, d *looptest.Device) {
			holdingTree(t, partitioned(t, d, gpt), "ext4", "redis")
			d.Grow(t, 300<<20)
		}, true, "it may be a store"},
		{"a store in the second of two partitions", "", func(t *testing.T, d *looptest.Device) {
			partitioned(t, d, "label: gpt\nsize=16M\nsize=300M\n")
			holdingTree(t, d.Path+"p2", "ext4", "redis")
		}, true, "ext4 begins at byte"},
		{"a store of 512-byte sectors seen as 4Kn", "", func(t *testing.T, d *looptest.Device) {
			holdingTree(t, partitioned(t, d, gpt), "ext4", "redis")
			tool(t, d.Path, "partx", "--delete", d.Path)
			tool(t, d.Path, "losetup", "--sector-size", "4096", d.Path)
		}, true, "damaged partition table"},
		{"an agent's tree", "", func(t *testing.T, d *looptest.Device) {
			holdingTree(t, partitioned(t, d, dos), "ext4", layout...)
		}, false, ""},
		{"an agent's tree beside swap, and its table is wanted", "sfdisk", func(t *testing.T, d *looptest.Device) {
			partitioned(t, d, "label: dos\nsize=16M, type=82\ntype=83\n")
			tool(t, d.Path, "mkswap", d.Path+"p1")
			holdingTree(t, d.Path+"p2", "ext4", layout...)
		}, true, ""},
		{"an agent's tree beside swap, and another table is wanted", "", func(t *testing.T, d *looptest.Device) {
			partitioned(t, d, "label: dos\nsize=16M, type=82\ntype=83\n")
			holdingTree(t, d.Path+"p2", "ext4", layout...)
		}, false, ""},
		{"a store in a partition", "sfdisk", func(t *testing.T, d *looptest.Device) {
			holdingTree(t, partitioned(t, d, dos), "ext4", "redis")
		}, true, "it may be a store"},
		{"a store on the whole disk", "", func(t *testing.T, d *looptest.Device) {
			holdingTree(t, d.Path, "xfs", "redis")
		}, true, "it may be a store"},
		{"a store whose files are in its journal", "", func(t *testing.T, d *looptest.Device) {
			cutOff(t, d, partitioned(t, d, gpt), "ext4", "redis")
		}, true, "its journal may hold files"},
		{"a store on the whole disk whose files are in its log", "", func(t *testing.T, d *looptest.Device) {
			cutOff(t, d, d.Path, "xfs", "redis")
		}, true, "its journal may hold files"},
		{"a store that fsck has mended", "", func(t *testing.T, d *looptest.Device) {
			holdingTree(t, partitioned(t, d, gpt), "ext4", "lost+found/#12")
		}, true, "it may be a store"},
		{"a store without its first superblock over an older file system", "", func(t *testing.T, d *looptest.Device) {
			part := partitioned(t, d, dos)
			holdingTree(t, part, "ext4", "redis")
			poke(t, part, 0, make([]byte, 4096))
			beneath(t, d, "ext4")
		}, true, "ext4 begins at byte 0"},
		{"a store that cannot be read", "", func(t *testing.T, d *looptest.Device) {
			part := partitioned(t, d, gpt)
			holdingTree(t, part, "ext4", "redis")
			poke(t, part, 1024+0x60, []byte{0, 0, 0xff}) // features that no kernel has
		}, true, "cannot determine"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, Options{PartitionerType: c.partitioner})
			dev := b.disk(400<<20, "")
			c.prepare(t, dev)
			before := checksum(t, dev)
			err := b.setupEphemeral(dev.Path, nil)
			if c.refused != "" {
				b.fails(err, "not touched", c.refused)
				lookAround(t, dev, err)
				err = only(b.SetupRaw(ctx, []settings.DiskHint{{Path: dev.Path}}, true))
				b.fails(err, "not touched", c.refused, "agent disk format "+dev.Path+" --yes")
				lookAround(t, dev, err)
				if checksum(t, dev) != before {
					t.Error("the disk was changed")
				}
				return
			}
			b.ok(err)
			if _, err := os.Stat(filepath.Join(b.Dirs.Data(), "redis")); (err == nil) != c.kept {
				t.Errorf("the old content: %v, want it kept: %v", err, c.kept)
			}
			b.ok(b.setupEphemeral(dev.Path, nil)) // and again
		})
	}
}

// TestRootFormatARefusedDisk: an operator can have a refused ephemeral or raw disk formatted, once, after its content
// was shown. That does not apply to disks in use and persistent disks.
func TestRootFormatARefusedDisk(t *testing.T) {
	b := newBench(t, Options{})
	other, dev, raw := b.disk(64<<20, "vol-1"), b.disk(400<<20, ""), b.disk(400<<20, "")
	holdingTree(t, dev.Path, "ext4", "redis")
	holdingTree(t, partitioned(t, raw, "label: gpt\nstart=2048\n"), "xfs", "redis")
	hint, hints := &settings.DiskHint{Path: dev.Path}, []settings.DiskHint{{Path: raw.Path}}
	setup := func() error { return b.setupEphemeral(hint.Path, nil) }
	setupRaw := func() error { return only(b.SetupRaw(ctx, hints, true)) }
	for _, c := range []struct {
		which, holds string
		hint         *settings.DiskHint
		setup        func() error
	}{{"ephemeral", "ext4 with files", hint, setup}, {raw.Path, "xfs with files", &hints[0], setupRaw}} {
		refusal := "run 'agent disk format " + c.which + " --yes'"
		b.fails(c.setup(), refusal)
		shown, err := b.Ephemeral.Describe(ctx, c.which, hint, hints)
		b.ok(err)
		if !strings.Contains(shown.Text, c.holds) {
			t.Errorf("%s is described as %q, want %q", c.which, shown.Text, c.holds)
		}
		// The request is not for another disk that is there by then, and lapses.
		exchanged, was := b.disk(400<<20, ""), c.hint.Path
		holdingTree(t, exchanged.Path, "ext4", "redis")
		before := checksum(t, exchanged)
		b.ok(b.Record.Ask(record.Format, shown.Key, shown.Disk))
		c.hint.Path = exchanged.Path
		b.fails(c.setup(), "it may be a store")
		if checksum(t, exchanged) != before {
			t.Error("a disk that the operator was not shown was changed")
		}
		c.hint.Path = was
		b.fails(c.setup(), refusal)
		b.ok(b.Record.Ask(record.Format, shown.Key, shown.Disk))
		b.ok(c.setup())
		b.ok(c.setup()) // and it is not formatted again
		if r, err := b.Record.Read(); err != nil || len(r.Asked) > 0 || len(r.Shown) > 0 {
			t.Errorf("asked is still %v, %v, %v", r.Asked, r.Shown, err)
		}
	}
	if byPath, err := b.Ephemeral.Describe(ctx, dev.Path, hint, hints); err == nil {
		t.Errorf("the ephemeral disk, which is in use, may be formatted as %v", byPath)
	}
	for _, which := range []string{other.Path, "/dev/null", "/dev/nowhere"} {
		if shown, err := b.Ephemeral.Describe(ctx, which, hint, hints); err == nil {
			t.Errorf("%s is described as %v", which, shown)
		}
	}
	if _, err := b.Ephemeral.Describe(ctx, "ephemeral", nil, hints); err == nil {
		t.Error("an ephemeral disk that no hint names is described")
	}
	// The settings say that it is a store, whatever an operator has asked.
	b.ok(b.Record.Ask(record.Format, record.Ephemeral, ""))
	b.fails(b.setupEphemeral(other.Path, nil), "is the persistent disk vol-1")
}

// TestRootEphemeralDiskOnRecord: a disk on record does not become an ephemeral disk, even if nothing on it shows that
// it is a store and no hint leads to it any more.
func TestRootEphemeralDiskOnRecord(t *testing.T) {
	preformatted := Options{UsePreformattedPersistentDisk: true}
	made := func(t *testing.T, dev *looptest.Device) { tool(t, dev.Path, "mkfs.ext4", "-qF", dev.Path) }
	nothing := func(*testing.T, *looptest.Device) {}
	for name, c := range map[string]struct {
		options         Options
		prepare, damage func(t *testing.T, dev *looptest.Device)
	}{
		"in a DOS table":  {Options{PartitionerType: "sfdisk"}, nothing, nothing},
		"without a table": {preformatted, made, nothing},
		"without its table": {Options{PartitionerType: "sfdisk"}, nothing,
			func(t *testing.T, dev *looptest.Device) { poke(t, dev.Path, 0, make([]byte, 512)) }},
		"without table and magic": {preformatted, made,
			func(t *testing.T, dev *looptest.Device) { poke(t, dev.Path, 1080, make([]byte, 2)) }},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, c.options)
			dev := b.disk(160<<20, "vol-1")
			c.prepare(t, dev)
			b.ok(b.Mount(ctx, "vol-1"))
			b.unmounted("vol-1", "Unmounted partition of vol-1")
			b.ok(b.Remove(ctx, "vol-1"))
			c.damage(t, dev)
			before := checksum(t, dev)
			for kind, err := range map[string]error{"ephemeral": b.setupEphemeral(dev.Path, nil),
				"raw": only(b.SetupRaw(ctx, []settings.DiskHint{{Path: dev.Path}}, true))} {
				if err == nil || !strings.Contains(err.Error(), "on record as the store of vol-1") {
					t.Errorf("%s: %v, want it refused", kind, err)
				}
			}
			if checksum(t, dev) != before {
				t.Error("the disk was changed")
			}
		})
	}
}
