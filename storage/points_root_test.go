//go:build root

package storage

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cambium/internal/blkdev"
	"cambium/internal/eventually"
	"cambium/internal/looptest"
	"cambium/platform/disk"
	"cambium/platform/disk/layout"
	"cambium/platform/filesystem"
	"cambium/platform/mount"
	"cambium/settings"
	"cambium/storage/record"
)

// The known ways in which agents have lost data or got stuck, each as a disk before, what is
// asked, and the disk after. The numbers are those of the rules D.1 to D.23 in docs/protocol.md.

var ctx = context.Background()

// refused mounts a disk and checks that it was refused and not a byte of it changed.
func refused(t *testing.T, b *bench, dev *looptest.Device, texts ...string) {
	t.Helper()
	before := checksum(t, dev)
	err := b.Mount(ctx, "vol-1")
	b.fails(err, append(texts, "is refused", "persistent_disk_foreign")...)
	if after := checksum(t, dev); after != before {
		t.Error("the refused disk was changed")
	}
	if b.records.mounted != "" || mountedSource(t, b.Dirs.Store()) != "" {
		t.Error("the refused disk was recorded or mounted")
	}
}

// partitioned makes a table with sfdisk and returns its first partition. The kernel is told here: sfdisk would
// sleep for a while before it does.
func partitioned(t testing.TB, dev *looptest.Device, script string) string {
	t.Helper()
	cmd := exec.Command("sfdisk", "-q", "--no-reread", "--no-tell-kernel", dev.Path)
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("sfdisk: %v: %s", err, out)
	}
	if err := disk.Announce(ctx, dev.Path); err != nil {
		t.Fatal(err)
	}
	return layout.PartitionPath(dev.Path, 1)
}

func TestRootD01ReadingDestroysNothing(t *testing.T) {
	b := newBench(t, Options{})
	dev := b.disk(64<<20, "vol-1")
	tool(t, dev.Path, "mkfs.ext4", "-qF", dev.Path)
	refused(t, b, dev, "the whole disk holds ext4")
}

func TestRootD01DamagedTableIsNotBlank(t *testing.T) {
	b := newBench(t, Options{})
	dev := b.disk(64<<20, "vol-1")
	partitioned(t, dev, "label: gpt\nstart=2048\n")
	f, err := os.OpenFile(dev.Path, os.O_RDWR, 0)
	b.ok(err)
	for _, at := range []int64{512 + 8, 64<<20 - 512 + 8} {
		_, err = f.WriteAt([]byte{0xff}, at)
		b.ok(err)
	}
	b.ok(f.Close())
	refused(t, b, dev, "damaged partition table")
}

