//go:build root

package storage

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cambium/internal/looptest"
	"cambium/platform/device"
	"cambium/platform/disk"
	"cambium/platform/disk/layout"
	"cambium/platform/filesystem"
	"cambium/platform/mount"
	"cambium/settings"
)

// TestRootPartitionsAreAddressedByName: in fake machines, disks and partitions are unrelated devices, so names count.
func TestRootPartitionsAreAddressedByName(t *testing.T) {
	t.Run("kernel knows the partitions", func(t *testing.T) { addressedByName(t, looptest.New(t, 128<<20)) })
	t.Run("kernel refuses partitions", func(t *testing.T) { addressedByName(t, looptest.NewPlain(t, 128<<20)) })
}

func addressedByName(t *testing.T, disk *looptest.Device) {
	b := newBench(t, Options{})
	one, two := b.disk(128<<20, ""), b.disk(128<<20, "")
	dir := t.TempDir()
	for name, dev := range map[string]*looptest.Device{"sdh": disk, "sdh1": one, "sdh2": two} {
		b.ok(unix.Mknod(filepath.Join(dir, name), unix.S_IFBLK|0o600, int(numberOf(t, dev.Path))))
	}
	path := filepath.Join(dir, "sdh")
	for range 2 {
		b.ok(b.setupEphemeral(path, nil))
		if got := mountedSource(t, b.Dirs.Data()); got != path+"2" {
			t.Errorf("data is %q, want %q", got, path+"2")
		}
		if active, err := filesystem.SwapActive(path + "1"); err != nil || !active {
			t.Errorf("swap: %v, %v", active, err)
		}
	}
}

func TestRootEphemeralIdentity(t *testing.T) {
	swapped := func(t *testing.T, b *bench) *looptest.Device {
		dev := b.disk(64<<20, "")
		b.ok(filesystem.FormatSwap(dev.Path))
		b.ok(filesystem.SwapOn(dev.Path))
		return dev
	}
	for _, c := range []struct {
		name string
		dev  func(*testing.T, *bench) *looptest.Device
		want string
	}{
		{"the root disk", func(t *testing.T, b *bench) *looptest.Device {
			dev, _ := fakeRoot(t, b, 400<<20, "label: gpt\nstart=2048\n")
			return dev
		}, "is the root disk"},
		{"a mounted disk", func(t *testing.T, b *bench) *looptest.Device {
			dev := b.disk(64<<20, "")
			tool(t, dev.Path, "mkfs.ext4", "-qF", dev.Path)
			dir := filepath.Join(t.TempDir(), "m")
			b.ok(os.Mkdir(dir, 0o755))
			b.ok(mount.MountDevice(ctx, dev.Path, dir, "ext4", nil))
			return dev
		}, "is mounted"},
		{"a swap device", swapped, "in use as swap"},
		{"a persistent disk of the settings", func(t *testing.T, b *bench) *looptest.Device { return b.disk(64<<20, "vol-1") }, "is the persistent disk vol-1"},
		{"a persistent disk without a hint", func(t *testing.T, b *bench) *looptest.Device {
			dev := b.disk(64<<20, "")
			partitioned(t, dev, "label: gpt\nstart=2048, name=\"bosh-partition-0\"\n")
			return dev
		}, "has the partition of a persistent disk"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, Options{})
			dev := c.dev(t, b)
			// A wipe, a table, mkfs and mkswap all write to the first page. After it the kernel may write to an active
			// swap device.
			firstPage := func() string { return tool(t, dev.Path, "sh", "-c", "head -c 4096 "+dev.Path+" | sha256sum") }
			before := firstPage()
			b.fails(b.setupEphemeral(dev.Path, nil), "not touched", c.want)
			b.fails(only(b.SetupRaw(ctx, []settings.DiskHint{{Path: dev.Path}}, true)), "not touched", c.want)
			if firstPage() != before {
				t.Error("the disk was changed")
			}
		})
	}
	t.Run("a partition", func(t *testing.T) {
		b := newBench(t, Options{})
		part := partitioned(t, b.disk(64<<20, ""), "label: gpt\nstart=2048\n")
		b.fails(b.setupEphemeral(part, nil), "is a partition of")
	})
}

func TestRootSkipDiskSetup(t *testing.T) {
	b := newBench(t, Options{SkipDiskSetup: true})
	dev := b.disk(64<<20, "")
	before := checksum(t, dev)
	b.ok(b.setupEphemeral(dev.Path, nil))
	b.did(b.SetupRaw(ctx, []settings.DiskHint{{Path: dev.Path}}, true))
	b.did(b.GrowRoot(ctx, nil, true))
	if checksum(t, dev) != before {
		t.Error("the disk was changed")
	}
	info, err := os.Stat(b.Dirs.Data())
	if err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("data directory: %v, %v; want 0750", info, err)
	}
}

// found is a resolver that always returns the same, and counts the searches by exclusion.
type found struct {
	Resolver
	devices  []device.Device
	err      error
	excluded int
}

