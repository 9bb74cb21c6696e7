package mount

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"cambium/internal/blkdev"
	"cambium/internal/thread"
)

// DetachElsewhere detaches the device's mounts in all other mount namespaces. A service with a
// private namespace that was started while the disk was mounted keeps a copy of the mount: the
// file system would stay mounted, and be written to, after our unmount. It returns one process of
// each namespace that was changed.
func DetachElsewhere(number blkdev.Number) ([]Process, error) {
	own, err := os.Readlink("/proc/thread-self/ns/mnt")
	if err != nil {
		return nil, err
	}
	namespaces, err := filepath.Glob("/proc/[0-9]*/ns/mnt")
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{own: true}
	var changed []Process
	var failed []error
	for _, ns := range namespaces {
		id, err := os.Readlink(ns)
		if err != nil || seen[id] {
			continue // it has ended, or is known
		}
		seen[id] = true
		dir := filepath.Dir(filepath.Dir(ns))
		targets := targetsIn(dir, number)
		if len(targets) == 0 {
			continue
		}
		if err := detachIn(ns, targets); err != nil {
			failed = append(failed, fmt.Errorf("detach %s in the namespace of process %s: %w", targets[0], filepath.Base(dir), err))
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(dir))
		name, _ := os.ReadFile(filepath.Join(dir, "comm")) // it may have ended meanwhile
		changed = append(changed, Process{PID: pid, Command: strings.TrimSpace(string(name)), Path: targets[0]})
	}
	return changed, errors.Join(failed...)
}

// targetsIn returns nothing for a process that has ended.
func targetsIn(proc string, number blkdev.Number) (targets []string) {
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
		if e.Number == number {
			targets = append(targets, e.Target)
		}
	}
	return targets
}

// detachIn enters the namespace with a thread that ends afterwards.
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