func TestRootD02ForeignContentIsRefused(t *testing.T) {
	for name, make := range map[string][]string{
		"ext3":  {"mkfs.ext3", "-qF"},
		"btrfs": {"mkfs.btrfs", "-qf", "--mixed"},
		"NTFS":  {"mkfs.ntfs", "-qFf"},
		"LUKS":  {"sh", "-c", "echo secret | cryptsetup luksFormat -q --type luks1 --pbkdf-force-iterations 1000 $0 -"},
		"FAT":   {"mkfs.vfat"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, Options{})
			dev := b.disk(128<<20, "vol-1")
			part := partitioned(t, dev, "label: gpt\nstart=2048, name=\"bosh-partition-0\"\n")
			tool(t, part, make[0], append(make[1:], part)...)
			refused(t, b, dev, "holds "+name)
		})
	}
	for name, c := range map[string]struct {
		mark string
		at   int64
	}{
		"md RAID member":      {"\xfc\x4e\x2b\xa9\x01\x00\x00\x00", 4096},
		"LVM physical volume": {"LABELONE\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x20\x00\x00\x00LVM2 001", 512},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, Options{})
			dev := b.disk(128<<20, "vol-1")
			f, err := os.OpenFile(dev.Path, os.O_RDWR, 0)
			b.ok(err)
			_, err = f.WriteAt([]byte(c.mark), c.at)
			b.ok(err)
			b.ok(f.Close())
			refused(t, b, dev, name)
		})
	}
	t.Run("several partitions", func(t *testing.T) {
		b := newBench(t, Options{})
		dev := b.disk(128<<20, "vol-1")
		partitioned(t, dev, "label: gpt\nsize=10M\nsize=10M\n")
		refused(t, b, dev, "2 partitions")
	})
	t.Run("released by the manifest", func(t *testing.T) {
		b := newBench(t, Options{})
		b.Persistent.Foreign = func() string { return "format" }
		dev := b.disk(128<<20, "vol-1")
		tool(t, dev.Path, "mkfs.btrfs", "-qf", "--mixed", dev.Path)
		b.ok(b.Mount(ctx, "vol-1"))
		if got, want := mountedSource(t, b.Dirs.Store()), dev.Path+"p1"; got != want {
			t.Errorf("store is %q, want %q", got, want)
		}
	})
	t.Run("released by clearing", func(t *testing.T) {
		b := newBench(t, Options{})
		dev := b.disk(128<<20, "vol-1")
		tool(t, dev.Path, "mkfs.btrfs", "-qf", "--mixed", dev.Path)
		// Without its signatures it still is a file system that can be brought back.
		tool(t, dev.Path, "wipefs", "-qa", dev.Path)
		refused(t, b, dev, "it is not blank", "agent disk format vol-1 --yes")
		tool(t, dev.Path, "blkdiscard", "-z", dev.Path)
		b.ok(b.Mount(ctx, "vol-1"))
	})
}

func TestRootD05UnfinishedDiskIsCompleted(t *testing.T) {
	b := newBench(t, Options{})
	dev := b.disk(128<<20, "vol-1")
	partitioned(t, dev, "label: gpt\nstart=2048, name=\"bosh-partition-0\"\n")
	b.ok(b.Mount(ctx, "vol-1"))
	if got := mountedSource(t, b.Dirs.Store()); got != dev.Path+"p1" {
		t.Errorf("store is %q", got)
	}
}

// A record of unfinished work must never destroy a disk that was used in between, not even when its file system
// is damaged: it was mounted, so it may hold files.
func TestRootD05StaleRecordCostsNothing(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, b *bench, part string){
		"sound": func(*testing.T, *bench, string) {},
		"damaged": func(t *testing.T, b *bench, part string) {
			tool(t, part, "debugfs", "-w", "-R", "sif /data links_count 5", part)
			if sound, err := filesystem.Sound(ctx, part); err != nil || sound {
				t.Fatalf("the damage does not show: %v, %v", sound, err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, Options{})
			dev := b.disk(128<<20, "vol-1")
			b.ok(b.Mount(ctx, "vol-1"))
			write(t, filepath.Join(b.Dirs.Store(), "data"), "precious")
			b.unmounted("vol-1", "Unmounted partition of vol-1")
			damage(t, b, dev.Path+"p1")
			s, err := disk.Inspect(dev.Path)
			b.ok(err)
			b.ok(b.Record.Update(func(r *record.Record) { r.Unfinished["vol-1"] = s.Table.GUID }))
			b.ok(b.Mount(ctx, "vol-1"))
			if got := read(t, filepath.Join(b.Dirs.Store(), "data")); got != "precious" {
				t.Errorf("data is %q", got)
			}
			if r, err := b.Record.Read(); err != nil || len(r.Unfinished) > 0 {
				t.Errorf("still pending: %v, %v", r.Unfinished, err)
			}
		})
	}
}

