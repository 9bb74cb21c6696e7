//go:build root

package storage

import (
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"cambium/internal/looptest"
	"cambium/platform/disk"
	"cambium/platform/mount"
)

// poke writes bytes to a device, as an accident or another program would. An offset below 0 counts from the end.
func poke(t testing.TB, path string, offset int64, data []byte) {
	t.Helper()
	if err := looptest.Guard(path); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if offset < 0 {
		end, err := f.Seek(0, 2)
		if err != nil {
			t.Fatal(err)
		}
		offset += end
	}
	if _, err := f.WriteAt(data, offset); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
}

// filled makes a file system on a partition, with a file in it.
func filled(t testing.TB, part, kind string) {
	t.Helper()
	tool(t, part, "mkfs."+kind, map[string]string{"ext4": "-qF", "xfs": "-qf"}[kind], part)
	dir := filepath.Join(t.TempDir(), "fill")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := mount.Device(ctx, part, dir, kind, nil); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "data"), "precious")
	if err := mount.Unmount(ctx, dir); err != nil {
		t.Fatal(err)
	}
}

// advised runs the command that an error advises, and looks whether the content is back.
func advised(t *testing.T, b *bench, dev *looptest.Device, err error, pattern string) {
	t.Helper()
	found := regexp.MustCompile(pattern).FindStringSubmatch(err.Error())
	if found == nil {
		t.Fatalf("error %q, want it to advise %q", err, pattern)
	}
	if err := looptest.Guard(dev.Path); err != nil {
		t.Fatal(err)
	}
	// e2fsck says with 1 that it has corrected errors.
	if out, err := exec.Command("sh", "-c", found[1]+"; test $? -le 1").CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", found[1], err, out)
	}
	b.ok(b.Mount(ctx, "vol-1"))
	if got := read(t, filepath.Join(b.Dirs.Store(), "data")); got != "precious" {
		t.Errorf("data is %q after %s", got, found[1])
	}
}

// A file system whose first superblock is damaged is refused with the command that repairs it, by mount_disk and at boot.
func TestRootDamagedSuperblockIsRefused(t *testing.T) {
	for _, c := range []struct {
		name, kind string
		size       int64
		damage     func(t *testing.T, part string)
		repair     string
	}{
		{"ext4, two bytes", "ext4", 128 << 20, func(t *testing.T, part string) { poke(t, part, 1080, make([]byte, 2)) }, `run (e2fsck -b \d+ -B \d+ \S+)\. To use`},
		{"ext4 of 4 KiB blocks, two bytes", "ext4", 600 << 20, func(t *testing.T, part string) { poke(t, part, 1080, make([]byte, 2)) }, `run (e2fsck -b 32768 -B 4096 \S+)\. To use`},
		{"ext4, the whole superblock", "ext4", 128 << 20, func(t *testing.T, part string) { poke(t, part, 1024, make([]byte, 1024)) }, `run (e2fsck -b \d+ -B \d+ \S+)\. To use`},
		{"xfs, two bytes", "xfs", 400 << 20, func(t *testing.T, part string) { poke(t, part, 0, make([]byte, 2)) }, `run (xfs_repair \S+)\. To use`},
		{"xfs, the whole superblock", "xfs", 400 << 20, func(t *testing.T, part string) { poke(t, part, 0, make([]byte, 512)) }, `run (xfs_repair \S+)\. To use`},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, Options{})
			dev := b.disk(c.size, "vol-1")
			part := partitioned(t, dev, "label: gpt\nstart=2048, name=\"bosh-partition-0\"\n")
			filled(t, part, c.kind)
			c.damage(t, part)
			refused(t, b, dev, "partition 1 has no file system")
			before := checksum(t, dev)
			b.records.mounted = "vol-1"
			if err := boot(b.disks()); err == nil {
				t.Error("boot takes the disk for blank")
			}
			if checksum(t, dev) != before {
				t.Fatal("boot changed the disk")
			}
			// Without -y, e2fsck asks.
			err := errors.New(strings.Replace(b.Mount(ctx, "vol-1").Error(), "run e2fsck ", "run e2fsck -y ", 1))
			advised(t, b, dev, err, strings.Replace(c.repair, "e2fsck ", "e2fsck -y ", 1))
		})
	}
}

