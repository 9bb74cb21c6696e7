package filesystem

import (
	"os"

	"golang.org/x/sys/unix"
)

// mountDetached mounts a device read-only without attaching it to a path, and returns its root directory. fsmount(2)
// puts the mount in an anonymous namespace, and closing the descriptor unmounts it. flags are mount options, such as
// noload for ext4, whose journal is replayed otherwise.
func mountDetached(device, driver string, flags ...string) (*os.File, error) {
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
