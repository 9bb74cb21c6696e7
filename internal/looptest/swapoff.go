package looptest

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// SwapOff stops the use of a swap device.
func SwapOff(device string) error {
	path, err := unix.BytePtrFromString(device)
	if err != nil {
		return err
	}
	if _, _, errno := unix.Syscall(unix.SYS_SWAPOFF, uintptr(unsafe.Pointer(path)), 0, 0); errno != 0 {
		return fmt.Errorf("swapoff %s: %w", device, errno)
	}
	return nil
}
