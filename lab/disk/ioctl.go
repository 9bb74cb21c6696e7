package disk

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// deletePartition makes the kernel forget a partition; the table on the disk stays.
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
