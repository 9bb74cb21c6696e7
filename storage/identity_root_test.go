//go:build root

package storage

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cambium/internal/looptest"
	"cambium/platform/disk/layout"
	"cambium/platform/mount"
	"cambium/settings"
	"cambium/storage/record"
)

// attach makes a device that of a disk.
func (b *bench) attach(cid, path string) {
	b.records.disks[cid] = settings.PersistentDisk{CID: cid, Hint: settings.DiskHint{Path: path}}
}

func (b *bench) list() []string {
	b.t.Helper()
	cids, err := b.List(ctx)
	b.ok(err)
	return cids
}

func (b *bench) lists(want ...string) {
	b.t.Helper()
	if got := b.list(); !slices.Equal(got, want) {
		b.t.Errorf("list_disk = %q, want %q", got, want)
	}
}

// put writes text to the file that wantFile checks.
func (b *bench) put(text string) {
	b.t.Helper()
	b.ok(os.WriteFile(filepath.Join(b.Dirs.Store(), "file"), []byte(text), 0o644))
}

func (b *bench) wantFile(dir, want string) {
	b.t.Helper()
	if got, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || string(got) != want {
		b.t.Errorf("the file in %s is %q (%v), want %q", dir, got, err, want)
	}
}

// TestRootDiskOnRecordIsNeverFormatted: a disk that was a store is never formatted again, even if it is blank.
// remove_persistent_disk does not change that.
func TestRootDiskOnRecordIsNeverFormatted(t *testing.T) {
	b := newBench(t, Options{})
	b.Foreign = func() string { return "format" }
	dev := b.disk(256<<20, "vol-1")
	b.ok(b.Mount(ctx, "vol-1"))
	b.unmounted("vol-1", "Unmounted partition of vol-1")
	b.ok(b.Remove(ctx, "vol-1"))
	b.attach("vol-1", dev.Path)
	for _, wipe := range []string{layout.PartitionPath(dev.Path, 1), dev.Path} {
		tool(t, dev.Path, "wipefs", "-qaf", wipe)
		before := checksum(t, dev)
		b.fails(b.Mount(ctx, "vol-1"), "vol-1 is on record", "agent disk format vol-1 --yes")
		if checksum(t, dev) != before {
			t.Errorf("%s is without signatures, and the disk was changed", wipe)
		}
	}
	b.ok(b.Record.Ask(record.Release, "vol-1", ""))
	b.fails(b.Mount(ctx, "vol-1"), "Because", "ext4", "agent disk format vol-1 --yes")
	if !strings.Contains(b.log.String(), "an operator has released the disk") {
		t.Error("the release is not in the log")
	}
	b.ok(b.Record.Ask(record.Format, "vol-1", ""))
	b.ok(b.Mount(ctx, "vol-1"))
	b.put("new")
	b.reboot()
	b.wantFile(b.Dirs.Store(), "new")
	// Only once.
	b.unmounted("vol-1", "Unmounted partition of vol-1")
	b.ok(b.Mount(ctx, "vol-1"))
	b.wantFile(b.Dirs.Store(), "new")
}

// TestRootAnotherDiskUnderOneCID: a CID is never used for another disk, unless an operator accepts it.
func TestRootAnotherDiskUnderOneCID(t *testing.T) {
	b := newBench(t, Options{})
	first, second := b.disk(256<<20, "vol-1"), b.disk(256<<20, "vol-2")
	b.ok(b.Mount(ctx, "vol-1"))
	b.put("one")
	b.unmounted("vol-1", "Unmounted partition of vol-1")
	b.ok(b.Remove(ctx, "vol-1"))
	b.ok(b.Mount(ctx, "vol-2"))
	b.put("two")
	b.unmounted("vol-2", "Unmounted partition of vol-2")
	b.ok(b.Remove(ctx, "vol-2"))

	b.attach("vol-1", second.Path)
	before := checksum(t, second)
	r, err := b.Record.Read()
	b.ok(err)
	err = b.Mount(ctx, "vol-1")
	b.fails(err, "has a different file system", r.Disks["vol-1"].FileSystem, r.Disks["vol-2"].FileSystem,
		"agent disk accept vol-1")
	if checksum(t, second) != before || mountedSource(t, b.Dirs.Store()) != "" {
		t.Error("the refused disk was changed or mounted")
	}
	// Also when another program has put it there.
	b.ok(mount.MountDevice(ctx, layout.PartitionPath(second.Path, 1), b.Dirs.Store(), "ext4", nil))
	b.fails(b.Mount(ctx, "vol-1"), "has a different file system", "agent disk accept vol-1")
	b.ok(mount.Unmount(ctx, b.Dirs.Store()))
	b.attach("vol-1", first.Path)
	b.ok(b.Mount(ctx, "vol-1"))
	b.wantFile(b.Dirs.Store(), "one")
	b.unmounted("vol-1", "Unmounted partition of vol-1")

	b.attach("vol-1", second.Path)
	b.ok(b.Record.Ask(record.Accept, "vol-1", ""))
	b.ok(b.Mount(ctx, "vol-1"))
	b.wantFile(b.Dirs.Store(), "two")
	if !strings.Contains(b.log.String(), "an operator has accepted the disk") {
		t.Error("the acceptance is not in the log")
	}
	b.unmounted("vol-1", "Unmounted partition of vol-1")
	b.ok(b.Mount(ctx, "vol-1")) // without another request
}

