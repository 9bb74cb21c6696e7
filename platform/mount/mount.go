// Package mount mounts, binds and unmounts, and reads the mount table. It compares devices by number; of stacked
// mounts, only the topmost is visible. Mounting what is already mounted succeeds. If something else is mounted on the
// target, it is an error.
//
// There is no Desired and no Diff: each function is an idempotent step, and package storage decides their order. See
// docs/architecture.md.
package mount

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"cambium/internal/blkdev"
)

// Entry is a line of the mount table.
type Entry struct {
	ID      int
	Source  string // as passed to mount
	Target  string
	Type    string
	Root    string // the mounted directory of the file system; not "/" for binds
	Number  blkdev.Number
	Options string // of this mount
	Super   string // of the file system
}

// Table returns all mounts of this process's namespace, in the order in which they were made.
func Table() ([]Entry, error) {
	infos, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, fmt.Errorf("read mount table: %w", err)
	}
	return entries(infos), nil
}

func entries(infos []*mountinfo.Info) []Entry {
	all := make([]Entry, 0, len(infos))
	for _, i := range infos {
		all = append(all, Entry{ID: i.ID, Source: i.Source, Target: i.Mountpoint, Type: i.FSType, Root: i.Root,
			Number: blkdev.Number(
				unix.Mkdev(uint32(i.Major), uint32(i.Minor))), Options: i.Options, Super: i.VFSOptions})
	}
	return all
}

// At returns the visible mount at target, if target is a mount point.
func At(target string) (e Entry, there bool, err error) {
	all, err := AllAt(target)
	if there = len(all) > 0; there {
		e = all[len(all)-1]
	}
	return e, there, err
}

// AllAt returns the mounts at target, the topmost last.
func AllAt(target string) (found []Entry, err error) {
	if target, err = resolve(target); err != nil {
		return nil, err
	}
	all, err := Table()
	for _, m := range all {
		if m.Target == target {
			found = append(found, m)
		}
	}
	return found, err
}

// Of returns the mounts of the whole file system on a device, without bind mounts of its directories.
func Of(number blkdev.Number) ([]Entry, error) {
	all, err := Table()
	if err != nil {
		return nil, err
	}
	var found []Entry
	for _, m := range all {
		if m.Number == number && m.Root == "/" {
			found = append(found, m)
		}
	}
	return found, nil
}

// Uses reports whether anything on the device is mounted, including bind mounts.
func Uses(number blkdev.Number) (bool, error) {
	all, err := Table()
	if err != nil {
		return false, err
	}
	for _, m := range all {
		if m.Number == number {
			return true, nil
		}
	}
	return false, nil
}

func resolve(path string) (string, error) {
	real, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		return filepath.Clean(path), nil
	}
	return real, err
}

// MountDevice mounts the file system on a block device. options are those of mount(8).
func MountDevice(ctx context.Context, source, target, kind string, options []string) error {
	number, err := blkdev.NumberOf(source)
	if err != nil {
		return fmt.Errorf("mount on %s: %w", target, err)
	}
	target, err = resolve(target)
	if err != nil {
		return fmt.Errorf("mount %s: %w", source, err)
	}
	there, taken, err := At(target)
	if err != nil {
		return err
	}
	if taken && there.Number == number && there.Root == "/" {
		return nil
	}
	if taken {
		return fmt.Errorf("mount %s on %s: %s is already mounted there", source, target, there.Source)
	}
	elsewhere, err := Of(number)
	if err != nil {
		return err
	}
	if len(elsewhere) > 0 {
		return fmt.Errorf("mount %s on %s: it is already mounted on %s", source, target, elsewhere[0].Target)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("mount %s on %s: %w", source, target, context.Cause(ctx))
	}
	flags, data := parseOptions(options)
	err = unix.Mount(source, target, kind, flags, data)
	if errors.Is(err, unix.EACCES) {
		err = fmt.Errorf("%w: the device is read-only: attach it read-write", err)
	}
	if err != nil {
		return fmt.Errorf("mount %s (%s) on %s: %w", source, kind, target, err)
	}
	return nil
}

// MountAdmitted mounts the file system on a block device like MountDevice, but calls admit with its top directory
// first. Until then no other process can reach the file system by a path: it is mounted on place, cloned from there and
// unmounted. If the kernel or a sandbox lacks these system calls, it stays mounted on place, whose parent only root can
// access.
func MountAdmitted(ctx context.Context, source, place, target, kind string, options []string,
	admit func(top *os.File) error) error {
	if place != target {
		if err := release(place); err != nil {
			return err
		}
	}
	if err := MountDevice(ctx, source, place, kind, options); err != nil {
		return err
	}
	clone, err := unix.OpenTree(unix.AT_FDCWD, place, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		return admitted(ctx, source, place, target, admit)
	}
	if err != nil {
		return errors.Join(&os.PathError{Op: "open_tree", Path: place, Err: err}, release(place))
	}
	tree := os.NewFile(uintptr(clone), source)
	defer tree.Close() // also if admit panics
	err = release(place)
	if err == nil {
		err = show(fmt.Sprintf("/proc/self/fd/%d", clone), admit)
	}
	if err != nil {
		return errors.Join(err, tree.Close(), AwaitIdle(ctx, source))
	}
	target, err = free(target)
	if err == nil {
		err = unix.MoveMount(clone, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH)
	}
	if err = errors.Join(err, tree.Close()); err != nil {
		return fmt.Errorf("mount %s on %s: %w", source, target, err)
	}
	return nil
}

