package apart

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"cambium/internal/thread"
)

// openPrivately opens both directories through bind mounts of their own, in a mount namespace
// that ends with the call; the descriptors keep the mounts. A bind mount without MS_REC shows what
// other mounts cover inside a tree, and nothing that any process mounts can appear in it. The source cannot
// be written to there, no device of either can be opened, and reading leaves no access times.
func openPrivately(from, to string) (source, target *os.File, err error) {
	err = thread.Run(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("mount namespace: %w", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("make mounts private: %w", err)
		}
		var err error
		if source, err = openBound(from, unix.MS_RDONLY); err != nil {
			return err
		}
		if target, err = openBound(to, 0); err != nil {
			return errors.Join(err, source.Close())
		}
		return nil
	})
	return source, target, err
}

// openBound binds a directory over itself and opens that.
func openBound(dir string, flags uintptr) (*os.File, error) {
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		return nil, &os.PathError{Op: "bind", Path: dir, Err: err}
	}
	flags |= unix.MS_REMOUNT | unix.MS_BIND | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	err := unix.Mount("", dir, "", flags|unix.MS_NOATIME, "")
	if errors.Is(err, unix.EPERM) { // in a container, access times may be locked as they are
		err = unix.Mount("", dir, "", flags, "")
	}
	if err != nil {
		return nil, &os.PathError{Op: "remount", Path: dir, Err: err}
	}
	return os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
}
