//go:build vm && !root

package storage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"cambium/internal/blkdev"
	"cambium/internal/looptest"
	"cambium/internal/vcap"
	"cambium/lab/testvm"
	"cambium/platform/copytree/worker"
	"cambium/platform/device"
	"cambium/platform/filesystem"
	"cambium/platform/mount"
	"cambium/settings"
)

// TestMain is also the first process of the virtual machine.
func TestMain(m *testing.M) {
	worker.ServeIfCalled(context.Background())
	testvm.Main(m, guestChecks, func() error {
		return errors.Join(mount.Unmount(context.Background(), "/var/vcap/store"),
			mount.Unmount(context.Background(), "/var/vcap/data"))
	})
}

func guestLog() *logrus.Entry {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return logrus.NewEntry(l)
}

// find resolves a hint and checks the size of the device.
func find(ctx context.Context, kind string, h device.Hint, size int64) error {
	r, err := device.New(device.Options{Type: kind}, guestLog())
	if err != nil {
		return err
	}
	d, err := r.Resolve(ctx, h)
	if err != nil {
		return err
	}
	return sized(d.Path, size)
}

func sized(path string, size int64) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	have, err := blkdev.Size(f)
	if err == nil && have != size {
		err = fmt.Errorf("%s has %d bytes, want %d", path, have, size)
	}
	return err
}

// guestDisks returns the disks of an agent whose settings contain these persistent disks.
var guestDisks = func(cids ...string) Disks {
	r, err := device.New(device.Options{Type: "virtio"}, guestLog())
	if err != nil {
		panic(err) // no pattern, so there is nothing to reject
	}
	known := &records{disks: map[string]settings.PersistentDisk{}}
	for _, cid := range cids {
		known.disks[cid] = settings.PersistentDisk{CID: cid, Hint: settings.DiskHint{Path: "/dev/sdq"}}
	}
	return New(Config{Dirs: vcap.New(""), Resolver: r, Known: known, Program: "/proc/self/exe", Log: guestLog()})
}

var guestChecks = []testvm.Check{
	{Name: "virtio: the serial number holds 20 characters of the CID", Run: func(ctx context.Context) error {
		return find(ctx, "virtio", device.Hint{CID: vmCID, Path: "/dev/sda"}, vmVirtio)
	}},
	{Name: "virtio: /dev/sda without identity means /dev/vda", Run: func(ctx context.Context) error {
		return find(ctx, "virtio", device.Hint{Path: "/dev/sda"}, vmOther)
	}},
	{Name: "scsi: volume id is the target on the first disk's host", Run: func(ctx context.Context) error {
		return find(ctx, "scsi", device.Hint{VolumeID: "2"}, vmTarget2)
	}},
	{Name: "scsi: a target that is not there", Run: func(ctx context.Context) error {
		r, err := device.New(device.Options{Type: "scsi", TimeoutScale: 0.1}, guestLog())
		if err != nil {
			return err
		}
		if d, err := r.Resolve(ctx, device.Hint{VolumeID: "5"}); !errors.Is(err, device.ErrTimedOut) || d.Path != "" {
			return fmt.Errorf("got %+v, %v", d, err)
		}
		return nil
	}},
	{Name: "nvme: instance storage is found by exclusion", Run: func(ctx context.Context) error {
		r, err := device.New(device.Options{ManagedVolumePattern: "/dev/disk/by-id/nvme-Amazon_*"}, guestLog())
		if err != nil {
			return err
		}
		all, err := r.InstanceStorage(ctx, 1)
		if err != nil {
			return err
		}
		return sized(all[0].Path, vmNVMe)
	}},
	{Name: "nvme: an ephemeral disk is ready, with a kernel that parses tables by itself", Run: func(ctx context.Context) error {
		d := guestDisks()
		for range 2 {
			if _, err := d.Ephemeral.Setup(ctx, &settings.DiskHint{Path: "/dev/nvme0n1"}, nil, "agent-1", true); err != nil {
				return err
			}
		}
		e, ok, err := mount.At("/var/vcap/data")
		if err != nil || !ok || e.Source != "/dev/nvme0n1p2" {
			return fmt.Errorf("data is %+v, %v", e, err)
		}
		active, err := filesystem.SwapActive("/dev/nvme0n1p1")
		if err == nil && !active {
			err = errors.New("swap is not active")
		}
		return errors.Join(err, looptest.SwapOff("/dev/nvme0n1p1"))
	}},
	{Name: "plan: the proof names the serial number", Run: func(ctx context.Context) error {
		changes, err := guestDisks().Ephemeral.Setup(ctx, &settings.DiskHint{Path: "/dev/sda"}, nil, "agent-1", false)
		const want = "/dev/vda: blank, 66.0 MiB, serial somebody-else, not in use, not a persistent disk, no ext4 or xfs on it: create GPT, swap 33.0 MiB, data 31.0 MiB"
		if err != nil || len(changes) == 0 || changes[0].String() != want {
			return fmt.Errorf("plan is %v, %w; want %s", changes, err, want)
		}
		return nil
	}},
	{Name: "mapper: a device-mapper disk is partitioned, mounted, unmounted and found again", Run: mapperDisk},
	{Name: "hot-plug: a disk is found when the kernel reports it", Run: func(ctx context.Context) error {
		found := make(chan error, 1)
		go func() { found <- find(ctx, "virtio", device.Hint{CID: "vol-late", Path: "/dev/sdq"}, vmLate) }()
		testvm.Ask("late")
		return <-found
	}},
	{Name: "hot-plug: a disk is unplugged while it is mounted, and plugged in again", Run: unplugged},
	{Name: "resize: a mounted ext4 follows its disk without being asked", Run: func(ctx context.Context) error {
		d := guestDisks("vol-data")
		if err := d.Persistent.Mount(ctx, "vol-data"); err != nil {
			return err
		}
		if err := os.WriteFile("/var/vcap/store/file", []byte("precious"), 0o600); err != nil {
			return err
		}
		watching, stop := context.WithCancel(ctx)
		defer stop()
		ended := make(chan error, 1)
		go func() { ended <- d.Persistent.WatchSizes(watching) }()
		time.Sleep(200 * time.Millisecond) // so that it has seen the old size
		testvm.Ask("grow")
		var st unix.Statfs_t
		for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
			if err := unix.Statfs("/var/vcap/store", &st); err != nil {
				return err
			}
			if int64(st.Blocks)*st.Bsize > vmGrown*8/10 {
				break
			}
			if time.Now().After(end) {
				return fmt.Errorf("the file system still has %d MiB", int64(st.Blocks)*st.Bsize>>20)
			}
		}
		stop()
		data, err := os.ReadFile("/var/vcap/store/file")
		if err == nil && string(data) != "precious" {
			err = fmt.Errorf("the file holds %q", data)
		}
		return errors.Join(err, <-ended)
	}},
}

