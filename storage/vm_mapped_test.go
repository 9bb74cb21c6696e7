//go:build vm && !root

package storage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"cambium/platform/device"
	"cambium/platform/disk"
	"cambium/platform/mount"
	"cambium/settings"
)

// The device-mapper disk that the guest creates, as multipath would.
const (
	mapperPath = "/dev/mapper/cambium"
	mapperPart = "/dev/mapper/cambium-part1"
	mapperLink = "/dev/disk/by-id/dm-name-cambium"
)

// mapperTool runs a device-mapper tool. It creates device nodes itself, since udev is not running in the guest.
func mapperTool(name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "DM_DISABLE_UDEV=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %v: %w: %s", name, args, err, out)
	}
	return nil
}

// kpartx does the work of udev's rules after a table was written.
func kpartx(ctx context.Context) error {
	for ctx.Err() == nil {
		if s, err := disk.Inspect(mapperPath); err == nil && len(s.Table.Partitions) == 1 && released(mapperPath) {
			return mapperTool("kpartx", "-a", "-p", "-part", mapperPath)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return ctx.Err()
}

// released reports whether the writer of the table has closed the disk, which it opens exclusively.
func released(path string) bool {
	f, err := os.OpenFile(path, os.O_RDONLY|os.O_EXCL, 0)
	return err == nil && f.Close() == nil
}

// mapperDisk takes a persistent disk on a device-mapper device through its whole life.
func mapperDisk(ctx context.Context) error {
	r, err := device.New(device.Options{Type: "virtio"}, guestLog())
	if err != nil {
		return err
	}
	below, err := r.Resolve(ctx, device.Hint{CID: "vol-below"})
	if err != nil {
		return err
	}
	if err := mapperTool("dmsetup", "create", "cambium", "--table",
		fmt.Sprintf("0 %d linear %s 0", vmMapped/512, below.Path)); err != nil {
		return err
	}
	// Whatever name a hint has for it, it is the one that its partitions are named after.
	if err := errors.Join(os.MkdirAll("/dev/disk/by-id", 0o755), os.Symlink("../../dm-0", mapperLink)); err != nil {
		return err
	}
	for _, name := range []string{mapperPath, "/dev/dm-0", mapperLink} {
		d, err := r.Resolve(ctx, device.Hint{Path: name})
		if err != nil || d.Path != mapperPath {
			return fmt.Errorf("%s is %+v, %w; want %s", name, d, err, mapperPath)
		}
	}

	d := guestDisks()
	d.Persistent.Known.(*records).disks["vol-above"] = settings.PersistentDisk{CID: "vol-above",
		Hint: settings.DiskHint{Path: mapperLink}}
	made := make(chan error, 1)
	watching, stop := context.WithCancel(ctx)
	go func() { made <- kpartx(watching) }()
	err = d.Persistent.Mount(ctx, "vol-above")
	stop()
	if err := errors.Join(err, <-made); err != nil {
		return err
	}
	if err := wantMapped(ctx, d, mapperPart); err != nil {
		return err
	}
	if err := os.WriteFile(d.Persistent.Machine.Dirs.Store()+"/file", []byte("precious"), 0o600); err != nil {
		return err
	}
	// The disk below belongs to the device above it.
	_, err = d.Ephemeral.Setup(ctx, &settings.DiskHint{Path: below.Path}, nil, "agent-1", true)
	if err == nil || !strings.Contains(err.Error(), "not touched") || !strings.Contains(err.Error(), "in use by dm-0") {
		return fmt.Errorf("the disk below as ephemeral disk: %w; want a refusal that names its holder", err)
	}
	if message, err := d.Persistent.Unmount(ctx, "vol-above"); err != nil ||
		message != "Unmounted partition of vol-above" {
		return fmt.Errorf("unmount: %q, %w", message, err)
	}
	if err := wantMapped(ctx, d, ""); err != nil {
		return err
	}
	// After a restart, and this time nothing is made.
	if err := errors.Join(boot(d), wantMapped(ctx, d, mapperPart)); err != nil {
		return err
	}
	if data, err := os.ReadFile(d.Persistent.Machine.Dirs.Store() + "/file"); err != nil || string(data) != "precious" {
		return fmt.Errorf("the file holds %q, %w", data, err)
	}
	_, err = d.Persistent.Unmount(ctx, "vol-above")
	// That both go shows that nothing holds them any more.
	return errors.Join(err, mapperTool("dmsetup", "remove", "cambium-part1"), mapperTool("dmsetup", "remove", "cambium"))
}

// wantMapped checks the mount on the store, and that the list agrees.
func wantMapped(ctx context.Context, d Disks, part string) error {
	store, there, err := mount.At(d.Persistent.Machine.Dirs.Store())
	if err != nil || store.Source != part || there != (part != "") {
		return fmt.Errorf("store is %q, %w; want %q", store.Source, err, part)
	}
	list, err := d.Persistent.List(ctx)
	if err != nil || strings.Join(list, " ") != map[bool]string{true: "vol-above"}[there] {
		return fmt.Errorf("list is %q, %w", list, err)
	}
	return nil
}
