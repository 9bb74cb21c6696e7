// Package detached mounts a file system without attaching it to a path, in order to inspect its content: fsmount(2)
// puts it into an anonymous mount namespace, and it is gone when its descriptor is closed, at the latest when the
// process ends. It needs Linux 5.6.
package detached

import (
	"os"

	"golang.org/x/sys/unix"
)

// Mount has the kernel's driver read a device and returns the root directory. The mount is read-only; flags are further options of
// the driver, such as noload for ext4, whose journal is replayed otherwise.
func Mount(device, driver string, flags ...string) (*os.File, error) {
	config, err := unix.Fsopen(driver, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, err
	}
	defer unix.Close(config)
	if err := unix.FsconfigSetString(config, "source", device); err != nil {
		return nil, err
	}
	for _, flag := range append([]string{"ro"}, flags...) {
		if err := unix.FsconfigSetFlag(config, flag); err != nil {
			return nil, err
		}
	}
	if err := unix.FsconfigCreate(config); err != nil {
		return nil, err
	}
	const attributes = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC
	root, err := unix.Fsmount(config, unix.FSMOUNT_CLOEXEC, attributes)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(root), device), nil
}
