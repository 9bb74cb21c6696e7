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
	"cambium/internal/looptest"
	"cambium/platform/disk"
	"cambium/platform/disk/layout"
	"cambium/platform/filesystem"
	"cambium/platform/filesystem/probe"
	"cambium/settings"
	"cambium/storage/decide"
)

// The known ways in which agents have lost data or got stuck, each with the disk before, the request, and the disk
// after. The numbers are those of the rules D.1 to D.23 in docs/protocol.md.

var ctx = context.Background()

// refused mounts a disk and checks that it is refused and that no byte changes.
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

// partitioned creates a table with sfdisk and returns its first partition. It announces the table to the kernel itself,
// since sfdisk would sleep before it does.
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

// TestRootD05StaleMarkCostsNothing: a mark of unfinished work must never destroy a disk that was used since, even if
// its file system is damaged: it was mounted, so it may contain files. The matrix covers undamaged ones.
func TestRootD05StaleMarkCostsNothing(t *testing.T) {
	b := newBench(t, Options{PartitionerType: "sfdisk"})
	dev := b.disk(128<<20, "vol-1")
	b.ok(b.Mount(ctx, "vol-1"))
	b.put("precious")
	b.unmounted("vol-1", "Unmounted partition of vol-1")
	part := dev.Path + "p1"
	tool(t, part, "debugfs", "-w", "-R", "sif /file links_count 5", part)
	if sound, err := filesystem.IsConsistent(ctx, part, probe.Ext4); err != nil || sound {
		t.Fatalf("the damage does not show: %v, %v", sound, err)
	}
	b.ok(os.Remove(b.Dirs.DiskRecord())) // otherwise the identity protects the disk
	b.ok(disk.Rename(ctx, dev.Path, 1, decide.PreparingName))
	b.ok(b.Mount(ctx, "vol-1"))
	b.wantFile(b.Dirs.Store(), "precious")
	if s, err := disk.Inspect(dev.Path); err != nil || s.Table.Partitions[0].Name != "" {
		t.Errorf("still being prepared: %+v, %v", s.Table, err)
	}
}

func TestRootD10MissingEphemeralIsAnError(t *testing.T) {
	b := newBench(t, Options{CreatePartitionIfNoEphemeralDisk: true})
	root, _ := fakeRoot(t, b, 2*gib, "label: dos\nstart=1, size=262144, type=83\n")
	before := tool(t, root.Path, "sfdisk", "--dump", root.Path)
	b.fails(b.setupEphemeral("/dev/nowhere", nil), "No ephemeral disk found", "timed out", "/dev/nowhere")
	if tool(t, root.Path, "sfdisk", "--dump", root.Path) != before {
		t.Error("the root disk was touched")
	}
}

func TestRootD11NoOldDataOnARemadeDisk(t *testing.T) {
	b := newBench(t, Options{})
	dev := b.usedEphemeral(t, "secret", "of the previous VM")
	// The same disk, a new VM: the layout is the same to the byte.
	b.did(b.Setup(ctx, &settings.DiskHint{Path: dev.Path}, nil, "agent-2", true))
	if _, err := os.Stat(filepath.Join(b.Dirs.Data(), "secret")); err == nil {
		t.Error("data of the previous VM reappeared")
	}
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

// TestRootD23NodeIsAwaited: a partition unknown to the kernel, or without a device node yet, is waited for.
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
