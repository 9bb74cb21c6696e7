package lab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"cambium/lab/sweep"

	"golang.org/x/sys/unix"
)

// Leftovers returns the names of labs that have a directory below dir or a lock, running or not.
func Leftovers(dir string) ([]string, error) {
	names := map[string]bool{}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if e.IsDir() && ValidName(e.Name()) == nil {
			names[e.Name()] = true
		}
	}
	locked, err := lockedNames()
	if err != nil {
		return nil, err
	}
	for _, name := range locked {
		names[name] = true
	}
	return slices.Sorted(maps.Keys(names)), nil
}

// Clean removes everything of a lab in whatever state: what is left in the kernel (see package sweep) and files. It
// ignores what does not exist.
func Clean(dir, name string) error {
	if err := ValidName(name); err != nil {
		return err
	}
	own := directory(dir, name)
	failed := sweep.Remains{Name: Prefix + name, Dir: own,
		Holds: func(argument string) bool { return argument == "lab-of-"+name }}.Remove()
	if err := os.RemoveAll(own); err != nil {
		failed = errors.Join(failed, err)
	}
	if failed != nil {
		return fmt.Errorf("lab %s: %w", name, failed)
	}
	_ = os.Remove(lockPath(name))
	return nil
}

// WaitProcess waits until a process has ended.
func WaitProcess(ctx context.Context, pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("process %d: %w", pid, err)
	}
	defer func() { _ = unix.Close(fd) }()
	for ctx.Err() == nil {
		// In slices, so that ctx is seen.
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 200)
		if n > 0 {
			return nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
	return ctx.Err()
}
