//go:build root

package storage

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cambium/internal/looptest"
	"cambium/platform/mount"
	"cambium/settings"
)

// holdingTree makes a file system with directories in it.
func holdingTree(t testing.TB, part, kind string, names ...string) {
	t.Helper()
	tool(t, part, "mkfs."+kind, map[string]string{"ext4": "-qF", "xfs": "-qf"}[kind], part)
	dir := filepath.Join(t.TempDir(), "fill")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := mount.Device(ctx, part, dir, kind, nil); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := mount.Unmount(ctx, dir); err != nil {
		t.Fatal(err)
	}
}

// What an ephemeral hint leads to is used, kept, or, where it may be a store, not touched.
func TestRootEphemeralContent(t *testing.T) {
	const gpt, dos = "label: gpt\nstart=2048\n", "label: dos\nstart=2048, type=83\n"
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
		{"Nova's ext4", "", func(t *testing.T, d *looptest.Device) {
			holdingTree(t, d.Path, "ext4", "anything")
			tool(t, d.Path, "e2label", d.Path, "ephemeral0")
		}, false, ""},
		{"a bare ext4 without content", "", func(t *testing.T, d *looptest.Device) {
			holdingTree(t, d.Path, "ext4")
		}, false, ""},
		{"a recycled volume", "", func(t *testing.T, d *looptest.Device) {
			poke(t, d.Path, 4096, []byte("what somebody wrote"))
			poke(t, d.Path, 100<<20, []byte("what somebody wrote"))
		}, false, ""},
		{"Nova's vfat", "", func(t *testing.T, d *looptest.Device) { tool(t, d.Path, "mkfs.vfat", d.Path) }, false, ""},
		{"an earlier VM's disk without swap", "", func(t *testing.T, d *looptest.Device) {
			holdingTree(t, partitioned(t, d, "label: gpt\nstart=2048, name=\"bosh-partition-agent-0-0\"\n"), "ext4", layout...)
		}, false, ""},
		{"an earlier VM's disk with swap", "", func(t *testing.T, d *looptest.Device) {
			partitioned(t, d, "label: gpt\nsize=16M, name=\"bosh-partition-agent-0-0\"\nname=\"bosh-partition-agent-0-1\"\n")
			holdingTree(t, d.Path+"p2", "ext4", "anything")
		}, false, ""},
		{"a raw disk that a job formatted", "", func(t *testing.T, d *looptest.Device) {
			holdingTree(t, partitioned(t, d, "label: gpt\nstart=2048, name=\"raw-ephemeral-0\"\n"), "ext4", "anything")
		}, false, ""},
		{"an empty file system", "", func(t *testing.T, d *looptest.Device) { holdingTree(t, partitioned(t, d, gpt), "ext4") }, false, ""},
		{"DOS without swap, made by an agent", "", func(t *testing.T, d *looptest.Device) { holdingTree(t, partitioned(t, d, dos), "ext4", layout...) }, false, ""},
		{"DOS without swap, made by an agent, and wanted", "sfdisk", func(t *testing.T, d *looptest.Device) { holdingTree(t, partitioned(t, d, dos), "ext4", layout...) }, true, ""},
		{"DOS with swap, and wanted", "sfdisk", func(t *testing.T, d *looptest.Device) {
			partitioned(t, d, "label: dos\nsize=16M, type=82\ntype=83\n")
			tool(t, d.Path, "mkswap", d.Path+"p1")
			holdingTree(t, d.Path+"p2", "ext4", layout...)
		}, true, ""},
		{"DOS with LVM", "sfdisk", func(t *testing.T, d *looptest.Device) { poke(t, partitioned(t, d, dos), 512, []byte("LABELONE")) }, false, ""},
		{"our own with a third partition", "", func(t *testing.T, d *looptest.Device) {
			partitioned(t, d, "label: gpt\nsize=16M, name=\"bosh-partition-agent-1-0\"\nsize=80M, name=\"bosh-partition-agent-1-1\"\nname=\"mine\"\n")
			holdingTree(t, d.Path+"p2", "ext4", layout...)
		}, true, ""},
		{"a store", "", func(t *testing.T, d *looptest.Device) { holdingTree(t, partitioned(t, d, gpt), "ext4", "redis") }, true, "it may be a store"},
		{"a store in a DOS table", "", func(t *testing.T, d *looptest.Device) { holdingTree(t, partitioned(t, d, dos), "ext4", "redis") }, true, "it may be a store"},
		{"a store in a DOS table, such being wanted", "sfdisk", func(t *testing.T, d *looptest.Device) {
			holdingTree(t, partitioned(t, d, dos), "ext4", "redis")
		}, true, "it may be a store"},
		{"a preformatted store", "", func(t *testing.T, d *looptest.Device) {
			holdingTree(t, d.Path, "ext4", "redis")
		}, true, "it may be a store"},
		{"a store with names of ephemeral data", "", func(t *testing.T, d *looptest.Device) {
			holdingTree(t, partitioned(t, d, gpt), "ext4", "blobs", "tmp", "packages", "jobs")
		}, true, "it may be a store"},
		{"a store with such names in a DOS table, which is wanted", "sfdisk", func(t *testing.T, d *looptest.Device) {
			holdingTree(t, partitioned(t, d, dos), "ext4", "blobs")
		}, true, "it may be a store"},
		{"a store that fsck has mended", "", func(t *testing.T, d *looptest.Device) {
			holdingTree(t, partitioned(t, d, gpt), "ext4", "lost+found/#12")
		}, true, "it may be a store"},
		{"a store without its first superblock", "", func(t *testing.T, d *looptest.Device) {
			part := partitioned(t, d, gpt)
			holdingTree(t, part, "ext4", "redis")
			poke(t, part, 0, make([]byte, 4096))
		}, true, "holds a damaged ext4 or xfs"},
		{"a store over an older file system", "", func(t *testing.T, d *looptest.Device) {
			holdingTree(t, partitioned(t, d, dos), "ext4", "redis")
			beneath(t, d, "ext4")
		}, true, "it may be a store"},
		{"a store without its first superblock over an older file system", "", func(t *testing.T, d *looptest.Device) {
			part := partitioned(t, d, dos)
			holdingTree(t, part, "ext4", "redis")
			poke(t, part, 0, make([]byte, 4096))
			beneath(t, d, "ext4")
		}, true, "holds a damaged ext4 or xfs"},
		{"a store that cannot be read", "", func(t *testing.T, d *looptest.Device) {
			part := partitioned(t, d, gpt)
			holdingTree(t, part, "ext4", "redis")
			poke(t, part, 1024+0x60, []byte{0, 0, 0xff}) // features that no kernel has
		}, true, "cannot determine"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, Options{PartitionerType: c.partitioner})
			dev := b.disk(160<<20, "")
			c.prepare(t, dev)
			before := checksum(t, dev)
			err := b.setupEphemeral(dev.Path, nil)
			if c.refused != "" {
				b.fails(err, "not touched", c.refused)
				b.fails(only(b.SetupRaw(ctx, []settings.DiskHint{{Path: dev.Path}})), "not touched", c.refused)
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
			if strings.Contains(c.name, "third") && !strings.Contains(tool(t, dev.Path, "sfdisk", "--dump", dev.Path), `name="mine"`) {
				t.Error("the third partition is gone")
			}
		})
	}
	for _, part := range []bool{true, false} {
		t.Run(fmt.Sprintf("a store on xfs, in a partition: %v", part), func(t *testing.T) {
			b := newBench(t, Options{})
			dev := b.disk(400<<20, "")
			node := dev.Path
			if part {
				node = partitioned(t, dev, gpt)
			}
			holdingTree(t, node, "xfs", "redis")
			before := checksum(t, dev)
			b.fails(b.setupEphemeral(dev.Path, nil), "it may be a store")
			if checksum(t, dev) != before {
				t.Error("the disk was changed")
			}
		})
	}
	t.Run("a bare xfs without content", func(t *testing.T) {
		b := newBench(t, Options{})
		dev := b.disk(400<<20, "")
		holdingTree(t, dev.Path, "xfs")
		b.ok(b.setupEphemeral(dev.Path, nil))
	})
}

