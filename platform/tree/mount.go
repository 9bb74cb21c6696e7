package tree

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// attributes returns the flags for mount_setattr(2).
func (f Flags) attributes() (attr uint64) {
	for flag, a := range map[Flags]uint64{NoDev: unix.MOUNT_ATTR_NODEV, NoSuid: unix.MOUNT_ATTR_NOSUID,
		NoExec: unix.MOUNT_ATTR_NOEXEC} {
		if f&flag != 0 {
			attr |= a
		}
	}
	return attr
}

// mountFlags returns the flags for mount(2).
func (f Flags) mountFlags() (m uintptr) {
	for flag, a := range map[Flags]uintptr{NoDev: unix.MS_NODEV, NoSuid: unix.MS_NOSUID, NoExec: unix.MS_NOEXEC} {
		if f&flag != 0 {
			m |= a
		}
	}
	return m
}

// bind attaches the source with its flags in one step, so that it is never mounted without them, even after a crash.
func (k *Kernel) bind(e Entry) error {
	source, target := k.joinRoot(e.Source), k.joinRoot(e.Path)
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	// Bind a directory to itself recursively, to keep the mounts below it.
	var recursive, mountRecursive uint
	if e.Source == e.Path {
		recursive, mountRecursive = unix.AT_RECURSIVE, unix.MS_REC
	}
	tree, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|recursive)
	if err == nil {
		err = attach(tree, target, e.Flags)
		err = errors.Join(err, unix.Close(tree))
	}
	if !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EPERM) {
		return err
	}
	// Older kernels, and sandboxes that deny the new system calls:
	if err := unix.Mount(source, target, "", unix.MS_BIND|uintptr(mountRecursive), ""); err != nil {
		return err
	}
	return setFlags(target, e.Flags)
}

func attach(tree int, target string, f Flags) error {
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: f.attributes()}); err != nil {
		return err
	}
	return unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// setFlags adds flags to a mount and keeps the others.
func setFlags(target string, f Flags) error {
	err := unix.MountSetattr(unix.AT_FDCWD, target, 0, &unix.MountAttr{Attr_set: f.attributes()})
	if !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EPERM) {
		return err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(target, &st); err != nil {
		return err
	}
	// mount(2) replaces the flags, so pass the present ones again. The values of their ST_ and MS_ constants are equal.
	const kept = unix.ST_RDONLY | unix.ST_NOSUID | unix.ST_NODEV | unix.ST_NOEXEC | unix.ST_NOATIME | unix.ST_NODIRATIME
	have := uintptr(st.Flags) & kept
	if st.Flags&unix.ST_RELATIME != 0 {
		have |= unix.MS_RELATIME
	}
	return unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|have|f.mountFlags(), "")
}

func mountTmpfs(target string, c Change) error {
	mode := uint32(c.Entry.Mode.Perm())
	if c.Entry.Mode&os.ModeSticky != 0 {
		mode |= 0o1000
	}
	// Mode and owner are mount options, so that others never have access.
	options := fmt.Sprintf("size=%s,mode=%04o,uid=%d,gid=%d", c.Entry.Size, mode, max(c.UID, 0), max(c.GID, 0))
	return unix.Mount("tmpfs", target, "tmpfs", c.Entry.Flags.mountFlags(), options)
}
