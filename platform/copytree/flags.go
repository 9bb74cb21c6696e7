package copytree

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// The flags of chattr(1) that are copied, by the letters of lsattr(1), from linux/fs.h. Others describe the storage of
// a file, or need a project or an encryption key.
const (
	portableFlags = 0x08 | 0x10 | 0x20 | 0x40 | 0x80 // S, i, a, d, A: supported by xfs, too
	// s, u, j, t, D, T
	keptFlags = portableFlags | 0x01 | 0x02 | 0x4000 | 0x8000 | 0x10000 | 0x20000
)

// getFlags returns the flags of a file or directory to copy, or 0 if the file system does not support any.
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

// setFlags replaces the copied flags and keeps the others.
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

// clearFlags clears the flags that prevent changes to a file of an earlier, interrupted copy.
func clearFlags(fd int) error {
	flags, err := getFlags(fd)
	if err != nil || flags == 0 {
		return err
	}
	return setFlags(fd, 0)
}

// copyFlags sets the flags of the source. If the file system does not support all of them, it sets the portable ones.
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

// attributes holds the attributes of the source's top directory for Complete, when the source is no longer open.
type attributes struct {
	st     unix.Stat_t
	xattrs map[string]string
	flags  uint32
}

// attributesOf reads the attributes of an open directory.
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