// admitted is the second half of MountAdmitted if a mount cannot be cloned.
func admitted(ctx context.Context, source, place, target string, admit func(top *os.File) error) error {
	if err := show(place, admit); err != nil {
		return errors.Join(err, release(place), AwaitIdle(ctx, source))
	}
	if place == target {
		return nil
	}
	target, err := free(target)
	if err == nil {
		err = unix.Mount(place, target, "", unix.MS_BIND, "")
	}
	if err = errors.Join(err, release(place)); err != nil {
		return fmt.Errorf("mount %s on %s: %w", source, target, err)
	}
	return nil
}

// release unmounts place, where a killed process may have left a mount.
func release(place string) error {
	err := unix.Unmount(place, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
	if err == nil || errors.Is(err, unix.EINVAL) { // not a mount point
		return nil
	}
	return &os.PathError{Op: "unmount", Path: place, Err: err}
}

// show calls admit with an open directory.
func show(dir string, admit func(top *os.File) error) error {
	top, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer top.Close() // also if admit panics; read only
	return admit(top)
}

// free resolves a path, and returns an error if something is mounted there.
func free(target string) (string, error) {
	there, taken, err := At(target)
	if err == nil && taken {
		err = fmt.Errorf("%s is already mounted there", there.Source)
	}
	if err != nil {
		return target, err
	}
	return resolve(target)
}

// Bind bind-mounts the directory source on target, unless something is mounted there. The mount has no flags (nodev,
// nosuid, noexec, ro), not even those of the mount that contains source.
func Bind(ctx context.Context, source, target string) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("bind %s on %s: %w", source, target, context.Cause(ctx))
	}
	_, there, err := At(target)
	if err != nil {
		return fmt.Errorf("bind %s: %w", source, err)
	}
	if !there {
		if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind %s on %s: %w", source, target, err)
		}
	}
	if err := unix.Mount("none", target, "", unix.MS_BIND|unix.MS_REMOUNT, ""); err != nil {
		return fmt.Errorf("remount %s: %w", target, err)
	}
	return nil
}

var optionFlags = map[string]struct {
	set   bool
	flags uintptr
}{
	"ro": {true, unix.MS_RDONLY}, "rw": {false, unix.MS_RDONLY},
	"nosuid": {true, unix.MS_NOSUID}, "suid": {false, unix.MS_NOSUID},
	"nodev": {true, unix.MS_NODEV}, "dev": {false, unix.MS_NODEV},
	"noexec": {true, unix.MS_NOEXEC}, "exec": {false, unix.MS_NOEXEC},
	"sync": {true, unix.MS_SYNCHRONOUS}, "async": {false, unix.MS_SYNCHRONOUS},
	"dirsync": {true, unix.MS_DIRSYNC},
	"noatime": {true, unix.MS_NOATIME}, "atime": {false, unix.MS_NOATIME},
	"nodiratime": {true, unix.MS_NODIRATIME}, "diratime": {false, unix.MS_NODIRATIME},
	"relatime": {true, unix.MS_RELATIME}, "norelatime": {false, unix.MS_RELATIME},
	"strictatime": {true, unix.MS_STRICTATIME}, "nostrictatime": {false, unix.MS_STRICTATIME},
	"lazytime": {true, unix.MS_LAZYTIME}, "nolazytime": {false, unix.MS_LAZYTIME},
	"silent": {true, unix.MS_SILENT}, "loud": {false, unix.MS_SILENT},
	"mand": {true, unix.MS_MANDLOCK}, "nomand": {false, unix.MS_MANDLOCK},
	"nosymfollow": {true, unix.MS_NOSYMFOLLOW}, "symfollow": {false, unix.MS_NOSYMFOLLOW},
	"iversion": {true, unix.MS_I_VERSION}, "noiversion": {false, unix.MS_I_VERSION},
	// Options for programs that read fstab.
	"defaults": {}, "auto": {}, "noauto": {}, "nofail": {}, "_netdev": {}, "user": {}, "nouser": {}, "users": {},
	"group": {}, "owner": {},
}

// parseOptions splits mount(8) options, each of which may be a list, into flags and options for the file system.
func parseOptions(options []string) (flags uintptr, data string) {
	var rest []string
	for _, list := range options {
		for _, o := range strings.Split(list, ",") {
			o = strings.TrimSpace(o)
			if o == "" || strings.HasPrefix(strings.ToLower(o), "x-") || strings.HasPrefix(o, "comment=") {
				continue
			}
			known, ok := optionFlags[o]
			switch {
			case !ok:
				rest = append(rest, o)
			case known.set:
				flags |= known.flags
			default:
				flags &^= known.flags
			}
		}
	}
	return flags, strings.Join(rest, ",")
}

// Number combines a major and a minor number.
func Number(major, minor uint32) blkdev.Number { return blkdev.Number(unix.Mkdev(major, minor)) }
