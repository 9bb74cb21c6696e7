package filesystem

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"cambium/internal/blkdev"
	"cambium/internal/command"
	"cambium/internal/managedfs"
	"cambium/platform/filesystem/probe"
)

// Make creates a file system on a device, without asking. The caller must have proven that the device may be
// overwritten.
func Make(ctx context.Context, device string, kind probe.Kind) error {
	f, ok := managedfs.Find(string(kind))
	if !ok {
		return fmt.Errorf("make file system on %s: %q is not supported", device, kind)
	}
	if err := runOn(ctx, f.Make, device); err != nil {
		return fmt.Errorf("make %s on %s: %w", kind, device, err)
	}
	return nil
}

// runOn runs a program with a device as its last argument.
func runOn(ctx context.Context, program []string, device string) error {
	args := append(slices.Clone(program[1:]), device)
	_, err := command.Run(ctx, command.Cmd{Name: program[0], Args: args})
	return err
}

// Check repairs a file system with its own program: errors that need no decision, or all errors if all is set.
// Remaining errors need an operator. percent is called with the progress if the program reports it.
func Check(ctx context.Context, device string, kind probe.Kind, all bool, percent func(int)) error {
	m := managedKinds[kind]
	if m.repair == nil {
		return nil // xfs replays its log when mounted, or the mount fails
	}
	return m.repair(ctx, device, all, percent)
}

func repairExt4(ctx context.Context, device string, all bool, percent func(int)) error {
	// Progress goes to descriptor 1. Messages, which errors quote, go to stderr.
	check := func(answers string) error {
		_, err := command.Run(ctx, command.Cmd{Name: "e2fsck", Args: []string{answers, "-f", "-C", "1", device},
			Stdout: &passes{percent: percent}})
		var exit *command.ExitError
		if errors.As(err, &exit) && exit.Signal == 0 && exit.ExitCode == 1 {
			return nil // errors were there and are corrected
		}
		return err
	}
	err := check("-p")
	if err != nil && all && ctx.Err() == nil {
		err = check("-y")
	}
	if err != nil {
		f, _ := managedfs.Find(string(probe.Ext4))
		return fmt.Errorf("check %s: the file system has errors that need a decision: %w. %s",
			device, err, f.DamageAdvice(device))
	}
	return nil
}

// IsComplete reports whether an unmounted file system was created completely. c is the result of probing it. One that
// was ever mounted counts as complete, since it may contain files.
func IsComplete(ctx context.Context, device string, c probe.Content) (bool, error) {
	m, ok := managedKinds[c.Kind]
	if !ok {
		return true, nil
	}
	return m.finished(ctx, device, c)
}

func finishedExt4(ctx context.Context, device string, c probe.Content) (bool, error) {
	if !c.NeverMounted {
		return true, nil
	}
	return IsConsistent(ctx, device, probe.Ext4)
}

func finishedXFS(_ context.Context, _ string, c probe.Content) (bool, error) {
	return !c.Incomplete, nil
}

// IsConsistent reports whether an unmounted file system is consistent, without changing it.
func IsConsistent(ctx context.Context, device string, kind probe.Kind) (bool, error) {
	f, ok := managedfs.Find(string(kind))
	if !ok {
		return false, fmt.Errorf("check %s: %q is not supported", device, kind)
	}
	err := runOn(ctx, f.Check, device)
	var exit *command.ExitError
	if errors.As(err, &exit) && exit.Signal == 0 && ctx.Err() == nil {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("check %s: %w", device, err)
	}
	return true, nil
}

// List returns the names in the root directory of an unmounted file system, without writing to the device. Names of
// directories end with a slash. The files in lost+found, which fsck puts there, are included.
func List(device string, kind probe.Kind) (names []string, err error) {
	err = WithRoot(device, kind, func(top *os.Root) (err error) {
		if names, err = list(top, "."); err != nil || !slices.Contains(names, "lost+found/") {
			return err
		}
		found, err := list(top, "lost+found")
		for _, name := range found {
			names = append(names, "lost+found/"+name)
		}
		return err
	})
	return names, err
}

