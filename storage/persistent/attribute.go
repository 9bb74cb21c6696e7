package persistent

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"cambium/internal/atomicfile"
	"cambium/platform/copytree"
	"cambium/storage/decide"
	"cambium/storage/identity"
)

// MarkName is the file at the top of a disk whose copy is not complete, where attributes cannot be written.
const MarkName = ".cambium-incomplete-copy"

// said reads a disk's statement about itself at the disk's top directory. fileSystem identifies the file system there:
// a statement written to another one was carried along by a program that copies attributes, and is ignored.
func said(top *os.File, fileSystem string) (s decide.Said, err error) {
	data := make([]byte, identity.Limit)
	n, err := unix.Fgetxattr(int(top.Fd()), identity.Attribute, data)
	switch {
	case errors.Is(err, unix.ENODATA), errors.Is(err, unix.ENOTSUP), errors.Is(err, unix.EPERM):
		return markIn(top)
	case err != nil:
		return s, fmt.Errorf("read %s of %s: %w", identity.Attribute, top.Name(), err)
	}
	if s.Store, err = identity.Decode(data[:n]); err != nil {
		return decide.Said{Strange: err}, nil
	}
	if !identity.SameFileSystem(s.FileSystem, fileSystem) {
		s.Store = identity.Store{}
	}
	if s.Incomplete {
		return s, nil
	}
	if mark, err := markIn(top); err != nil || mark.Incomplete || mark.Strange != nil {
		return mark, err
	}
	return s, nil
}

// attributesShown reports whether this process sees attributes of this kind at all. Without CAP_SYS_ADMIN, as in a
// container with user IDs of its own, the kernel hides them: that one is missing means nothing then.
func attributesShown() bool {
	fd, err := unix.MemfdCreate("cambium", unix.MFD_CLOEXEC)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }()
	return !errors.Is(unix.Fsetxattr(fd, identity.Attribute, nil, 0), unix.EPERM)
}

// markIn reads the mark that is a file. One that is not root's alone is a job's.
func markIn(dir *os.File) (s decide.Said, err error) {
	top, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", dir.Fd()))
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, top.Close()) }()
	info, err := top.Lstat(MarkName)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 || info.Sys().(*syscall.Stat_t).Uid != 0 {
		return s, nil
	}
	f, err := top.Open(MarkName)
	if err != nil {
		return s, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, identity.Limit))
	if err != nil {
		return s, err
	}
	if s.Store, err = identity.Decode(data); err != nil {
		return decide.Said{Strange: err}, nil
	}
	return s, nil
}

// say writes what a disk says, flushed. It fails where attributes of this kind cannot be written.
func say(top *os.File, s identity.Store) error {
	data, err := s.Encode()
	if err != nil {
		return err
	}
	err = unlocked(top, func() error { return unix.Fsetxattr(int(top.Fd()), identity.Attribute, data, 0) })
	if err != nil {
		return fmt.Errorf("write %s to %s: %w", identity.Attribute, top.Name(), err)
	}
	return top.Sync()
}

// unlocked changes a directory that chattr(1) may have made immutable.
func unlocked(top *os.File, change func() error) error {
	err := change()
	if !errors.Is(err, unix.EPERM) {
		return err
	}
	flags, flagsErr := unix.IoctlGetInt(int(top.Fd()), unix.FS_IOC_GETFLAGS)
	const locks = unix.STATX_ATTR_IMMUTABLE | unix.STATX_ATTR_APPEND // the same bits
	if flagsErr != nil || flags&locks == 0 {
		return err
	}
	if err := unix.IoctlSetPointerInt(int(top.Fd()), unix.FS_IOC_SETFLAGS, flags&^locks); err != nil {
		return err
	}
	err = change()
	return errors.Join(err, unix.IoctlSetPointerInt(int(top.Fd()), unix.FS_IOC_SETFLAGS, flags))
}

// saidAt reads the statement of the disk or directory that is visible at a path.
func saidAt(dir, fileSystem string) (s decide.Said, err error) {
	top, err := os.Open(dir)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, top.Close()) }()
	return said(top, fileSystem)
}

// Mark marks the disk on the migration target as an incomplete copy, and closes it to all but root. It is an error if the
// mark cannot be read back.
func (d *Disks) Mark(s identity.Store) (err error) {
	target := d.Machine.Dirs.StoreMigrationTarget()
	top, err := os.Open(target)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, top.Close()) }()
	// Flags of chattr(1) would forbid that: the top directory has those of the store if the tree was completed before.
	if err := copytree.TakeOver(int(top.Fd())); err != nil {
		return err
	}
	if err := say(top, s); err != nil {
		if fileErr := d.markByFile(s); fileErr != nil {
			return errors.Join(err, fileErr)
		}
	}
	if err := top.Sync(); err != nil {
		return err
	}
	if is, err := said(top, s.FileSystem); err != nil || !is.Incomplete || is.Origin != s.Origin {
		return errors.Join(err, fmt.Errorf("%s cannot be marked as an incomplete copy", target))
	}
	return nil
}

func (d *Disks) markByFile(s identity.Store) error {
	data, err := s.Encode()
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(d.Machine.Dirs.StoreMigrationTarget(), MarkName), data, 0o600)
}

// Complete has the disk on the migration target say that the copy is complete. It has not been the store yet.
func (d *Disks) Complete(s identity.Store) (err error) {
	top, err := os.Open(d.Machine.Dirs.StoreMigrationTarget())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, top.Close()) }()
	if err := removeMark(top); err != nil {
		return err
	}
	s.Incomplete = false
	if err := say(top, s); err != nil {
		// Where attributes cannot be written, the file was the mark.
		if is, readErr := said(top, s.FileSystem); readErr != nil || is.Incomplete || is.Strange != nil {
			return errors.Join(err, readErr)
		}
	}
	return nil
}

// removeMark removes the mark that is a file.
func removeMark(top *os.File) error {
	return unlocked(top, func() error {
		err := unix.Unlinkat(int(top.Fd()), MarkName, 0)
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		return errors.Join(err, top.Sync())
	})
}

// ignoredInEmpty reports a name at the top of a disk that is not content: what comes with a file system, or was left by
// a Mark that was interrupted.
func ignoredInEmpty(top *os.Root, name string) (bool, error) {
	if strings.HasPrefix(name, "."+MarkName) {
		return true, nil
	}
	info, err := top.Lstat(name)
	if err != nil || name != "lost+found" || !info.IsDir() {
		return false, err
	}
	dir, err := top.Open(name)
	if err != nil {
		return false, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(1)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return len(names) == 0, err
}

// TargetIsEmpty reports whether the migration target holds nothing but what a new file system has.
func (d *Disks) TargetIsEmpty() (empty bool, err error) {
	top, err := os.OpenRoot(d.Machine.Dirs.StoreMigrationTarget())
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, top.Close()) }()
	dir, err := top.Open(".")
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	names, err := dir.Readdirnames(10) // a job may have filled it
	if errors.Is(err, io.EOF) {
		return true, nil
	}
	for _, name := range names {
		if ignored, err := ignoredInEmpty(top, name); err != nil || !ignored {
			return false, err
		}
	}
	return err == nil, err
}
