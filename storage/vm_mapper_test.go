//go:build vm && !root

package storage

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"cambium/internal/vcap"
	"cambium/platform/device"
	"cambium/platform/mount"
	"cambium/settings"
)

// Requests of the device mapper, and the lengths of what they take.
const (
	mapperCreate = 0xc138fd03
	mapperResume = 0xc138fd06
	mapperLoad   = 0xc138fd09
	mapperHead   = 312
	mapperTarget = 40
)

// mapping is a device of the device mapper over another, whose sectors can become unreadable.
type mapping struct {
	name, below string
	start, size int64 // sectors
}

// ask sends one request and returns the device's number.
func (m mapping) ask(request uintptr, targets int, tail []byte) (uint64, error) {
	b := make([]byte, mapperHead, mapperHead+len(tail))
	for at, value := range map[int]uint32{0: 4, 12: uint32(mapperHead + len(tail)), 16: mapperHead, 20: uint32(targets)} {
		binary.NativeEndian.PutUint32(b[at:], value)
	}
	copy(b[48:], m.name)
	b = append(b, tail...)
	control, err := os.OpenFile("/dev/mapper/control", os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer control.Close()
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, control.Fd(), request, uintptr(unsafe.Pointer(&b[0]))); errno != 0 {
		return 0, fmt.Errorf("device mapper, request %#x for %s: %w", request, m.name, errno)
	}
	return binary.NativeEndian.Uint64(b[40:]), nil
}

// create makes the device and its node.
func (m mapping) create() error {
	number, err := m.ask(mapperCreate, 0, nil)
	if err != nil {
		return err
	}
	return errors.Join(unix.Mknod("/dev/mapper/"+m.name, unix.S_IFBLK|0o600, int(number)), m.damage(0, 0))
}

// damage makes some sectors unreadable, and all others good again.
func (m mapping) damage(from, count int64) error {
	var tail bytes.Buffer
	targets := 0
	add := func(start, length int64, kind, parameters string) {
		if length == 0 {
			return
		}
		targets++
		spec := make([]byte, (mapperTarget+len(parameters)+8)&^7)
		binary.NativeEndian.PutUint64(spec, uint64(start))
		binary.NativeEndian.PutUint64(spec[8:], uint64(length))
		binary.NativeEndian.PutUint32(spec[20:], uint32(len(spec)))
		copy(spec[24:], kind)
		copy(spec[mapperTarget:], parameters)
		tail.Write(spec)
	}
	linear := func(start, length int64) {
		add(start, length, "linear", fmt.Sprintf("%s %d", m.below, m.start+start))
	}
	linear(0, from)
	add(from, count, "error", "")
	linear(from+count, m.size-from-count)
	if _, err := m.ask(mapperLoad, targets, tail.Bytes()); err != nil {
		return err
	}
	_, err := m.ask(mapperResume, 0, nil)
	return err
}

// blockOf returns the sectors of a file's block.
func blockOf(path string, block int32) (from, count int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return 0, 0, err
	}
	const fibmap = 1
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), fibmap, uintptr(unsafe.Pointer(&block))); errno != 0 || block == 0 {
		return 0, 0, fmt.Errorf("block of %s: %w", path, errno)
	}
	return int64(block) * st.Bsize / 512, st.Bsize / 512, nil
}

// unreadable migrates from a disk with unreadable sectors, in a small file and then in a large one, and at
// last from the same disk when it can be read again.
func unreadable(ctx context.Context) error {
	virtio, err := device.New(device.Options{Type: "virtio"}, guestLog())
	if err != nil {
		return err
	}
	below, err := virtio.Resolve(ctx, device.Hint{CID: "vol-failing"})
	if err != nil {
		return err
	}
	fresh, err := virtio.Resolve(ctx, device.Hint{CID: "vol-healthy"})
	if err != nil {
		return err
	}
	disk := mapping{name: "failing", below: below.Path, size: vmFailing / 512}
	part := mapping{name: "failing-part1", below: below.Path, start: 2048, size: vmFailing/512 - 4096}
	if err := errors.Join(disk.create(), part.create()); err != nil {
		return err
	}
	resolver, err := device.New(device.Options{}, guestLog())
	if err != nil {
		return err
	}
	known := &records{disks: map[string]settings.PersistentDisk{}}
	for cid, path := range map[string]string{"failing": "/dev/mapper/failing", "healthy": fresh.Path} {
		known.disks[cid] = settings.PersistentDisk{CID: cid, Hint: settings.DiskHint{Path: path}}
	}
	dirs := vcap.New("")
	d := New(Config{Dirs: dirs, Resolver: resolver, Records: known, Program: "/proc/self/exe", Log: guestLog()})
	if err := errors.Join(d.Persistent.Mount(ctx, "failing"), d.Persistent.Mount(ctx, "healthy")); err != nil {
		return err
	}
	for _, name := range []string{"d3/17", "large"} {
		path := filepath.Join(dirs.Store(), name)
		from, count, err := blockOf(path, 1)
		if err != nil {
			return err
		}
		if err := errors.Join(part.damage(from, count), os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0)); err != nil {
			return err
		}
		err = d.Migration.Migrate(ctx, "", "")
		if !errors.Is(err, unix.EIO) || !strings.Contains(err.Error(), fmt.Sprintf("%q", name)) {
			return fmt.Errorf("with an unreadable %s: %v, want an error that names it", name, err)
		}
		if e, there, err := mount.At(dirs.Store()); err != nil || !there ||
			e.Source != "/dev/mapper/failing-part1" || known.mounted != "failing" {
			return fmt.Errorf("with an unreadable %s the store is %q, %q on record (%v), want the old disk", name,
				e.Source, known.mounted, err)
		}
		if err := errors.Join(os.WriteFile(filepath.Join(dirs.Store(), "while-"+filepath.Base(name)), []byte("written"), 0o600), part.damage(0, 0)); err != nil {
			return fmt.Errorf("after an unreadable %s: %w", name, err)
		}
	}
	sum, err := sumOf(dirs.Store())
	if err != nil {
		return err
	}
	if err := d.Migration.Migrate(ctx, "", ""); err != nil {
		return fmt.Errorf("when all can be read: %w", err)
	}
	if got, err := sumOf(dirs.Store()); err != nil || got != sum || known.mounted != "healthy" {
		return fmt.Errorf("%q is on record, the files are the same: %v (%v)", known.mounted, got == sum, err)
	}
	if _, err := os.Stat(filepath.Join(dirs.Store(), "while-17")); err != nil {
		return err
	}
	return mount.Unmount(ctx, dirs.Store())
}