// A disk on record is no ephemeral disk, though nothing on it tells that it is a store and no hint leads to it any more.
func TestRootEphemeralDiskOnRecord(t *testing.T) {
	preformatted := Options{UsePreformattedPersistentDisk: true}
	made := func(t *testing.T, dev *looptest.Device) { tool(t, dev.Path, "mkfs.ext4", "-qF", dev.Path) }
	nothing := func(*testing.T, *looptest.Device) {}
	for name, c := range map[string]struct {
		options         Options
		prepare, damage func(t *testing.T, dev *looptest.Device)
	}{
		"in a DOS table":          {Options{PartitionerType: "sfdisk"}, nothing, nothing},
		"without a table":         {preformatted, made, nothing},
		"without its table":       {Options{PartitionerType: "sfdisk"}, nothing, func(t *testing.T, dev *looptest.Device) { poke(t, dev.Path, 0, make([]byte, 512)) }},
		"without table and magic": {preformatted, made, func(t *testing.T, dev *looptest.Device) { poke(t, dev.Path, 1080, make([]byte, 2)) }},
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
			for kind, err := range map[string]error{"ephemeral": b.setupEphemeral(dev.Path, nil), "raw": only(b.SetupRaw(ctx, []settings.DiskHint{{Path: dev.Path}}))} {
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

// Raw and ephemeral disks whose names the kernel exchanged do not wipe each other.
func TestRootRawAndEphemeralExchanged(t *testing.T) {
	b := newBench(t, Options{})
	b.Ephemeral.AgentID = func() string { return "agent-1" }
	eph, raw := b.disk(160<<20, ""), b.disk(16<<20, "")
	b.did(b.SetupRaw(ctx, []settings.DiskHint{{Path: raw.Path}}))
	b.ok(b.setupEphemeral(eph.Path, new(uint64)))
	write(t, filepath.Join(b.Dirs.Data(), "kept"), "x")
	b.ok(mount.Unmount(ctx, b.Dirs.Data()))
	before := checksum(t, eph)
	b.fails(only(b.SetupRaw(ctx, []settings.DiskHint{{Path: eph.Path}})), "this agent's ephemeral disk", "exchanged")
	if checksum(t, eph) != before {
		t.Error("the ephemeral disk was changed")
	}
	// To another VM it is an old disk.
	b.Ephemeral.AgentID = func() string { return "agent-2" }
	b.did(b.SetupRaw(ctx, []settings.DiskHint{{Path: eph.Path}}))
}

// What the system has behind the root partition is not the space for the ephemeral data.
func TestRootSystemPartitionBehindRoot(t *testing.T) {
	const script = "label: gpt\nstart=2048, size=262144\nstart=264192, size=2048, type=21686148-6449-6E6F-744E-656564454649\n"
	t.Run("BIOS boot", func(t *testing.T) {
		b := newBench(t, Options{CreatePartitionIfNoEphemeralDisk: true})
		dev, _ := fakeRoot(t, b, 2*gib, script)
		poke(t, dev.Path+"p2", 0, []byte("core.img of grub"))
		for range 2 {
			b.ok(b.setupEphemeral("", new(uint64)))
			if got := mountedSource(t, b.Dirs.Data()); got != dev.Path+"p3" {
				t.Errorf("data is %q, want the third partition", got)
			}
		}
		if got := tool(t, dev.Path, "head", "-c", "16", dev.Path+"p2"); got != "core.img of grub" {
			t.Errorf("the BIOS boot partition holds %q", got)
		}
	})
	t.Run("old data outside of the table's entries", func(t *testing.T) {
		b := newBench(t, Options{CreatePartitionIfNoEphemeralDisk: true})
		dev, _ := fakeRoot(t, b, 2*gib, "label: dos\nstart=2048, size=262144, type=83\n")
		poke(t, dev.Path, 129<<20, []byte(strings.Repeat("what somebody wrote ", 10_000)))
		b.ok(b.setupEphemeral("", new(uint64)))
		if got := mountedSource(t, b.Dirs.Data()); got != dev.Path+"p2" {
			t.Errorf("data is %q, want the second partition", got)
		}
	})
	t.Run("data without a signature", func(t *testing.T) {
		b := newBench(t, Options{CreatePartitionIfNoEphemeralDisk: true})
		dev, _ := fakeRoot(t, b, 2*gib, "label: dos\nstart=2048, size=262144, type=83\nstart=264192, type=83\n")
		poke(t, dev.Path+"p2", 70<<10, []byte("records of a database"))
		before := checksum(t, dev)
		b.fails(b.setupEphemeral("", nil), "partition 2 behind the root partition is not blank")
		if checksum(t, dev) != before {
			t.Error("the disk was changed")
		}
	})
}

// A file may hold any bytes, also where signatures are looked for: the store is mounted all the same.
func TestRootSignatureInsideAFileSystem(t *testing.T) {
	for _, kind := range []string{"ext4", "xfs"} {
		t.Run(kind, func(t *testing.T) {
			b := newBench(t, Options{})
			dev := b.disk(400<<20, "vol-1")
			part := partitioned(t, dev, "label: gpt\nstart=2048, name=\"bosh-partition-0\"\n")
			filled(t, part, kind)
			poke(t, part, -512, []byte("EFI PART"))
			poke(t, part, -8192, []byte("\xfc\x4e\x2b\xa9\x01\x00\x00\x00"))
			poke(t, part, -64<<10, []byte("\xfc\x4e\x2b\xa9\x00\x00\x00\x00\x5a\x00\x00\x00"))
			for range 2 {
				b.ok(b.Mount(ctx, "vol-1"))
				if got := read(t, filepath.Join(b.Dirs.Store(), "data")); got != "precious" {
					t.Errorf("data is %q", got)
				}
				b.unmounted("vol-1", "Unmounted partition of vol-1")
				b.ok(boot(b.disks()))
				b.unmounted("vol-1", "Unmounted partition of vol-1")
			}
		})
	}
}

// The end of a disk may be the metadata of what the disk is a member of; a partition is not grown over it.
func TestRootGrowthSparesTheMembersMetadata(t *testing.T) {
	for name, c := range map[string]struct {
		offset int64
		magic  string
	}{
		"md 1.0": {-8192, "\xfc\x4e\x2b\xa9\x01\x00\x00\x00"},
		"DRBD":   {-4096 + 60, "\x83\x74\x02\x6d"},
		"Intel":  {-1024, "Intel Raid ISM Cfg Sig. "},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, Options{})
			dev := b.disk(300<<20, "vol-1")
			filled(t, partitioned(t, dev, "label: dos\nstart=2048, size=100M\n"), "ext4")
			poke(t, dev.Path, c.offset, []byte(c.magic))
			before := tool(t, dev.Path, "sh", "-c", "tail -c 1048576 "+dev.Path+" | sha256sum")
			b.ok(b.Mount(ctx, "vol-1"))
			b.ok(b.Mount(ctx, "vol-1"))
			if !strings.Contains(b.log.String(), "its end holds the metadata of a") {
				t.Error("the reason is not in the log")
			}
			b.unmounted("vol-1", "Unmounted partition of vol-1")
			if after := tool(t, dev.Path, "sh", "-c", "tail -c 1048576 "+dev.Path+" | sha256sum"); after != before {
				t.Error("the metadata was overwritten")
			}
			if dump := tool(t, dev.Path, "sfdisk", "--dump", dev.Path); !strings.Contains(strings.ReplaceAll(dump, " ", ""), "size=204800") {
				t.Errorf("the partition was grown:\n%s", dump)
			}
		})
	}
}