func list(top *os.Root, path string) (names []string, err error) {
	dir, err := top.Open(path)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	entries, err := dir.ReadDir(maxListed)
	if err != nil && !errors.Is(err, io.EOF) { // of an empty directory
		return nil, err
	}
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name()+"/")
		} else {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// maxListed bounds the number of entries read from a directory.
const maxListed = 1000

// GrowUnmounted grows an unmounted file system to the size of its device, for sandboxes where the kernel does not
// permit it while mounted.
func GrowUnmounted(ctx context.Context, device string, kind probe.Kind) error {
	m, ok := managedKinds[kind]
	if !ok || m.growUnmounted == nil {
		return fmt.Errorf("grow %s: %s can be grown only while it is mounted", device, kind)
	}
	return m.growUnmounted(ctx, device)
}

// resize2fs requires that the file system was checked.
func growUnmountedExt4(ctx context.Context, device string) error {
	if err := repairExt4(ctx, device, false, func(int) {}); err != nil {
		return err
	}
	if err := runOn(ctx, []string{"resize2fs"}, device); err != nil {
		return fmt.Errorf("grow ext4 on %s: %w", device, err)
	}
	return nil
}

const (
	ext4ResizeFS  = 0x40086610 // EXT4_IOC_RESIZE_FS
	xfsGeometryV1 = 0x80705864 // XFS_IOC_FSGEOMETRY_V1
	xfsGrowFSData = 0x4010586e // XFS_IOC_FSGROWFSDATA
)

// Growable reports whether the file system mounted on dir is smaller than its device.
func Growable(device, dir string, kind probe.Kind) (bool, error) {
	length, size, err := Lengths(device, dir, kind)
	return err == nil && probe.WorthGrowing(length, size), err
}

// Lengths returns the size of the file system mounted on dir, or 0 if its kind cannot be grown, and the size of its
// device.
func Lengths(device, dir string, kind probe.Kind) (length, size int64, err error) {
	err = withMounted(device, dir, func(f, d *os.File, bytes int64) (err error) {
		size = bytes
		if m, ok := managedKinds[kind]; ok {
			length, err = m.length(f, d)
		}
		return err
	})
	return length, size, err
}

// Grow grows the mounted file system to the size of its device while it is in use. It reports whether the file system
// became larger. It never shrinks it.
func Grow(device, dir string, kind probe.Kind) (grown bool, err error) {
	m, ok := managedKinds[kind]
	if !ok {
		return false, fmt.Errorf("grow %s: %q cannot be grown", device, kind)
	}
	err = withMounted(device, dir, func(f, d *os.File, size int64) error {
		before, err := m.length(f, d)
		// Growing an xfs to its own size completes a growth that a power cut has interrupted: the kernel writes the
		// copies of the superblock last.
		if err != nil || kind != probe.XFS && !probe.WorthGrowing(before, size) {
			return err
		}
		if err := m.grow(d, size); err != nil {
			return fmt.Errorf("from %d to %d bytes: %w", before, size, err)
		}
		after, err := m.length(f, d)
		grown = after > before
		return err
	})
	if err != nil {
		err = fmt.Errorf("grow %s on %s: %w", kind, device, err)
	}
	return grown, err
}

// withMounted calls do with an open device and the open directory on which it is mounted.
func withMounted(device, dir string, do func(device, dir *os.File, size int64) error) error {
	f, err := os.Open(device)
	if err != nil {
		return err
	}
	defer f.Close()
	size, err := blkdev.Size(f)
	if err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return do(f, d, size)
}

func lengthExt4(device, _ *os.File) (int64, error) {
	have, err := probe.ReadExt(device)
	if err == nil && (have.Kind != probe.Ext4 || have.Bytes == 0) {
		err = errors.New("no ext4 superblock")
	}
	return have.Bytes, err
}

func growExt4(dir *os.File, length int64) error {
	var sfs unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &sfs); err != nil {
		return err
	}
	blocks := uint64(length) / uint64(sfs.Bsize)
	return blkdev.Ioctl(dir, ext4ResizeFS, unsafe.Pointer(&blocks))
}

// geometryXFS returns the block size, the number of blocks, and the maximum percentage of inodes.
func geometryXFS(dir *os.File) (block uint32, blocks uint64, percent uint32, err error) {
	var geometry [112]byte
	if err := blkdev.Ioctl(dir, xfsGeometryV1, unsafe.Pointer(&geometry)); err != nil {
		return 0, 0, 0, fmt.Errorf("geometry: %w", err)
	}
	if block = binary.NativeEndian.Uint32(geometry[0:]); block == 0 {
		return 0, 0, 0, errors.New("geometry: no block size")
	}
	return block, binary.NativeEndian.Uint64(geometry[32:]), binary.NativeEndian.Uint32(geometry[28:]), nil
}

func lengthXFS(_, dir *os.File) (int64, error) {
	block, blocks, _, err := geometryXFS(dir)
	return int64(block) * int64(blocks), err
}

func growXFS(dir *os.File, length int64) error {
	block, _, percent, err := geometryXFS(dir)
	if err != nil {
		return err
	}
	var request [16]byte
	binary.NativeEndian.PutUint64(request[0:], uint64(length)/uint64(block))
	binary.NativeEndian.PutUint32(request[8:], percent)
	return blkdev.Ioctl(dir, xfsGrowFSData, unsafe.Pointer(&request))
}
