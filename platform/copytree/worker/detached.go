package worker

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// openDetached opens a directory through a detached clone of its mount, which is unmounted with the last descriptor. It
// shows files that are hidden by other mounts inside the tree, and no process can mount anything into it. Devices
// cannot be opened there, and access times are not updated.
func openDetached(dir string, attributes uint64) (*os.File, error) {
	tree, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, &os.PathError{Op: "open_tree", Path: dir, Err: err}
	}
	defer unix.Close(tree)
	change := &unix.MountAttr{Propagation: unix.MS_PRIVATE, Attr_clr: unix.MOUNT_ATTR__ATIME,
		Attr_set: attributes | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC | unix.MOUNT_ATTR_NOATIME}
	err = unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, change)
	if errors.Is(err, unix.EPERM) { // in a container, atime options may be locked
		change.Attr_clr, change.Attr_set = 0, change.Attr_set&^unix.MOUNT_ATTR_NOATIME
		err = unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, change)
	}
	if err != nil && !errors.Is(err, unix.ENOSYS) { // before Linux 5.12: keep the mount's options
		return nil, &os.PathError{Op: "mount_setattr", Path: dir, Err: err}
	}
	fd, err := unix.Openat(tree, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	return os.NewFile(uintptr(fd), dir), nil
}