// unplugged removes the mounted disk vol-late and plugs it in again. A new agent lists it, and unmount_disk removes its
// remains.
func unplugged(ctx context.Context) error {
	d := guestDisks("vol-late")
	if err := d.Persistent.Mount(ctx, "vol-late"); err != nil {
		return err
	}
	if err := os.WriteFile("/var/vcap/store/file", []byte("precious"), 0o600); err != nil {
		return err
	}
	unix.Sync()
	store, _, err := mount.At("/var/vcap/store")
	if err != nil {
		return err
	}
	testvm.Ask("unplug")
	for {
		if _, err := blkdev.Lookup("/sys", store.Number); err != nil {
			break
		}
		if err := context.Cause(ctx); err != nil {
			return fmt.Errorf("the disk is still there: %w", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	testvm.Ask("again")
	if err := find(ctx, "virtio", device.Hint{CID: "vol-late", Path: "/dev/sdq"}, vmLate); err != nil {
		return err
	}
	d = guestDisks("vol-late")
	if err := d.Persistent.Mount(ctx, "vol-late"); err == nil ||
		!strings.Contains(err.Error(), "run unmount_disk vol-late first") {
		return fmt.Errorf("mount_disk = %w", err)
	}
	if list, err := d.Persistent.List(ctx); err != nil || len(list) != 1 {
		return fmt.Errorf("list_disk = %q, %w", list, err)
	}
	if message, err := d.Persistent.Unmount(ctx, "vol-late"); err != nil || message != "Unmounted partition of vol-late" {
		return fmt.Errorf("unmount_disk = %q, %w", message, err)
	}
	if err := d.Persistent.Mount(ctx, "vol-late"); err != nil {
		return err
	}
	data, err := os.ReadFile("/var/vcap/store/file")
	if err == nil && string(data) != "precious" {
		err = fmt.Errorf("the file holds %q", data)
	}
	_, unmountErr := d.Persistent.Unmount(ctx, "vol-late")
	return errors.Join(err, unmountErr)
}