// TestRootHintLeadsToAnotherDisk: a hint that leads to another disk's device neither mounts nor unmounts that disk.
func TestRootHintLeadsToAnotherDisk(t *testing.T) {
	b := newBench(t, Options{})
	dev := b.disk(256<<20, "vol-a")
	b.ok(b.Mount(ctx, "vol-a"))
	b.put("a")
	b.attach("vol-b", dev.Path)
	b.fails(b.Mount(ctx, "vol-b"), "is persistent disk vol-a")
	b.lists("vol-a")
	b.unmounted("vol-b", "Partition of vol-b is not mounted")
	b.wantFile(b.Dirs.Store(), "a")
	if cid := b.records.mounted; cid != "vol-a" {
		t.Errorf("on record is %q", cid)
	}
	b.ok(b.Remove(ctx, "vol-b"))
	if cid := b.records.mounted; cid != "vol-a" {
		t.Errorf("after remove_persistent_disk of the other, on record is %q", cid)
	}
	b.ok(boot(b.disks()))
	b.wantFile(b.Dirs.Store(), "a")
}

// withoutRecord has a damaged record of the disk on the store until a new one is written.
type withoutRecord struct {
	*records
	damaged bool
}

func (r *withoutRecord) ManagedCID() (string, error) {
	if r.damaged {
		return "", errors.New("the record is damaged")
	}
	return r.records.ManagedCID()
}

func (r *withoutRecord) SetManagedCID(cid string) error {
	r.damaged = false
	return r.records.SetManagedCID(cid)
}

// TestRootDamagedRecordOfTheStore: a damaged record of the disk on the store means neither no disk nor the only disk:
// mount_disk or an operator names the disk.
func TestRootDamagedRecordOfTheStore(t *testing.T) {
	for name, mend := range map[string]func(b *bench) error{
		"mount_disk": func(b *bench) error { return b.Mount(ctx, "vol-1") },
		"accepted": func(b *bench) error {
			return errors.Join(b.Record.Ask(record.Accept, "vol-1", ""), boot(b.disks()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, Options{})
			b.disk(64<<20, "vol-1")
			b.ok(b.Mount(ctx, "vol-1"))
			b.put("one")
			damaged := &withoutRecord{records: b.records, damaged: true}
			b.Persistent.Known = damaged
			b.lists("vol-1")
			b.unmounted("vol-1", "Unmounted partition of vol-1")
			b.fails(boot(b.disks()), "the record is damaged")
			if mountedSource(t, b.Dirs.Store()) != "" {
				t.Error("a disk was mounted")
			}
			b.ok(mend(b))
			b.wantFile(b.Dirs.Store(), "one")
			if damaged.damaged || b.records.mounted != "vol-1" {
				t.Errorf("on record is %q, damaged: %v", b.records.mounted, damaged.damaged)
			}
		})
	}
}

// TestRootListAnswersAlways: list_disk answers from the mount table, whatever else fails.
func TestRootListAnswersAlways(t *testing.T) {
	b := newBench(t, Options{})
	b.disk(256<<20, "vol-1")
	b.disk(256<<20, "vol-2")
	b.ok(b.Mount(ctx, "vol-1"))
	for name, breakIt := range map[string]func(){
		"settings":       func() { b.Reload = func(context.Context) error { return errors.New("no source") } },
		"hints":          func() { b.records.disks = map[string]settings.PersistentDisk{} },
		"no such device": func() { b.attach("vol-1", "/dev/nothing") },
		"bad hint":       func() { b.attach("vol-1", "") },
		"record":         func() { b.ok(os.WriteFile(b.Dirs.DiskRecord(), []byte("{"), 0o600)) },
	} {
		breakIt()
		if got := b.list(); !slices.Equal(got, []string{"vol-1"}) {
			t.Errorf("without %s: %q", name, got)
		}
	}
	// Without a readable record of the store, the identifiers on the device tell.
	b.ok(os.Remove(b.Dirs.DiskRecord()))
	b.ok(b.Record.Update(func(r *record.Record) { r.Put("vol-1", b.identifyStore()) }))
	b.records.mounted = ""
	b.lists("vol-1")
}

