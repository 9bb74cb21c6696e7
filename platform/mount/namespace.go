package mount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"cambium/internal/blkdev"
	"cambium/internal/thread"
)

// covers reports whether other is a mount of the same device or, if m is a bind mount, of the same directory or one
// below it.
func (m Entry) covers(other Entry) bool {
	return m.Number == other.Number &&
		(m.Root == "/" || m.Root == other.Root || strings.HasPrefix(other.Root, m.Root+"/"))
}

// DetachElsewhere detaches mounts of m's file system in all other mount namespaces. A service with a private namespace
// has a copy of each mount that existed when it started; the file system would remain mounted, and be written to, after
// it was unmounted here. It returns one process of each changed namespace.
func DetachElsewhere(m Entry) ([]Process, error) {
	elsewhere, err := mountedElsewhere(m)
	if err != nil {
		return nil, err
	}
	var changed []Process
	var failed []error
	for _, ns := range elsewhere {
		if err := detachIn(filepath.Join("/proc", strconv.Itoa(ns.PID), "ns/mnt"), ns.targets); err != nil {
			failed = append(failed,
				fmt.Errorf("detach %s in the namespace of process %d: %w", ns.targets[0], ns.PID, err))
			continue
		}
		changed = append(changed, ns.Process)
	}
	return changed, errors.Join(failed...)
}

// namespace is another mount namespace with a mount, and one of its processes.
type namespace struct {
	Process
	targets []string
}

// mountedElsewhere returns the other mount namespaces with a mount of the same.
func mountedElsewhere(m Entry) (found []namespace, err error) {
	own, err := os.Readlink("/proc/thread-self/ns/mnt")
	if err != nil {
		return nil, err
	}
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	ownTable, err := Table()
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{own: true}
	for _, dir := range processes {
		id, err := os.Readlink(filepath.Join(dir, "ns/mnt"))
		if err != nil || seen[id] {
			continue // it has ended, or its namespace is known
		}
		seen[id] = true
		if targets := targetsIn(dir, m, ownTable); len(targets) > 0 {
			found = append(found, namespace{process(dir, targets[0], id), targets})
		}
	}
	return found, nil
}

func process(dir, path, namespace string) Process {
	pid, _ := strconv.Atoi(filepath.Base(dir))
	name, _ := os.ReadFile(filepath.Join(dir, "comm")) // it may have ended meanwhile
	return Process{PID: pid, Command: strings.TrimSpace(string(name)), Path: path, Namespace: namespace}
}

// targetsIn returns the mount points of m's file system in the namespace of a process, except for those that also exist
// here, such as the source of a bind mount. It returns nothing for a process that has ended.
func targetsIn(proc string, m Entry, ownTable []Entry) (targets []string) {
	f, err := os.Open(filepath.Join(proc, "mountinfo"))
	if err != nil {
		return nil
	}
	defer f.Close()
	infos, err := mountinfo.GetMountsFromReader(f, nil)
	if err != nil {
		return nil
	}
	for _, e := range entries(infos) {
		stays := slices.ContainsFunc(ownTable,
			func(h Entry) bool { return h.Number == e.Number && h.Root == e.Root && h.Target == e.Target })
		if m.covers(e) && !stays {
			targets = append(targets, e.Target)
		}
	}
	return targets
}

// Released reports whether nothing uses the file system of m after it was unmounted, so that its device can be opened
// exclusively. For a bind mount, or a device that is gone, it checks that no other namespace has it mounted.
func Released(m Entry, bind bool) (bool, error) {
	if number, err := blkdev.NumberOf(m.Source); bind || err == nil && number != m.Number {
		elsewhere, err := mountedElsewhere(m)
		return err == nil && len(elsewhere) == 0, err
	}
	f, err := os.OpenFile(m.Source, os.O_RDONLY|unix.O_EXCL, 0)
	switch {
	case err == nil:
		return true, f.Close()
	case errors.Is(err, unix.EBUSY):
		return false, nil
	case slices.ContainsFunc(goneErrors, func(gone error) bool { return errors.Is(err, gone) }):
		return true, nil
	}
	return false, fmt.Errorf("cannot determine whether %s is still in use: %w", m.Source, err)
}

// goneErrors are the errors of opening a device that is gone, which nothing can use.
var goneErrors = []error{unix.ENOENT, unix.ENXIO, unix.ENODEV, unix.ENOMEDIUM}

// AwaitReleased waits until Released returns true. If ctx ends before, the error names the processes.
func AwaitReleased(ctx context.Context, m Entry, bind bool, report func([]Process)) error {
	users := func(string) ([]Process, error) { return holders(m, bind) }
	return whileBusy(ctx, "wait for the users of", m.Source, users, report, func() error {
		released, err := Released(m, bind)
		if err == nil && !released {
			err = unix.EBUSY
		}
		return err
	})
}

// holders returns the processes that use the file system of m after it was unmounted: those with open files, and one
// for each mount namespace that has it mounted.
func holders(m Entry, bind bool) ([]Process, error) {
	elsewhere, err := mountedElsewhere(m)
	if err != nil {
		return nil, err
	}
	var found []Process
	for _, ns := range elsewhere {
		found = append(found, ns.Process)
	}
	if bind {
		return found, nil
	}
	users, err := processesUsing(func(dir string) string {
		return usedBy(dir, uint64(m.Number), func(string) bool { return true })
	})
	own, _ := os.Readlink("/proc/thread-self/ns/mnt")
	for _, p := range users {
		if id, _ := os.Readlink(filepath.Join("/proc", strconv.Itoa(p.PID), "ns/mnt")); id != own {
			p.Namespace = id
		}
		found = append(found, p)
	}
	return found, err
}

func detachIn(ns string, targets []string) error {
	fd, err := unix.Open(ns, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return thread.Run(func() error {
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return err
		}
		if err := unix.Setns(fd, unix.CLONE_NEWNS); err != nil {
			return err
		}
		var failed []error
		for i := len(targets) - 1; i >= 0; i-- {
			if err := unix.Unmount(targets[i], unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil &&
				!errors.Is(err, unix.EINVAL) {
				failed = append(failed, err)
			}
		}
		return errors.Join(failed...)
	})
}
