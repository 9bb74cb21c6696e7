// Package blkdev is the handful of ioctls and sysfs facts about block devices that several
// packages need: sizes, numbers, and telling the kernel about single partitions. It decides
// nothing and never reads or writes a device's content.
package blkdev

import (
	"errors"
	"fmt"
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

// Number is a device's major and minor number, by which devices are compared: paths are
// only names, and several may lead to one device.
type Number uint64

func (n Number) String() string {
	return fmt.Sprintf("%d:%d", unix.Major(uint64(n)), unix.Minor(uint64(n)))
}

// NumberOf follows links and returns the number of the block device at path.
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

// Size is the length in bytes of a block device or of an image file.
func Size(f *os.File) (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if info.Mode().IsRegular() {
		return info.Size(), nil
	}
	var size uint64
	if err := ioctl(f, unix.BLKGETSIZE64, unsafe.Pointer(&size)); err != nil {
		return 0, fmt.Errorf("size of %s: %w", f.Name(), err)
	}
	return int64(size), nil
}

// SectorSize is the unit in which a partition table counts; 512 for image files.
func SectorSize(f *os.File) (int, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if info.Mode().IsRegular() {
		return 512, nil
	}
	n, err := unix.IoctlGetInt(int(f.Fd()), unix.BLKSSZGET)
	if err != nil {
		return 0, fmt.Errorf("sector size of %s: %w", f.Name(), err)
	}
	return n, nil
}

// AddPartition tells the kernel of partition n, start and length in bytes. It works on a busy
// disk and without the kernel having a parser for the table.
func AddPartition(f *os.File, n int, start, length int64) error {
	return blkpg(f, unix.BLKPG_ADD_PARTITION, n, start, length)
}

// ResizePartition tells the kernel of partition n's new length, also while it is mounted.
func ResizePartition(f *os.File, n int, start, length int64) error {
	return blkpg(f, unix.BLKPG_RESIZE_PARTITION, n, start, length)
}

// DeletePartition makes the kernel forget partition n; it fails with EBUSY when it is in use.
func DeletePartition(f *os.File, n int) error {
	return blkpg(f, unix.BLKPG_DEL_PARTITION, n, 0, 0)
}

func blkpg(f *os.File, op int32, n int, start, length int64) error {
	part := unix.BlkpgPartition{Start: start, Length: length, Pno: int32(n)}
	arg := unix.BlkpgIoctlArg{Op: op, Datalen: int32(unsafe.Sizeof(part)), Data: (*byte)(unsafe.Pointer(&part))}
	return ioctl(f, unix.BLKPG, unsafe.Pointer(&arg))
}

func ioctl(f *os.File, request uintptr, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}

// ReadOnly reports whether a block device cannot be written. An image file can.
func ReadOnly(f *os.File) bool {
	readOnly, err := unix.IoctlGetInt(int(f.Fd()), unix.BLKROGET)
	return err == nil && readOnly != 0
}

// Info describes a block device as sysfs does.
type Info struct {
	Name      string // the kernel's name, such as vdb or vdb1
	Dir       string // the resolved directory below /sys/devices
	Partition int    // its number, or 0 for a whole disk
	Disk      string // for a partition, the kernel's name of the disk
	Start     int64  // bytes
	Size      int64  // bytes
	Serial    string
	WWID      string   // as the kernel writes it: naa.…, eui.…, t10.…
	Holders   []string // devices built upon this one: dm, md, bcache
}

// Lookup reads sysfs for a device number. sysRoot is normally "/sys".
func Lookup(sysRoot string, n Number) (Info, error) {
	return Read(filepath.Join(sysRoot, "dev", "block", n.String()))
}

// Partitions lists the partitions of a disk that the kernel knows.
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

// Read reads a directory of sysfs that is, or leads to, one of a device.
func Read(link string) (Info, error) {
	dir, err := filepath.EvalSymlinks(link)
	if err != nil {
		return Info{}, err
	}
	info := Info{Name: strings.ReplaceAll(filepath.Base(dir), "!", "/"), Dir: dir, Partition: int(number(dir, "partition")),
		Start: number(dir, "start") * 512, Size: number(dir, "size") * 512}
	if info.Partition > 0 {
		info.Disk = strings.ReplaceAll(filepath.Base(filepath.Dir(dir)), "!", "/")
	}
	for _, name := range []string{"serial", "device/serial"} {
		if s := strings.TrimSpace(text(dir, name)); s != "" && info.Serial == "" {
			info.Serial = s
		}
	}
	for _, name := range []string{"wwid", "device/wwid"} {
		if s := text(dir, name); s != "" && info.WWID == "" {
			info.WWID = s
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

// edge is the length of the areas at a device's start and end that hold most signatures.
const edge = 512 << 10

// Prefetch starts readahead (posix_fadvise) of both ends of a device, so that a probe does not wait for
// each read. It is only advice to the kernel.
func Prefetch(f *os.File, size int64) {
	_ = unix.Fadvise(int(f.Fd()), 0, edge, unix.FADV_WILLNEED)
	_ = unix.Fadvise(int(f.Fd()), max(size-edge, 0), edge, unix.FADV_WILLNEED)
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_RANDOM)
}