// A table that is lost takes nothing with it: the file system behind it is still where partitions begin.
func TestRootLostTableIsNoBlankDisk(t *testing.T) {
	const size = 64 << 20
	head := func(t *testing.T, dev *looptest.Device) { poke(t, dev.Path, 0, make([]byte, 34*512)) }
	for _, c := range []struct {
		name, script string
		damage       func(t *testing.T, dev *looptest.Device)
		advice       string
	}{
		{"DOS at 1 MiB", "label: dos\nstart=2048\n", func(t *testing.T, dev *looptest.Device) { poke(t, dev.Path, 0, make([]byte, 512)) }, "start=2048"},
		{"DOS at sector 63", "label: dos\nstart=63\n", func(t *testing.T, dev *looptest.Device) { poke(t, dev.Path, 0, make([]byte, 512)) }, "start=63"},
		{"DOS at sector 1", "label: dos\nstart=1\n", func(t *testing.T, dev *looptest.Device) { poke(t, dev.Path, 0, make([]byte, 512)) }, "start=1"},
		{"GPT, both copies", "label: gpt\nstart=2048\n", func(t *testing.T, dev *looptest.Device) {
			head(t, dev)
			poke(t, dev.Path, -33*512, make([]byte, 33*512))
		}, "start=2048"},
		{"GPT, grown, then the head", "label: gpt\nstart=2048\n", func(t *testing.T, dev *looptest.Device) {
			dev.Grow(t, 2*size)
			head(t, dev)
		}, "start=2048"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, Options{})
			dev := b.disk(size, "vol-1")
			filled(t, partitioned(t, dev, c.script), "ext4")
			c.damage(t, dev)
			b.ok(disk.Announce(ctx, dev.Path)) // as after a reboot, the kernel knows no partitions either
			refused(t, b, dev, "ext4 begins at sector", c.advice)
			advised(t, b, dev, b.Mount(ctx, "vol-1"), `\((echo start=.* \| sfdisk .*)\)\. To use`)
		})
	}
}

// An empty table says nothing about what was behind it.
func TestRootEmptyTableOverTraces(t *testing.T) {
	md, swap := "\xfc\x4e\x2b\xa9\x01\x00\x00\x00", "SWAPSPACE2"
	type trace struct {
		offset int64
		magic  string
	}
	for name, c := range map[string]struct {
		label string
		start int64 // sectors
		trace trace
	}{
		"md 1.2":         {"gpt", 2048, trace{4096, md}},
		"md 1.0":         {"gpt", 2048, trace{-1<<20 - 8192, md}},
		"bcache":         {"gpt", 2048, trace{4096 + 24, "\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"}},
		"btrfs":          {"gpt", 2048, trace{0x10040, "_BHRfS_M"}},
		"LVM":            {"gpt", 2048, trace{512, "LABELONE"}},
		"swap":           {"gpt", 2048, trace{4086, swap}},
		"LUKS":           {"gpt", 2048, trace{0, "LUKS\xba\xbe"}},
		"DM snapshot":    {"gpt", 2048, trace{0, "SnAp"}},
		"vxfs":           {"gpt", 2048, trace{1024, "\xf5\xfc\x01\xa5"}},
		"ReFS":           {"gpt", 2048, trace{0, "\x00\x00\x00ReFS\x00"}},
		"UBI":            {"gpt", 2048, trace{0, "UBI#"}},
		"ext4 at 34":     {"gpt", 34, trace{}},
		"ext4 at 40":     {"gpt", 40, trace{}},
		"ext4 at 63":     {"gpt", 63, trace{}},
		"ext4 at 4 MiB":  {"gpt", 8192, trace{}},
		"ext4 at DOS 63": {"dos", 63, trace{}},
		"xfs at DOS 128": {"dos", 128, trace{}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, Options{})
			size := int64(64 << 20)
			if strings.HasPrefix(name, "xfs") {
				size = 400 << 20
			}
			dev := b.disk(size, "vol-1")
			if c.trace.magic == "" {
				part := partitioned(t, dev, "label: "+c.label+"\n"+map[string]string{"gpt": "first-lba: 34\n"}[c.label]+"start="+strconv.FormatInt(c.start, 10)+"\n")
				filled(t, part, strings.Fields(name)[0])
			}
			partitioned(t, dev, "label: "+c.label+"\n")
			if c.trace.magic != "" && c.trace.offset < 0 {
				poke(t, dev.Path, c.trace.offset, []byte(c.trace.magic))
			} else if c.trace.magic != "" {
				poke(t, dev.Path, c.start*512+c.trace.offset, []byte(c.trace.magic))
			}
			refused(t, b, dev, "the partition table is empty, but")
		})
	}
}

