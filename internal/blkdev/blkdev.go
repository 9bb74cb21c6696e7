// Package blkdev has the ioctls and sysfs attributes of block devices that several packages need: sizes, numbers, and
// partitions. It makes no decisions, and does not read or write the content of a device.
package blkdev

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrNotBlock means that a path exists but is not a block device.
var ErrNotBlock = errors.New("not a block device")

// Number is the major and minor number of a device. Compare devices by it, since several paths may lead to one device.
type Number uint64

func (n Number) String() string {
	return fmt.Sprintf("%d:%d", unix.Major(uint64(n)), unix.Minor(uint64(n)))
}

// NumberOf returns the number of the block device at path. It follows links.
func NumberOf(path string) (Number, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return 0, fmt.Errorf("%s: %w", path, ErrNotBlock)
	}
	return Number(st.Rdev), nil
}

// Size returns the length of a block device or an image file in bytes.
func Size(f *os.File) (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if !info.Mode().IsRegular() && info.Mode().Type() != fs.ModeDevice {
		return 0, fmt.Errorf("%s: %w", f.Name(), ErrNotBlock)
	}
	return f.Seek(0, io.SeekEnd)
}

// SectorSize returns the unit of a device's partition table in bytes; 512 for an image file.
func SectorSize(f *os.File) (int, error) {
	n, err := unix.IoctlGetInt(int(f.Fd()), unix.BLKSSZGET)
	if errors.Is(err, unix.ENOTTY) {
		return 512, nil // an image file
	}
	if err != nil {
		return 0, fmt.Errorf("sector size of %s: %w", f.Name(), err)
	}
	return n, nil
}

// AddPartition adds partition n to the kernel's table. start and length are in bytes. It works while the disk is in
// use, and if the kernel cannot parse the table on the disk.
func AddPartition(f *os.File, n int, start, length int64) error {
	return blkpg(f, unix.BLKPG_ADD_PARTITION, n, start, length)
}

// ResizePartition changes the length of partition n in the kernel's table, even while it is mounted.
func ResizePartition(f *os.File, n int, start, length int64) error {
	return blkpg(f, unix.BLKPG_RESIZE_PARTITION, n, start, length)
}

// DeletePartition removes partition n from the kernel's table. It fails with EBUSY if the partition is in use.
func DeletePartition(f *os.File, n int) error {
	return blkpg(f, unix.BLKPG_DEL_PARTITION, n, 0, 0)
}

func blkpg(f *os.File, op int32, n int, start, length int64) error {
	part := unix.BlkpgPartition{Start: start, Length: length, Pno: int32(n)}
	arg := unix.BlkpgIoctlArg{Op: op, Datalen: int32(unsafe.Sizeof(part)), Data: (*byte)(unsafe.Pointer(&part))}
	return Ioctl(f, unix.BLKPG, unsafe.Pointer(&arg))
}

// Ioctl calls ioctl(2) with a pointer to its argument.
func Ioctl(f *os.File, request uintptr, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}

// ReadOnly reports whether a block device is read-only. It returns false for an image file.
func ReadOnly(f *os.File) bool {
	readOnly, err := unix.IoctlGetInt(int(f.Fd()), unix.BLKROGET)
	return err == nil && readOnly != 0
}

// Info describes a block device as in sysfs.
type Info struct {
	Name      string // kernel name, such as vdb or vdb1
	Dir       string // directory below /sys/devices, without links
	Partition int    // partition number, or 0 for a whole disk
	Disk      string // for a partition, the kernel name of the disk
	Start     int64  // in bytes
	Size      int64  // in bytes
	Serial    string
	Holders   []string // devices on top of this one: dm, md, bcache
}

// Lookup reads the device with a number from sysfs. sysRoot is normally "/sys".
func Lookup(sysRoot string, n Number) (Info, error) {
	return Read(filepath.Join(sysRoot, "dev", "block", n.String()))
}

// Partitions returns the partitions of a disk in the kernel's table.
func Partitions(sysRoot string, disk Number) ([]Info, error) {
	info, err := Lookup(sysRoot, disk)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(info.Dir)
	if err != nil {
		return nil, err
	}
	var all []Info
	for _, e := range entries {
		// The kernel names a partition after its disk; nothing else there is.
		if !strings.HasPrefix(e.Name(), filepath.Base(info.Dir)) {
			continue
		}
		if _, err := os.Stat(filepath.Join(info.Dir, e.Name(), "partition")); err != nil {
			continue
		}
		part, err := Read(filepath.Join(info.Dir, e.Name()))
		if err != nil {
			return nil, err
		}
		all = append(all, part)
	}
	return all, nil
}

// Read reads a device from its directory in sysfs, or from a link to it.
func Read(link string) (Info, error) {
	dir, err := filepath.EvalSymlinks(link)
	if err != nil {
		return Info{}, err
	}
	info := Info{
		Name:      strings.ReplaceAll(filepath.Base(dir), "!", "/"),
		Dir:       dir,
		Partition: int(number(dir, "partition")),
		Start:     number(dir, "start") * 512,
		Size:      number(dir, "size") * 512,
	}
	if info.Partition > 0 {
		info.Disk = strings.ReplaceAll(filepath.Base(filepath.Dir(dir)), "!", "/")
	}
	for _, name := range []string{"serial", "device/serial"} {
		if s := strings.TrimSpace(text(dir, name)); s != "" && info.Serial == "" {
			info.Serial = s
		}
	}
	if holders, err := os.ReadDir(filepath.Join(dir, "holders")); err == nil {
		for _, h := range holders {
			info.Holders = append(info.Holders, h.Name())
		}
	}
	return info, nil
}

func text(dir, name string) string {
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return "" // optional attributes
	}
	return strings.TrimSpace(string(data))
}

func number(dir, name string) int64 {
	n, err := strconv.ParseInt(text(dir, name), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// edge is the length of the areas at the start and end of a device that contain most signatures.
const edge = 512 << 10

// Prefetch starts readahead (posix_fadvise) of both ends of a device, so that a probe does not wait for each read.
func Prefetch(f *os.File, size int64) {
	_ = unix.Fadvise(int(f.Fd()), 0, edge, unix.FADV_WILLNEED)
	_ = unix.Fadvise(int(f.Fd()), max(size-edge, 0), edge, unix.FADV_WILLNEED)
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_RANDOM)
}
