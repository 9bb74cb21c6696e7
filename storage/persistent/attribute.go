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

// MarkName is the file that marks the disk as an incomplete copy where extended attributes cannot be written.
const MarkName = ".cambium-incomplete-copy"

// readStatement reads the statement of the disk whose top directory is top. fileSystem is the UUID of the file system.
// A statement with another UUID was copied there by a program that preserves attributes, and is ignored.
func readStatement(top *os.File, fileSystem string) (s decide.Statement, err error) {
	data := make([]byte, identity.Limit)
	n, err := unix.Fgetxattr(int(top.Fd()), identity.Attribute, data)
	switch {
	case errors.Is(err, unix.ENODATA), errors.Is(err, unix.ENOTSUP), errors.Is(err, unix.EPERM):
		return readMark(top)
	case err != nil:
		return s, fmt.Errorf("read %s of %s: %w", identity.Attribute, top.Name(), err)
	}
	if s.Store, err = identity.Decode(data[:n]); err != nil {
		return decide.Statement{Err: err}, nil
	}
	if !identity.SameFileSystem(s.FileSystem, fileSystem) {
		s.Store = identity.Store{}
	}
	if s.Incomplete {
		return s, nil
	}
	if mark, err := readMark(top); err != nil || mark.Incomplete || mark.Err != nil {
		return mark, err
	}
	return s, nil
}

// canSeeAttributes reports whether this process sees attributes in the trusted namespace. Without CAP_SYS_ADMIN, as in
// a container with a user namespace, the kernel hides them, so that a missing one proves nothing.
func canSeeAttributes() bool {
	fd, err := unix.MemfdCreate("cambium", unix.MFD_CLOEXEC)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }()
	return !errors.Is(unix.Fsetxattr(fd, identity.Attribute, nil, 0), unix.EPERM)
}

// readMark reads the file that marks an incomplete copy. A file that others than root own or can access was written by
// a job, and is ignored.
func readMark(dir *os.File) (s decide.Statement, err error) {
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
		return decide.Statement{Err: err}, nil
	}
	return s, nil
}

// writeStatement writes a disk's statement and flushes it. It fails if the attribute cannot be written.
func writeStatement(top *os.File, s identity.Store) error {
	data, err := s.Encode()
	if err != nil {
		return err
	}
	err = changeImmutable(top, func() error { return unix.Fsetxattr(int(top.Fd()), identity.Attribute, data, 0) })
	if err != nil {
		return fmt.Errorf("write %s to %s: %w", identity.Attribute, top.Name(), err)
	}
	return top.Sync()
}

// changeImmutable calls change, which changes a directory. If chattr(1) made the directory immutable or append-only, it
// clears these flags for the change.
func changeImmutable(top *os.File, change func() error) error {
	err := change()
	if !errors.Is(err, unix.EPERM) {
		return err
	}
	flags, flagsErr := unix.IoctlGetInt(int(top.Fd()), unix.FS_IOC_GETFLAGS)
	const locks = unix.STATX_ATTR_IMMUTABLE | unix.STATX_ATTR_APPEND // equal to FS_IMMUTABLE_FL and FS_APPEND_FL
	if flagsErr != nil || flags&locks == 0 {
		return err
	}
	if err := unix.IoctlSetPointerInt(int(top.Fd()), unix.FS_IOC_SETFLAGS, flags&^locks); err != nil {
		return err
	}
	err = change()
	return errors.Join(err, unix.IoctlSetPointerInt(int(top.Fd()), unix.FS_IOC_SETFLAGS, flags))
}

// readStatementAt reads the statement of the disk or directory that is visible at a path.
func readStatementAt(dir, fileSystem string) (s decide.Statement, err error) {
	top, err := os.Open(dir)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, top.Close()) }()
	return readStatement(top, fileSystem)
}

// MarkIncomplete marks the disk on the migration target as an incomplete copy, and denies access to all but root. It
// verifies the mark by reading it back.
func (d *Disks) MarkIncomplete(s identity.Store) (err error) {
	target := d.Machine.Dirs.StoreMigrationTarget()
	top, err := os.Open(target)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, top.Close()) }()
	// Flags of chattr(1) would prevent that. The top directory has those of the store if an earlier copy was complete.
	if err := copytree.RestrictToRoot(int(top.Fd())); err != nil {
		return err
	}
	if err := writeStatement(top, s); err != nil {
		if fileErr := d.markByFile(s); fileErr != nil {
			return errors.Join(err, fileErr)
		}
	}
	if err := top.Sync(); err != nil {
		return err
	}
	if is, err := readStatement(top, s.FileSystem); err != nil || !is.Incomplete || is.Origin != s.Origin {
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

// MarkComplete marks the copy on the migration target as complete. That disk has not been the store yet.
func (d *Disks) MarkComplete(s identity.Store) (err error) {
	top, err := os.Open(d.Machine.Dirs.StoreMigrationTarget())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, top.Close()) }()
	if err := removeMark(top); err != nil {
		return err
	}
	s.Incomplete = false
	if err := writeStatement(top, s); err != nil {
		// Where attributes cannot be written, the file was the mark.
		if is, readErr := readStatement(top, s.FileSystem); readErr != nil || is.Incomplete || is.Err != nil {
			return errors.Join(err, readErr)
		}
	}
	return nil
}

// removeMark removes the file that marks an incomplete copy.
func removeMark(top *os.File) error {
	return changeImmutable(top, func() error {
		err := unix.Unlinkat(int(top.Fd()), MarkName, 0)
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		return errors.Join(err, top.Sync())
	})
}

// ignoredInEmpty reports whether a name in the top directory does not count as content: an empty lost+found, or a
// temporary file of an interrupted MarkIncomplete.
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

// TargetIsEmpty reports whether the migration target contains only what a new file system contains.
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
