package mount

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Detach unmounts target at once, for a file system that will be mounted again. Processes that use it are reported and
// keep their open files.
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

// SetReadOnly makes the file system at target read-only or writable, for all its mounts in all namespaces. It changes
// no other option. To make it read-only, it waits for processes with files open for writing, as Unmount does.
func SetReadOnly(ctx context.Context, target string, readOnly bool, report func([]Process)) error {
	flag := "rw"
	if readOnly {
		flag = "ro"
	}
	return whileBusy(ctx, "remount "+flag, target, occupants, report, func() error {
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
}

// SetBindReadOnly makes a single mount read-only or writable, but not its file system or other mounts. To make it
// read-only, it waits for processes with files open for writing through this mount.
func SetBindReadOnly(ctx context.Context, target string, readOnly bool, report func([]Process)) error {
	change := unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}
	if readOnly {
		change = unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	}
	return whileBusy(ctx, "remount", target, occupants, report,
		func() error { return unix.MountSetattr(unix.AT_FDCWD, target, 0, &change) })
}

// whileBusy calls try again while it returns EBUSY. It reports the processes that use target whenever they change.
// Other errors get the operation and the target.
func whileBusy(ctx context.Context, operation, target string, usersOf func(target string) ([]Process, error),
	report func([]Process), try func() error) error {
	var last string
	for {
		err := try()
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("%s %s: %w", operation, target, err)
		}
		users, err := usersOf(target)
		if err != nil {
			return fmt.Errorf("%s %s: busy: %w", operation, target, err)
		}
		if now := fmt.Sprint(users); now != last {
			last = now
			report(users)
		}
		if ctx.Err() != nil {
			return &BusyError{Target: target, Users: users, Cause: context.Cause(ctx)}
		}
		if err := awaitChange(ctx, users); err != nil {
			return fmt.Errorf("%s %s: %w", operation, target, err)
		}
	}
}