// identifyStore returns the recorded identity of the store, read again after it was mounted.
func (b *bench) identifyStore() record.Disk {
	b.t.Helper()
	e, _, err := mount.At(b.Dirs.Store())
	b.ok(err)
	out := tool(b.t, e.Source, "blkid", "-p", "-o", "value", "-s", "UUID", e.Source)
	return record.Disk{FileSystem: strings.TrimSpace(out)}
}

// TestRootUnmountedMeansReleased: unmount_disk replies "Unmounted" only if nothing uses the disk.
func TestRootUnmountedMeansReleased(t *testing.T) {
	exclusive := func(t *testing.T, dev *looptest.Device) {
		t.Helper()
		f, err := os.OpenFile(layout.PartitionPath(dev.Path, 1), os.O_RDONLY|unix.O_EXCL, 0)
		if err != nil {
			t.Errorf("the disk is held: %v", err)
			return
		}
		_ = f.Close()
	}
	t.Run("something is mounted on top", func(t *testing.T) {
		b := newBench(t, Options{})
		dev := b.disk(256<<20, "vol-1")
		b.ok(b.Mount(ctx, "vol-1"))
		b.ok(unix.Mount("tmpfs", b.Dirs.Store(), "tmpfs", 0, "size=1m"))
		t.Cleanup(func() { _ = unix.Unmount(b.Dirs.Store(), unix.MNT_DETACH) })
		b.lists("vol-1")
		b.unmounted("vol-1", "Unmounted partition of vol-1")
		exclusive(t, dev)
	})
	for name, flags := range map[string]uintptr{"private mount namespace": unix.CLONE_NEWNS,
		"user namespace": unix.CLONE_NEWNS | unix.CLONE_NEWUSER} {
		t.Run(name+" goes on writing", func(t *testing.T) {
			b := newBench(t, Options{})
			dev := b.disk(256<<20, "vol-1")
			b.ok(b.Mount(ctx, "vol-1"))
			b.ok(os.Chmod(b.Dirs.Store(), 0o777))
			writer := exec.Command("sh", "-c", `cd "$0"; echo ready; while :; do echo x; sleep 0.05; done > out`, b.Dirs.Store())
			writer.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags, Setpgid: true}
			if flags&unix.CLONE_NEWUSER != 0 {
				writer.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}}
				writer.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}}
			}
			out, err := writer.StdoutPipe()
			b.ok(err)
			b.ok(writer.Start())
			stop := func() { _ = unix.Kill(-writer.Process.Pid, unix.SIGKILL); _ = writer.Wait() }
			t.Cleanup(stop)
			_, err = out.Read(make([]byte, 6))
			b.ok(err)

			short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			defer cancel()
			answer, err := b.Unmount(short, "vol-1")
			if err == nil {
				t.Fatalf("unmount_disk = %q while a process goes on writing", answer)
			}
			b.fails(err, "pid", "sh", "mount namespace mnt:[")
			// A repeated call is not fooled by what the first one has unmounted already.
			if answer, err := b.Unmount(short, "vol-1"); err == nil {
				t.Errorf("a repeated unmount_disk = %q while a process goes on writing", answer)
			}
			stop()
			if _, err := b.Unmount(ctx, "vol-1"); err != nil {
				t.Error(err)
			}
			exclusive(t, dev)
		})
	}
	t.Run("bind mount in a private namespace", func(t *testing.T) {
		b := newBench(t, Options{BindMountPersistentDisk: true})
		dir := t.TempDir()
		b.attach("vol-1", dir)
		b.ok(b.Mount(ctx, "vol-1"))
		holder := exec.Command("sleep", "1000")
		holder.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
		b.ok(holder.Start())
		t.Cleanup(func() { _ = holder.Process.Kill(); _ = holder.Wait() })
		b.unmounted("vol-1", "Unmounted partition of vol-1")
		table, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(holder.Process.Pid), "mountinfo"))
		b.ok(err)
		if strings.Contains(string(table), b.Dirs.Store()) {
			t.Error("the store is still mounted in the other namespace")
		}
	})
}

// TestRootStoreBoundElsewhere: a job that bind-mounts the store elsewhere does not prevent the agent from starting
// again.
func TestRootStoreBoundElsewhere(t *testing.T) {
	b := newBench(t, Options{})
	dev := b.disk(256<<20, "vol-1")
	b.ok(b.Mount(ctx, "vol-1"))
	b.put("data")
	elsewhere := t.TempDir()
	b.ok(unix.Mount(b.Dirs.Store(), elsewhere, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(elsewhere, unix.MNT_DETACH) })
	b.ok(boot(b.disks()))
	b.ok(b.Mount(ctx, "vol-1"))
	dev.Grow(t, 512<<20)
	b.ok(b.Mount(ctx, "vol-1"))
	b.wantFile(b.Dirs.Store(), "data")
	b.lists("vol-1")
	b.unmounted("vol-1", "Unmounted partition of vol-1")
}
