package mount

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Show clones the mount at from to the directory to, with all its options. Followed by Detach it
// is a move during which the file system is always mounted; the kernel refuses to move a mount
// whose parent is shared, as all mounts are under systemd.
func Show(from, to string) error {
	fd, err := unix.OpenTree(unix.AT_FDCWD, from, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("move mount %s: %w", from, err)
	}
	defer unix.Close(fd)
	if _, occupied, err := At(to); err != nil {
		return err
	} else if occupied {
		return fmt.Errorf("move mount %s: something is mounted on %s", from, to)
	}
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, to, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("move mount %s to %s: %w", from, to, err)
	}
	return nil
}

// Detach removes the mount at target at once. Processes that use it are reported and keep their open
// files; it is for file systems that are mounted elsewhere as well.
func Detach(target string, report func([]Process)) error {
	target, err := resolve(target)
	if err != nil {
		return fmt.Errorf("detach: %w", err)
	}
	if _, there, err := At(target); err != nil || !there {
		return err
	}
	err = unix.Unmount(target, unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EBUSY) {
		if users, err := users(target); err == nil {
			report(users)
		}
		err = unix.Unmount(target, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
	}
	if err != nil {
		return fmt.Errorf("detach %s: %w", target, err)
	}
	return nil
}

// SetReadOnly makes the file system at target read-only or writable again, for all mounts of
// it in all namespaces, and changes no other option. To make it read-only, it waits for processes
// with files open for writing, as Unmount does.
func SetReadOnly(ctx context.Context, target string, readOnly bool, report func([]Process)) error {
	flag := "rw"
	if readOnly {
		flag = "ro"
	}
	err := whileBusy(ctx, target, report, func() error {
		fd, err := unix.Fspick(unix.AT_FDCWD, target, unix.FSPICK_CLOEXEC|unix.FSPICK_NO_AUTOMOUNT)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.FsconfigSetFlag(fd, flag); err != nil {
			return err
		}
		return unix.FsconfigReconfigure(fd)
	})
	var busy *BusyError
	if err != nil && !errors.As(err, &busy) {
		return fmt.Errorf("make %s %s: %w", target, flag, err)
	}
	return err
}

// SetBindReadOnly makes the one mount at target read-only or writable again, but not the file
// system and its other mounts. To make it read-only, it waits for processes with files open for
// writing through this mount.
func SetBindReadOnly(ctx context.Context, target string, readOnly bool, report func([]Process)) error {
	change := unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}
	if readOnly {
		change = unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	}
	err := whileBusy(ctx, target, report, func() error { return unix.MountSetattr(unix.AT_FDCWD, target, 0, &change) })
	var busy *BusyError
	if err != nil && !errors.As(err, &busy) {
		return fmt.Errorf("change the mount %s: %w", target, err)
	}
	return err
}

// whileBusy repeats try as long as it fails with EBUSY.
func whileBusy(ctx context.Context, target string, report func([]Process), try func() error) error {
	var last string
	for {
		err := try()
		if !errors.Is(err, unix.EBUSY) {
			return err
		}
		users, err := users(target)
		if err != nil {
			return fmt.Errorf("busy: %w", err)
		}
		if now := fmt.Sprint(users); now != last {
			last = now
			report(users)
		}
		if ctx.Err() != nil {
			return &BusyError{Target: target, Users: users, Cause: context.Cause(ctx)}
		}
		if err := awaitChange(ctx, users); err != nil {
			return err
		}
	}
}
