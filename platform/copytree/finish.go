package copytree

import (
	"context"
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

// attributes are what Complete gives to the top of the target when the source is not open any more.
type attributes struct {
	st     unix.Stat_t
	xattrs map[string]string
	flags  uint32
}

// finish sets the flags below the top directory and reads the top's attributes.
func (t *Trees) finish(ctx context.Context) (err error) {
	if t.flagged.Load() {
		if err := t.walk(ctx, &finisher{t}, &Counter{}).run(); err != nil {
			return err
		}
	}
	fd := int(t.from.Fd())
	if err := unix.Fstat(fd, &t.top.st); err != nil {
		return err
	}
	if t.top.xattrs, err = xattrs(fd, &t.top.st); err != nil {
		return err
	}
	t.top.flags, err = getFlags(fd)
	return err
}

// finisher sets flags from below: a directory that cannot be changed comes after what is in it.
type finisher struct{ *Trees }

func (f *finisher) enter(d *dir) (err error) {
	if d.parent != nil {
		d.to, err = openDir(d.parent.to, d.name)
	}
	return err
}

func (f *finisher) open(d *dir, e entry) (int, error) {
	if e.kind != unix.DT_REG {
		return -1, nil // others have no flags
	}
	fd, err := openFile(d.from, e.name, unix.O_RDONLY)
	if err != nil {
		return -1, changed("open", err)
	}
	return fd, nil
}

func (f *finisher) entry(d *dir, e entry, source int, _ *worker) error {
	if source < 0 {
		return nil
	}
	want, err := getFlags(source)
	if err != nil || want == 0 {
		return err
	}
	target, err := openFile(d.to, e.name, unix.O_RDONLY)
	if err != nil {
		return changed("open the copy", err)
	}
	defer unix.Close(target)
	return copyFlags(target, want)
}

func (f *finisher) finishDir(d *dir) error {
	if d.parent == nil {
		return nil // Complete does it
	}
	want, err := getFlags(d.from)
	if err != nil {
		return err
	}
	return copyFlags(d.to, want)
}
