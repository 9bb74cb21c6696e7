package disk

import (
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

func swapoff(path *byte) syscall.Errno {
	_, _, errno := unix.Syscall(unix.SYS_SWAPOFF, uintptr(unsafe.Pointer(path)), 0, 0)
	return errno
}

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
