package disk

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// deletePartition removes a partition from the kernel's table, but not from the table on the disk.
func deletePartition(device *os.File, number int) error {
	partition := unix.BlkpgPartition{Pno: int32(number)}
	arg := unix.BlkpgIoctlArg{Op: unix.BLKPG_DEL_PARTITION, Datalen: int32(unsafe.Sizeof(partition)),
		Data: (*byte)(unsafe.Pointer(&partition))}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, device.Fd(), unix.BLKPG, uintptr(unsafe.Pointer(&arg)))
	if errno != 0 {
		return errno
	}
	return nil
}
