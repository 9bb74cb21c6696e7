package copytree

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// blockSize is the unit of reads and writes.
const blockSize = 256 << 10

// entry is a directory entry.
type entry struct {
	name  string
	inode uint64
	kind  uint8 // as in DT_REG
}

// findKind stats the file if the directory entry has no type (DT_UNKNOWN).
func (e *entry) findKind(dir int) error {
	if e.kind != unix.DT_UNKNOWN {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstatat(dir, e.name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return changed("stat", err)
	}
	e.kind = kindOf(&st)
	return nil
}

// kindOf returns the type as in a directory entry: the upper bits of the mode.
func kindOf(st *unix.Stat_t) uint8 { return uint8(st.Mode & unix.S_IFMT >> 12) }

func openDir(dir int, name string) (int, error) {
	return openFile(dir, name, unix.O_RDONLY|unix.O_DIRECTORY)
}

// openFile opens a file by its name in a directory. It does not follow a symbolic link: it fails, or with O_PATH opens
// the link itself.
func openFile(dir int, name string, flags int) (int, error) {
	flags |= unix.O_NOFOLLOW | unix.O_CLOEXEC
	if flags&unix.O_PATH == 0 {
		flags |= unix.O_NONBLOCK | unix.O_NOATIME
	}
	for {
		fd, err := unix.Openat(dir, name, flags, 0)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// closeAll closes descriptors that were only read from, so that errors do not matter.
func closeAll(fds ...int) {
	for _, fd := range fds {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// readDir reads all entries of an open directory.
func readDir(fd int) ([]entry, error) {
	if _, err := unix.Seek(fd, 0, io.SeekStart); err != nil {
		return nil, err
	}
	var entries []entry
	b := make([]byte, 32<<10)
	for {
		n, err := unix.Getdents(fd, b)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			return entries, err
		}
		// Each is a struct linux_dirent64: inode, offset, length of the entry, type, null-terminated name.
		const text = 19
		for rest := b[:n]; len(rest) > text; {
			one := rest[:binary.NativeEndian.Uint16(rest[16:])]
			rest = rest[len(one):]
			if name := unix.ByteSliceToString(one[text:]); name != "." && name != ".." {
				entries = append(entries, entry{name, binary.NativeEndian.Uint64(one), one[18]})
			}
		}
	}
}

func isEmptyDir(dir int, name string) bool {
	fd, err := openDir(dir, name)
	if err != nil {
		return false
	}
	defer closeAll(fd)
	entries, err := readDir(fd)
	return err == nil && len(entries) == 0
}

// removeAll removes a file or a directory tree.
func removeAll(dir int, name string) error {
	fd, err := openDir(dir, name)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return removeFile(dir, name)
	}
	if err != nil {
		return err
	}
	defer closeAll(fd)
	if err := RestrictToRoot(fd); err != nil {
		return err
	}
	entries, err := readDir(fd)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := removeAll(fd, e.name); err != nil {
			return err
		}
	}
	return unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
}

// removeFile removes anything but a directory, even an immutable file.
func removeFile(dir int, name string) error {
	err := unix.Unlinkat(dir, name, 0)
	if !errors.Is(err, unix.EPERM) {
		return err
	}
	var st unix.Stat_t
	if unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil || kindOf(&st) != unix.DT_REG {
		return err // a device must not be opened
	}
	fd, openErr := openFile(dir, name, unix.O_RDONLY)
	if openErr != nil {
		return openErr
	}
	defer closeAll(fd)
	if err := clearFlags(fd); err != nil {
		return err
	}
	return unix.Unlinkat(dir, name, 0)
}

// sparse reports whether a file has holes: fewer blocks than its size requires.
func sparse(st *unix.Stat_t) bool { return st.Blocks*512 < st.Size }

// seek returns the offset of the next data or hole, at or after an offset, or the size.
func seek(fd int, at, size int64, whence int) (int64, error) {
	found, err := unix.Seek(fd, at, whence)
	if errors.Is(err, unix.ENXIO) {
		return size, nil
	}
	return min(found, size), err
}

func writeAt(fd int, b []byte, offset int64) error {
	for len(b) > 0 {
		n, err := unix.Pwrite(fd, b, offset)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("write: %w", err)
		}
		b, offset = b[n:], offset+int64(n)
	}
	return nil
}

func readlink(fd int) (string, error) {
	b := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", b)
	return string(b[:max(n, 0)]), err
}

// copyAttributes sets the attributes of a file and removes its other extended attributes.
func copyAttributes(target int, st *unix.Stat_t, want map[string]string) error {
	have, err := xattrs(target, st)
	if err != nil {
		return err
	}
	for name := range have {
		if _, wanted := want[name]; wanted {
			continue
		}
		if opened(st) {
			err = unix.Fremovexattr(target, name)
		} else {
			err = unix.Removexattr(procPath(target), name)
		}
		if err != nil {
			return fmt.Errorf("attribute %s: %w", name, err)
		}
	}
	return setAttributes(target, st, want)
}

// createMode is the mode of a regular file until its attributes are set. Its owner is root, since it is created in a
// directory that root owns and that has no set-group-ID bit.
const createMode = 0o600

// setAttributes sets attributes through a descriptor. The order matters: a change of the owner clears modes and
// capabilities, and every change updates the times. Attributes that a regular file already has from its creation are
// not set again, since each change adds to the journal.
func setAttributes(fd int, st *unix.Stat_t, xattrs map[string]string) (err error) {
	created := kindOf(st) == unix.DT_REG
	if !created || st.Uid != 0 || st.Gid != 0 {
		err = unix.Fchownat(fd, "", int(st.Uid), int(st.Gid), unix.AT_EMPTY_PATH)
	}
	if err != nil {
		return fmt.Errorf("owner: %w", err)
	}
	switch {
	case created && st.Mode&0o7777 == createMode:
	case opened(st):
		err = unix.Fchmod(fd, st.Mode&0o7777)
	case kindOf(st) != unix.DT_LNK:
		err = unix.Chmod(procPath(fd), st.Mode&0o7777) // through /proc, which root alone can do
	}
	if err != nil {
		return fmt.Errorf("mode: %w", err)
	}
	for name, value := range xattrs {
		if opened(st) {
			err = unix.Fsetxattr(fd, name, []byte(value), 0)
		} else {
			err = unix.Setxattr(procPath(fd), name, []byte(value), 0)
		}
		if err != nil {
			return fmt.Errorf("attribute %s: %w", name, err)
		}
	}
	if err := unix.UtimesNanoAt(fd, "", []unix.Timespec{st.Atim, st.Mtim}, unix.AT_EMPTY_PATH); err != nil {
		return fmt.Errorf("times: %w", err)
	}
	return nil
}

// opened reports whether files of that type are opened. Others have an O_PATH descriptor, for which some system calls
// need a path.
func opened(st *unix.Stat_t) bool {
	kind := kindOf(st)
	return kind == unix.DT_REG || kind == unix.DT_DIR
}

// procPath returns a path to the file of a descriptor. It does not follow that file if it is a symbolic link.
func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// xattrs reads the extended attributes. It leaves out the alternative names under which xfs lists its ACLs: if written,
// they would become ordinary attributes or, on xfs, set the ACLs twice.
func xattrs(fd int, st *unix.Stat_t) (map[string]string, error) {
	list := func(b []byte) (int, error) { return unix.Flistxattr(fd, b) }
	get := func(name string, b []byte) (int, error) { return unix.Fgetxattr(fd, name, b) }
	if !opened(st) {
		path := procPath(fd)
		list = func(b []byte) (int, error) { return unix.Listxattr(path, b) }
		get = func(name string, b []byte) (int, error) { return unix.Getxattr(path, name, b) }
	}
	n, err := list(nil)
	if errors.Is(err, unix.ENOTSUP) || err == nil && n == 0 {
		return nil, nil
	}
	names, err := grown(list)
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for name := range strings.SplitSeq(strings.TrimSuffix(names, "\x00"), "\x00") {
		if name == "" || strings.HasPrefix(name, "trusted.SGI_ACL_") {
			continue
		}
		if all[name], err = grown(func(b []byte) (int, error) { return get(name, b) }); err != nil {
			return nil, fmt.Errorf("attribute %s: %w", name, err)
		}
	}
	return all, nil
}

// grown calls read with increasingly large buffers until the result fits.
func grown(read func([]byte) (int, error)) (string, error) {
	for size := 256; ; size *= 4 {
		b := make([]byte, size)
		n, err := read(b)
		if errors.Is(err, unix.ERANGE) && size < 1<<20 {
			continue
		}
		return string(b[:max(n, 0)]), err
	}
}