func TestRootD10MissingEphemeralIsAnError(t *testing.T) {
	for _, c := range []struct {
		name    string
		options Options
		want    []string
	}{
		{"root disk not allowed", Options{}, []string{"No ephemeral disk found", "/dev/nowhere is not there"}},
		{"root disk allowed, but a disk was named", Options{CreatePartitionIfNoEphemeralDisk: true}, []string{"No ephemeral disk found", "timed out", "/dev/nowhere"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, c.options)
			root, _ := fakeRoot(t, b, 2*gib, "label: dos\nstart=1, size=262144, type=83\n")
			before := tool(t, root.Path, "sfdisk", "--dump", root.Path)
			b.fails(b.setupEphemeral("/dev/nowhere", nil), c.want...)
			if tool(t, root.Path, "sfdisk", "--dump", root.Path) != before {
				t.Error("the root disk was touched")
			}
		})
	}
	t.Run("none named, root not allowed", func(t *testing.T) {
		b := newBench(t, Options{})
		b.fails(b.setupEphemeral("", nil), "No ephemeral disk found")
	})
	t.Run("configured to fall back", func(t *testing.T) {
		b := newBench(t, Options{CreatePartitionIfNoEphemeralDisk: true, MissingEphemeralDisk: "root"})
		root, _ := fakeRoot(t, b, 2*gib, "label: dos\nstart=1, size=262144, type=83\n")
		b.ok(b.setupEphemeral("/dev/nowhere", nil))
		if got := mountedSource(t, b.Dirs.Data()); got != root.Path+"p3" {
			t.Errorf("data is %q", got)
		}
	})
}

func TestRootD11NoOldDataOnARemadeDisk(t *testing.T) {
	b := newBench(t, Options{})
	dev := b.disk(256<<20, "")
	b.ok(b.setupEphemeral(dev.Path, nil))
	write(t, filepath.Join(b.Dirs.Data(), "secret"), "of the previous VM")
	b.ok(mount.Unmount(ctx, b.Dirs.Data()))
	b.ok(looptest.SwapOff(dev.Path + "p1"))
	// The same disk, a new VM: the layout is the same to the byte.
	b.did(b.Setup(ctx, &settings.DiskHint{Path: dev.Path}, nil, "agent-2"))
	if _, err := os.Stat(filepath.Join(b.Dirs.Data(), "secret")); err == nil {
		t.Error("data of the previous VM reappeared")
	}
}

func TestRootD12RAMChangesNothing(t *testing.T) {
	t.Run("own disk", func(t *testing.T) {
		b := newBench(t, Options{})
		dev := b.disk(512<<20, "")
		b.ok(b.setupEphemeral(dev.Path, nil))
		write(t, filepath.Join(b.Dirs.Data(), "kept"), "x")
		for _, change := range []func() (ram int64, swap *uint64){
			func() (int64, *uint64) { return 128 << 20, nil },
			func() (int64, *uint64) { n := uint64(16); return 64 << 20, &n },
			func() (int64, *uint64) { n := uint64(0); return 64 << 20, &n },
		} {
			ram, swap := change()
			b.Memory = func() (int64, error) { return ram, nil }
			b.ok(mount.Unmount(ctx, b.Dirs.Data()))
			b.ok(b.setupEphemeral(dev.Path, swap))
			if read(t, filepath.Join(b.Dirs.Data(), "kept")) != "x" {
				t.Error("data lost")
			}
		}
	})
	t.Run("root disk", func(t *testing.T) {
		b := newBench(t, Options{CreatePartitionIfNoEphemeralDisk: true})
		root, _ := fakeRoot(t, b, 2*gib, "label: dos\nstart=1, size=262144, type=83\n")
		b.ok(b.setupEphemeral("", nil))
		write(t, filepath.Join(b.Dirs.Data(), "kept"), "x")
		before := tool(t, root.Path, "sfdisk", "--dump", root.Path)
		b.Memory = func() (int64, error) { return 512 << 20, nil }
		b.ok(mount.Unmount(ctx, b.Dirs.Data()))
		b.ok(b.setupEphemeral("", nil))
		if after := tool(t, root.Path, "sfdisk", "--dump", root.Path); after != before {
			t.Errorf("table changed:\n%s\n%s", before, after)
		}
		if read(t, filepath.Join(b.Dirs.Data(), "kept")) != "x" {
			t.Error("data lost")
		}
	})
}