func (f *found) ResolveOnce(device.Hint) (device.Device, error) { return f.Resolve(ctx, device.Hint{}) }
func (f *found) Resolve(context.Context, device.Hint) (device.Device, error) {
	if f.err != nil {
		return device.Device{}, f.err
	}
	return f.devices[0], nil
}
func (f *found) InstanceStorage(context.Context, int) ([]device.Device, error) {
	f.excluded++
	return f.devices, f.err
}

func TestRootRawEphemeralDevices(t *testing.T) {
	nvme := []settings.DiskHint{{Path: "/dev/nvme7n1"}}
	for _, c := range []struct {
		name     string
		volumes  string // the pattern of managed volumes
		hints    []settings.DiskHint
		excluded int
	}{
		{"NVMe by exclusion, whatever paths the CPI names", "/dev/disk/by-id/nvme-volume-*", nvme, 1},
		{"by path without a pattern for volumes", "", nvme, 0},
		{"by path when it is not a NVMe", "/dev/disk/by-id/nvme-volume-*", []settings.DiskHint{{Path: "/dev/xvdb"}}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, Options{InstanceStorageManagedVolumePattern: c.volumes})
			dev := b.disk(8<<20, "")
			f := &found{devices: []device.Device{{Path: dev.Path, Number: numberOf(t, dev.Path)}}}
			b.Ephemeral.Resolver = f
			b.did(b.SetupRaw(ctx, c.hints, true))
			if f.excluded != c.excluded || !strings.Contains(tool(t, dev.Path, "sfdisk", "--dump", dev.Path),
				`name="raw-ephemeral-0"`) {
				t.Errorf("by exclusion %d times, want %d, and a partition", f.excluded, c.excluded)
			}
		})
	}
	t.Run("one that does not come is an error", func(t *testing.T) {
		b := newBench(t, Options{})
		b.fails(only(b.SetupRaw(ctx, []settings.DiskHint{{Path: "/dev/nowhere"}}, true)), "raw ephemeral disks",
			"/dev/nowhere does not exist")
	})
}

// TestRootCallersOfAMissingDisk: callers that would use a missing disk fail, and those that would release it succeed.
// If two disks are possible, unmount_disk does not guess that it is unmounted; list_disk answers from the mount table.
func TestRootCallersOfAMissingDisk(t *testing.T) {
	for name, c := range map[string]struct {
		err     error
		letsGo  bool // unmounting and listing take it for not mounted
		because string
	}{
		"not there": {device.ErrAbsent, true, "not found"},
		"timed out": {device.ErrTimedOut, true, "timed out"},
		"ambiguous": {device.ErrAmbiguous, false, "ambiguous"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, Options{})
			dev := b.disk(64<<20, "vol-1")
			before := checksum(t, dev)
			b.Persistent.Resolver = &found{err: &device.NotFoundError{Reason: c.err}}
			b.records.mounted = "vol-1"
			for caller, err := range map[string]error{
				"mount":             b.Mount(ctx, "vol-1"),
				"mount after start": boot(b.disks()),
				"associate":         only(b.Associate(ctx, []settings.DiskAssociation{{Name: "db", CID: "vol-1"}}, true)),
				"dynamic disk":      b.AddDynamic(ctx, "vol-1", settings.DiskHint{}),
			} {
				if !errors.Is(err, c.err) {
					t.Errorf("%s = %v, want %v", caller, err, c.err)
				}
			}
			message, err := b.Unmount(ctx, "vol-1")
			list, listErr := b.List(ctx)
			if c.letsGo {
				if err != nil || message != "Partition of vol-1 is not mounted" || listErr != nil || len(list) != 0 {
					t.Errorf("unmount = %q, %v; list = %v, %v", message, err, list, listErr)
				}
			} else if !errors.Is(err, c.err) || listErr != nil || len(list) != 0 {
				t.Errorf("unmount = %q, %v; list = %v, %v; want %v, and an answer of list", message, err, list, listErr, c.err)
			}
			if checksum(t, dev) != before {
				t.Error("the disk was changed")
			}
		})
	}
}

// TestRootMountStoreFormatsNothing: only mount_disk formats a disk, since after a boot jobs would start with an empty
// store. cloudfoundry/bosh-agent leaves no identity on record that would prevent it.
func TestRootMountStoreFormatsNothing(t *testing.T) {
	b := newBench(t, Options{})
	b.Persistent.Foreign = func() string { return "format" }
	dev := b.disk(64<<20, "vol-1")
	tool(t, dev.Path, "mkfs.btrfs", "-qf", "--mixed", dev.Path)
	before := checksum(t, dev)
	b.records.mounted = "vol-1"
	_, _, err := b.MountStore(ctx, false)
	for _, err := range []error{err, boot(b.disks()), boot(b.disks())} {
		b.fails(err, "mount disk vol-1: "+dev.Path, "it was mounted last and would have to be formatted",
			"run 'agent disk format vol-1 --yes'")
	}
	if checksum(t, dev) != before || mountedSource(t, b.Dirs.Store()) != "" {
		t.Error("the disk was touched at boot")
	}
	b.ok(b.Mount(ctx, "vol-1"))
	b.ok(boot(b.disks()))
}

