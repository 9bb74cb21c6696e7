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

// of reports whether another mount shows the same device, or, where m is a bind mount, something of the same directory.
func (m Entry) of(other Entry) bool {
	return m.Number == other.Number && (m.Root == "/" || m.Root == other.Root || strings.HasPrefix(other.Root, m.Root+"/"))
}

// DetachElsewhere detaches what m showed in all other mount namespaces. A service with a
// private namespace that was started while the disk was mounted keeps a copy of the mount: the
// file system would stay mounted, and be written to, after our unmount. It returns one process of
// each namespace that was changed.
func DetachElsewhere(m Entry) ([]Process, error) {
	elsewhere, err := mountedElsewhere(m)
	if err != nil {
		return nil, err
	}
	var changed []Process
	var failed []error
	for _, ns := range elsewhere {
		if err := detachIn(filepath.Join("/proc", strconv.Itoa(ns.PID), "ns/mnt"), ns.targets); err != nil {
			failed = append(failed, fmt.Errorf("detach %s in the namespace of process %d: %w", ns.targets[0], ns.PID, err))
			continue
		}
		changed = append(changed, ns.Process)
	}
	return changed, errors.Join(failed...)
}

// namespace is a mount namespace where something is mounted, with one of its processes.
type namespace struct {
	Process
	targets []string
}

// mountedElsewhere lists the other mount namespaces where the same is mounted.
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
			continue // it has ended, or is known
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

// targetsIn returns where a process has mounted what m shows, other than here: the source of a bind mount stays. It returns
// nothing for a process that has ended.
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
		stays := slices.ContainsFunc(ownTable, func(h Entry) bool { return h.Number == e.Number && h.Root == e.Root && h.Target == e.Target })
		if m.of(e) && !stays {
			targets = append(targets, e.Target)
		}
	}
	return targets
}

// Released reports whether nothing holds what m showed before it was unmounted: a device can then be opened exclusively.
// Of a bind mount, and of a device that is gone, no copy is left in any namespace.
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

// goneErrors mean that a device is gone, and has no holder.
var goneErrors = []error{unix.ENOENT, unix.ENXIO, unix.ENODEV, unix.ENOMEDIUM}

// AwaitReleased waits until Released. The error names what holds it when ctx ends.
func AwaitReleased(ctx context.Context, m Entry, bind bool, report func([]Process)) error {
	var last string
	for {
		if released, err := Released(m, bind); released || err != nil {
			return err
		}
		holders, err := holders(m, bind)
		if err != nil {
			return err
		}
		if now := fmt.Sprint(holders); now != last {
			last = now
			report(holders)
		}
		if ctx.Err() != nil {
			return &BusyError{Target: m.Source, Users: holders, Cause: context.Cause(ctx)}
		}
		if err := awaitChange(ctx, holders); err != nil {
			return err
		}
	}
}

// holders are the processes that hold what m showed before it was unmounted: those with open files there, and one of each mount
// namespace that has it mounted.
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
			if err := unix.Unmount(targets[i], unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
				failed = append(failed, err)
			}
		}
		return errors.Join(failed...)
	})
}