func TestRootD13DevicesAreComparedByNumber(t *testing.T) {
	b := newBench(t, Options{})
	dev := b.disk(128<<20, "vol-1")
	b.ok(b.Mount(ctx, "vol-1"))
	// The CPI now gives another name of the same disk, and the mount is stacked over.
	dir := t.TempDir()
	alias := filepath.Join(dir, "alias")
	b.ok(unix.Mknod(alias, unix.S_IFBLK|0o600, int(numberOf(t, dev.Path))))
	b.ok(unix.Mknod(alias+"1", unix.S_IFBLK|0o600, int(numberOf(t, dev.Path+"p1"))))
	b.records.disks["vol-1"] = settings.PersistentDisk{CID: "vol-1", Hint: settings.DiskHint{Path: alias}}
	list, err := b.List(ctx)
	b.ok(err)
	if len(list) != 1 {
		t.Errorf("List = %v, want the disk, which is mounted under another name", list)
	}
	b.unmounted("vol-1", "Unmounted partition of vol-1")
	if got := mountedSource(t, b.Dirs.Store()); got != "" {
		t.Errorf("store is %q", got)
	}
}

func TestRootD14NothingNamedIsAnError(t *testing.T) {
	b := newBench(t, Options{})
	b.records.disks["vol-1"] = settings.PersistentDisk{CID: "vol-1"}
	b.fails(b.Mount(ctx, "vol-1"), "vol-1", "not there")
	b.fails(b.Mount(ctx, "vol-2"), `"vol-2" is not known`)
}

func TestRootD15StaleRecordDoesNotStopTheAgent(t *testing.T) {
	b := newBench(t, Options{})
	b.records.mounted = "gone"
	_, warning, err := b.MountLast(ctx)
	b.ok(err)
	if !strings.Contains(warning, "gone") || !strings.Contains(warning, "the store is empty") {
		t.Errorf("warning %q, want the disk named", warning)
	}
	// With other disks known, one that is not was forgotten by mistake.
	b.disk(64<<20, "other")
	b.fails(boot(b.disks()), "gone", "not among those known")
}

func TestRootD16RecordsAreAtomic(t *testing.T) {
	b := newBench(t, Options{})
	dev := b.disk(64<<20, "vol-1")
	write(t, b.Dirs.DiskRecord(), "")
	// It may have said that the disk holds an incomplete copy.
	b.fails(b.Mount(ctx, "vol-1"), "disks.json", "agent disk accept")
	b.fails(b.Record.Ask(record.Release, "vol-1"), "agent disk accept")
	b.ok(b.Record.Ask(record.Accept, "vol-1"))
	b.ok(b.Mount(ctx, "vol-1"))
	if got := mountedSource(t, b.Dirs.Store()); got != dev.Path+"p1" {
		t.Errorf("store is %q", got)
	}
}

func TestRootD17ISCSIIsNeverGuessed(t *testing.T) {
	b := newBench(t, Options{})
	b.records.disks["vol-1"] = settings.PersistentDisk{CID: "vol-1", Hint: settings.DiskHint{ISCSI: &settings.ISCSI{Target: "10.0.0.1"}}}
	b.fails(b.Mount(ctx, "vol-1"), "iSCSI disks are not supported")
}

func TestRootD18SwapLargerThanTheDisk(t *testing.T) {
	b := newBench(t, Options{})
	dev := b.disk(64<<20, "")
	before := checksum(t, dev)
	huge := uint64(1 << 40)
	b.fails(b.setupEphemeral(dev.Path, &huge), "leaves no room for data")
	if checksum(t, dev) != before {
		t.Error("the disk was changed")
	}
}

func TestRootD20PreformattedTwice(t *testing.T) {
	b := newBench(t, Options{UsePreformattedPersistentDisk: true})
	dev := b.disk(64<<20, "vol-1")
	tool(t, dev.Path, "mkfs.ext4", "-qF", dev.Path)
	for range 2 {
		b.ok(b.Mount(ctx, "vol-1"))
		if got := mountedSource(t, b.Dirs.Store()); got != dev.Path {
			t.Errorf("store is %q, want the whole device", got)
		}
		if got := mountedSource(t, b.Dirs.StoreMigrationTarget()); got != "" {
			t.Errorf("migration target is %q, want nothing", got)
		}
	}
	b.unmounted("vol-1", "Unmounted partition of vol-1")
	b.ok(boot(b.disks()))
	if got := mountedSource(t, b.Dirs.Store()); got != dev.Path {
		t.Errorf("after a reboot the store is %q", got)
	}
}

