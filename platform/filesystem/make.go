package filesystem

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"cambium/internal/blkdev"
	"cambium/internal/command"
)

// Make creates an ext4 or xfs on the device. mkfs is told to ask nothing, because the caller
// has proven that the device may be overwritten.
func Make(ctx context.Context, device string, kind Kind) error {
	var c command.Cmd
	switch kind {
	case Ext4:
		c = command.Cmd{Name: "mkfs.ext4", Args: []string{"-q", "-F", "-t", "ext4", "-j"}}
		if _, err := os.Stat("/sys/fs/ext4/features/lazy_itable_init"); err == nil {
			c.Args = append(c.Args, "-E", "lazy_itable_init=1")
		}
	case XFS:
		c = command.Cmd{Name: "mkfs.xfs", Args: []string{"-q", "-f"}}
	default:
		return fmt.Errorf("make file system on %s: %q is not supported, only ext4 and xfs", device, kind)
	}
	c.Args = append(c.Args, device)
	if _, err := command.Run(ctx, c); err != nil {
		return fmt.Errorf("make %s on %s: %w", kind, device, err)
	}
	return nil
}

// Check lets the file system's own program repair what it can repair without a decision; more
// than that is an error, since the next step is the operator's.
func Check(ctx context.Context, device string, kind Kind) error {
	if kind != Ext4 {
		return nil // xfs recovers at mount and refuses by itself when it cannot
	}
	_, err := command.Run(ctx, command.Cmd{Name: "e2fsck", Args: []string{"-p", "-f", device}})
	var exit *command.ExitError
	if errors.As(err, &exit) && exit.Signal == 0 && exit.ExitCode == 1 {
		return nil // errors were there and are corrected
	}
	if err != nil {
		return fmt.Errorf("check %s: the file system has errors that need a decision, run e2fsck -f on it by hand: %w", device, err)
	}
	return nil
}

// Sound reports whether an unmounted ext4 is consistent, without changing it.
func Sound(ctx context.Context, device string) (bool, error) {
	_, err := command.Run(ctx, command.Cmd{Name: "e2fsck", Args: []string{"-n", "-f", device}})
	var exit *command.ExitError
	if errors.As(err, &exit) && exit.Signal == 0 && ctx.Err() == nil {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("check %s: %w", device, err)
	}
	return true, nil
}

// GrowUnmounted extends an ext4 that is not mounted to the size of its device, for where the
// kernel does not let us do it while it is mounted. It is checked first, as it must be.
func GrowUnmounted(ctx context.Context, device string) error {
	if err := Check(ctx, device, Ext4); err != nil {
		return err
	}
	if _, err := command.Run(ctx, command.Cmd{Name: "resize2fs", Args: []string{device}}); err != nil {
		return fmt.Errorf("grow ext4 on %s: %w", device, err)
	}
	return nil
}

const (
	ext4ResizeFS   = 0x40086610 // EXT4_IOC_RESIZE_FS
	xfsGeometryV1  = 0x80705864 // XFS_IOC_FSGEOMETRY_V1
	xfsGrowFSData  = 0x4010586e // XFS_IOC_FSGROWFSDATA
	smallestGrowth = 1 << 20
)

// Grow extends the file system mounted on dir to the size of its device, through the kernel
// and while it is in use. It reports whether it changed anything; shrinking never happens.
func Grow(device, dir string, kind Kind) (bool, error) {
	f, err := os.Open(device)
	if err != nil {
		return false, fmt.Errorf("grow: %w", err)
	}
	defer f.Close()
	size, err := blkdev.Size(f)
	if err != nil {
		return false, fmt.Errorf("grow: %w", err)
	}
	d, err := os.Open(dir)
	if err != nil {
		return false, fmt.Errorf("grow: %w", err)
	}
	defer d.Close()
	switch kind {
	case Ext4:
		return growExt4(f, d, size)
	case XFS:
		return growXFS(d, size)
	}
	return false, fmt.Errorf("grow %s: %q cannot be grown", device, kind)
}

func growExt4(device, dir *os.File, size int64) (bool, error) {
	have, err := superblock(device)
	if err != nil {
		return false, fmt.Errorf("grow %s: %w", device.Name(), err)
	}
	if have.Kind != Ext4 || have.Bytes == 0 {
		return false, fmt.Errorf("grow %s: no ext4 superblock", device.Name())
	}
	if size-have.Bytes < smallestGrowth {
		return false, nil
	}
	var sfs unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &sfs); err != nil {
		return false, fmt.Errorf("grow %s: %w", device.Name(), err)
	}
	blocks := uint64(size) / uint64(sfs.Bsize)
	if err := ioctl(dir, ext4ResizeFS, unsafe.Pointer(&blocks)); err != nil {
		return false, fmt.Errorf("grow ext4 on %s from %d to %d bytes: %w", device.Name(), have.Bytes, size, err)
	}
	now, err := superblock(device)
	return err == nil && now.Bytes > have.Bytes, err
}

// superblock reads that of an ext4 and nothing else: what is mounted as one is one.
func superblock(device *os.File) (c Content, err error) {
	var magic [2]byte
	if err := ReadFull(device, magic[:], 1024+56); err != nil || string(magic[:]) != "\x53\xef" {
		return Content{Kind: Unknown}, err
	}
	c.Kind = extFamily
	return c, c.readExt(device)
}

func growXFS(dir *os.File, size int64) (bool, error) {
	var geometry [112]byte
	if err := ioctl(dir, xfsGeometryV1, unsafe.Pointer(&geometry)); err != nil {
		return false, fmt.Errorf("geometry of xfs on %s: %w", dir.Name(), err)
	}
	block := binary.NativeEndian.Uint32(geometry[0:])
	percent := binary.NativeEndian.Uint32(geometry[28:])
	have := binary.NativeEndian.Uint64(geometry[32:])
	if block == 0 {
		return false, fmt.Errorf("geometry of xfs on %s: no block size", dir.Name())
	}
	want := uint64(size) / uint64(block)
	if want <= have || (want-have)*uint64(block) < smallestGrowth {
		return false, nil
	}
	var request [16]byte
	binary.NativeEndian.PutUint64(request[0:], want)
	binary.NativeEndian.PutUint32(request[8:], percent)
	if err := ioctl(dir, xfsGrowFSData, unsafe.Pointer(&request)); err != nil {
		return false, fmt.Errorf("grow xfs on %s from %d to %d blocks: %w", dir.Name(), have, want, err)
	}
	return true, nil
}

func ioctl(f *os.File, request uintptr, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}