// Kinds that only the tool of their own makes, by the magic that libblkid knows.
func TestRootRareKindsAreNotBlank(t *testing.T) {
	for name, c := range map[string]struct {
		offset int64
		magic  string
	}{
		"DM snapshot":      {0, "SnAp"},
		"vxfs":             {1024, "\xf5\xfc\x01\xa5"},
		"ReFS":             {0, "\x00\x00\x00ReFS\x00"},
		"UBI":              {0, "UBI#"},
		"Adaptec RAID":     {-512, "\x37\xfc\x4d\x1e"},
		"LSI RAID":         {-512, "$XIDE$"},
		"nForce RAID":      {-1024, "NVIDIA, "},
		"Promise RAID":     {-63 * 512, "Promise Technology, Inc."},
		"VIA RAID":         {-512, "\x55\xaa"},
		"JMicron RAID":     {-512, "JM"},
		"text at sector 5": {5 * 512, "x"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, Options{})
			dev := b.disk(64<<20, "vol-1")
			poke(t, dev.Path, c.offset, []byte(c.magic))
			refused(t, b, dev)
		})
	}
}

// Where new volumes hold noise, the settings say so; the refusal names the setting.
func TestRootNoise(t *testing.T) {
	const size = 24 << 20
	random := rand.NewChaCha8([32]byte{1})
	noise := make([]byte, size)
	_, _ = random.Read(noise)
	for _, c := range []struct {
		name   string
		change func(t *testing.T, dev *looptest.Device)
		used   bool
	}{
		{"noise", func(*testing.T, *looptest.Device) {}, true},
		{"noise with marks that are accidents", func(t *testing.T, dev *looptest.Device) {
			poke(t, dev.Path, 1080, []byte("\x53\xef"))
			poke(t, dev.Path, 510, []byte("\x55\xaa"))
			poke(t, dev.Path, 1<<20+1024, []byte("BD"))
		}, true},
		{"an unfinished wiping", func(t *testing.T, dev *looptest.Device) { poke(t, dev.Path, 0, make([]byte, 1<<20)) }, true},
		{"noise with a superblock", func(t *testing.T, dev *looptest.Device) { tool(t, dev.Path, "mkfs.ext4", "-qF", dev.Path) }, false},
		{"noise with a backup superblock", func(t *testing.T, dev *looptest.Device) {
			tool(t, dev.Path, "mkfs.ext4", "-qF", "-b", "1024", dev.Path)
			poke(t, dev.Path, 0, noise[:4<<20])
		}, false},
		{"noise with text", func(t *testing.T, dev *looptest.Device) {
			poke(t, dev.Path, 1<<20+8192, []byte(strings.Repeat("text ", 200)))
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, Options{})
			dev := b.disk(size, "vol-1")
			poke(t, dev.Path, 0, noise)
			c.change(t, dev)
			refused(t, b, dev)
			if c.name == "noise" {
				b.fails(b.Mount(ctx, "vol-1"), "env.persistent_disk_blank: noise", "Platform.Linux.BlankDisks")
			}
			b.Persistent.Blank = func() string { return "noise" }
			if !c.used {
				refused(t, b, dev)
				return
			}
			b.ok(b.Mount(ctx, "vol-1"))
			b.unmounted("vol-1", "Unmounted partition of vol-1")
			b.Persistent.Blank = func() string { return "" }
			b.ok(b.Mount(ctx, "vol-1"))
		})
	}
}
