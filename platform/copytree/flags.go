package copytree

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// The flags of chattr(1) that are copied, by the letters of lsattr(1), from linux/fs.h. Others tell
// how a file is stored, or need a project or an encryption key.
const (
	portableFlags = 0x08 | 0x10 | 0x20 | 0x40 | 0x80 // S, i, a, d, A: what xfs knows, too
	// s, u, j, t, D, T
	keptFlags = portableFlags | 0x01 | 0x02 | 0x4000 | 0x8000 | 0x10000 | 0x20000
)

// getFlags returns the kept flags of a file or directory; a file system without any has none.
func getFlags(fd int) (uint32, error) {
	flags, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
	switch {
	case errors.Is(err, unix.ENOTTY), errors.Is(err, unix.ENOTSUP), errors.Is(err, unix.ENOSYS):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("flags: %w", err)
	}
	return flags & keptFlags, nil
}

// setFlags replaces the kept flags and leaves the others.
func setFlags(fd int, want uint32) error {
	flags, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, int(flags&^keptFlags|want))
	}
	if err != nil {
		return fmt.Errorf("flags: %w", err)
	}
	return nil
}

// clearFlags allows to change a file that was there before, or complete when the copy was interrupted.
func clearFlags(fd int) error {
	flags, err := getFlags(fd)
	if err != nil || flags == 0 {
		return err
	}
	return setFlags(fd, 0)
}

// copyFlags sets the flags of the source, of a file system that does not know all of them those that it does.
func copyFlags(target int, want uint32) error {
	if want == 0 {
		return nil
	}
	err := setFlags(target, want)
	if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.ENOTTY) {
		if want &= portableFlags; want == 0 {
			return nil
		}
		err = setFlags(target, want)
	}
	if err != nil {
		return err
	}
	if have, err := getFlags(target); err != nil || have&want&portableFlags != want&portableFlags {
		return errors.Join(err, fmt.Errorf("flags are %#x, want %#x", have, want))
	}
	return nil
}

// attributes are kept for Complete, which sets them on the top of the target when the source is not open any more.
type attributes struct {
	st     unix.Stat_t
	xattrs map[string]string
	flags  uint32
}

// attributesOf reads those of an open directory.
func attributesOf(fd int) (a attributes, err error) {
	if err := unix.Fstat(fd, &a.st); err != nil {
		return a, err
	}
	if a.xattrs, err = xattrs(fd, &a.st); err != nil {
		return a, err
	}
	a.flags, err = getFlags(fd)
	return a, err
}