// TestRootReadOnlyDisks: a read-only disk is reported as such and not changed.
func TestRootReadOnlyDisks(t *testing.T) {
	readOnly := func(t *testing.T, path string, on int) {
		t.Helper()
		f, err := os.Open(path)
		if err == nil {
			err = errors.Join(unix.IoctlSetPointerInt(int(f.Fd()), unix.BLKROSET, on), f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, prepare := range map[string]func(t *testing.T, dev *looptest.Device) string{
		"blank": func(_ *testing.T, dev *looptest.Device) string { return dev.Path },
		"a store": func(t *testing.T, dev *looptest.Device) string {
			part := partitioned(t, dev, "label: gpt\nstart=2048, name=\"bosh-partition-0\"\n")
			filled(t, part, "ext4")
			return part
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, Options{})
			dev := b.disk(64<<20, "vol-1")
			path := prepare(t, dev)
			before := checksum(t, dev)
			readOnly(t, path, 1)
			b.fails(b.Mount(ctx, "vol-1"), path, "read-only: attach it read-write")
			readOnly(t, path, 0)
			if checksum(t, dev) != before {
				t.Error("the disk was changed")
			}
			b.ok(b.Mount(ctx, "vol-1"))
		})
	}
}

func TestRootLinks(t *testing.T) {
	b := newBench(t, Options{})
	dev := b.disk(8<<20, "vol-1")
	before := checksum(t, dev)
	b.ok(b.AddDynamic(ctx, "dyn", settings.DiskHint{Path: dev.Path}))
	if got, err := os.Readlink(filepath.Join(b.Dirs.DynamicDisks(), "dyn")); err != nil || got != dev.Path {
		t.Errorf("dynamic disk -> %q, %v", got, err)
	}
	b.ok(b.RemoveDynamic(ctx, "dyn"))
	b.ok(b.RemoveDynamic(ctx, "dyn"))
	if _, err := os.Lstat(filepath.Join(b.Dirs.DynamicDisks(), "dyn")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("link is still there: %v", err)
	}
	b.did(b.Associate(ctx, []settings.DiskAssociation{{Name: "db", CID: "vol-1"}}, true))
	if got, err := os.Readlink(filepath.Join(b.Dirs.DiskAssociations(), "db")); err != nil || got != dev.Path {
		t.Errorf("association -> %q, %v", got, err)
	}
	b.fails(only(b.Associate(ctx, []settings.DiskAssociation{{Name: "db", CID: "none"}}, true)), "not known")
	for _, name := range []string{"../x", "", "..", "a/b"} {
		b.fails(only(b.Associate(ctx, []settings.DiskAssociation{{Name: name, CID: "vol-1"}}, true)), "is not a valid link name")
		b.fails(b.AddDynamic(ctx, name, settings.DiskHint{Path: dev.Path}), "is not a valid link name")
	}
	if checksum(t, dev) != before {
		t.Error("the disk was changed")
	}
}

func TestRootLargeSectors(t *testing.T) {
	b := newBench(t, Options{})
	dev := b.disk(256<<20, "vol-1")
	f, err := os.OpenFile(dev.Path, os.O_RDWR, 0)
	b.ok(err)
	b.ok(unix.IoctlSetInt(int(f.Fd()), unix.LOOP_SET_BLOCK_SIZE, 4096))
	b.ok(f.Close())
	b.ok(b.Mount(ctx, "vol-1"))
	s, err := disk.Inspect(dev.Path)
	b.ok(err)
	if s.Sector != 4096 || len(s.Table.Partitions) != 1 || s.Table.Partitions[0].Start != layout.MiB {
		t.Errorf("observed %+v", s)
	}
	if out := tool(t, dev.Path, "sgdisk", "--verify", dev.Path); !strings.Contains(out, "No problems found") {
		t.Errorf("sgdisk: %s", out)
	}
}

// TestRootSettingsAreAskedForWithoutTheLock: settings are fetched over the network, so the lock is not held meanwhile.
func TestRootSettingsAreAskedForWithoutTheLock(t *testing.T) {
	b := newBench(t, Options{})
	dev := b.disk(64<<20, "vol-1")
	asked := 0
	b.Reload = func(context.Context) error {
		asked++
		soon, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if err := b.Machine.Lock(soon); err != nil {
			t.Errorf("call %d asks with the lock", asked)
			return nil
		}
		b.Machine.Unlock()
		return nil
	}
	hint := settings.DiskHint{Path: dev.Path}
	b.ok(b.Add(ctx, "vol-1", hint))
	b.ok(b.Mount(ctx, "vol-1"))
	b.unmounted("vol-1", "Unmounted partition of vol-1")
	b.ok(b.AddDynamic(ctx, "dyn", hint))
	b.ok(b.Remove(ctx, "vol-1"))
	if asked != 4 {
		t.Errorf("settings were asked for %d times, want 4", asked)
	}
}
