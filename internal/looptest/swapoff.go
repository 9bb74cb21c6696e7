package looptest

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

func swapoff(path *byte) error {
	if _, _, errno := unix.Syscall(unix.SYS_SWAPOFF, uintptr(unsafe.Pointer(path)), 0, 0); errno != 0 {
		return errno
	}
	return nil
}