func TestRootD21SfdiskPartitionerWorks(t *testing.T) {
	b := newBench(t, Options{PartitionerType: "sfdisk"})
	eph, per := b.disk(256<<20, ""), b.disk(128<<20, "vol-1")
	b.ok(b.setupEphemeral(eph.Path, nil))
	dump := tool(t, eph.Path, "sfdisk", "--dump", eph.Path)
	for _, want := range []string{"label: dos", "type=82", "type=83"} {
		if !strings.Contains(dump, want) {
			t.Errorf("ephemeral table lacks %s:\n%s", want, dump)
		}
	}
	b.ok(b.setupEphemeral(eph.Path, nil))
	if after := tool(t, eph.Path, "sfdisk", "--dump", eph.Path); after != dump {
		t.Error("a second run changed the table")
	}
	b.ok(b.Mount(ctx, "vol-1"))
	if dump := tool(t, per.Path, "sfdisk", "--dump", per.Path); !strings.Contains(dump, "label: dos") {
		t.Errorf("persistent table:\n%s", dump)
	}
	b.unmounted("vol-1", "Unmounted partition of vol-1")
	b.ok(b.Mount(ctx, "vol-1"))
}

func TestRootD22RecordedErrorsAreChecked(t *testing.T) {
	b := newBench(t, Options{})
	dev := b.disk(128<<20, "vol-1")
	part := partitioned(t, dev, "label: gpt\nstart=2048\n")
	tool(t, part, "mkfs.ext4", "-qF", part)
	tool(t, part, "debugfs", "-w", "-R", "ssv state 2", part)
	b.ok(b.Mount(ctx, "vol-1"))
	b.unmounted("vol-1", "Unmounted partition of vol-1")
	c, err := filesystem.Probe(part)
	b.ok(err)
	if c.Errors {
		t.Error("the errors are still on record")
	}
}

// An agent that starts again finds its disks mounted; what is in use is not checked.
func TestRootD22ErrorsOfAMountedFileSystem(t *testing.T) {
	b := newBench(t, Options{})
	dev := b.disk(128<<20, "")
	b.ok(b.setupEphemeral(dev.Path, nil))
	trigger := "/sys/fs/ext4/" + filepath.Base(dev.Path) + "p2/trigger_fs_error"
	if err := os.WriteFile(trigger, []byte("test"), 0); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "the kernel's record of the error", func() bool {
		c, err := filesystem.Probe(dev.Path + "p2")
		b.ok(err)
		return c.Errors
	})
	b.ok(b.setupEphemeral(dev.Path, nil))
	b.ok(mount.Unmount(ctx, b.Dirs.Data()))
	b.ok(b.setupEphemeral(dev.Path, nil))
	b.ok(mount.Unmount(ctx, b.Dirs.Data()))
	if c, err := filesystem.Probe(dev.Path + "p2"); err != nil || c.Errors {
		t.Errorf("not checked: %+v, %v", c, err)
	}
}

// A partition that the kernel does not know, and a node that is not there yet, are both waited
// for and not fatal.
func TestRootD23NodeIsAwaited(t *testing.T) {
	b := newBench(t, Options{})
	dev := b.disk(128<<20, "vol-1")
	part := partitioned(t, dev, "label: gpt\nstart=2048\n")
	tool(t, part, "mkfs.ext4", "-qF", part)
	f, err := os.Open(dev.Path)
	b.ok(err)
	b.ok(blkdev.DeletePartition(f, 1))
	b.ok(f.Close())
	if _, err := os.Stat(part); err == nil {
		t.Fatal("the node is still there")
	}
	b.ok(b.Mount(ctx, "vol-1"))
}
