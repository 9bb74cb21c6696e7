package mount

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cambium/internal/blkdev"
	"cambium/internal/bounded"
	"cambium/internal/oneline"
)

// Process is a process that keeps a mount busy. PID 0 stands for another mount inside it, with its source as the
// command.
type Process struct {
	PID     int
	Command string
	Path    string // a file that it uses on the mount, or its mount point
	// Namespace is its mount namespace, unless that is the agent's.
	Namespace string
}

// String describes the process on one line. Jobs choose the names of their processes and files, and errors may be
// printed on terminals.
func (p Process) String() string {
	command, path := oneline.Of(p.Command), oneline.Of(p.Path)
	if p.PID == 0 {
		return fmt.Sprintf("%s mounted on %s", command, path)
	}
	if p.Namespace != "" {
		return fmt.Sprintf("%s (pid %d, %s in mount namespace %s)", command, p.PID, path, p.Namespace)
	}
	return fmt.Sprintf("%s (pid %d, %s)", command, p.PID, path)
}

// BusyError is returned if a mount was still in use when the context ended.
type BusyError struct {
	Target string
	Users  []Process
	Cause  error
}

func (e *BusyError) Error() string {
	names := make([]string, len(e.Users))
	for i, u := range e.Users {
		names[i] = u.String()
	}
	users := strings.Join(names, ", ")
	if users == "" {
		users = "no process of this machine uses it; another mount is on top of it, or it is exported"
	}
	return fmt.Sprintf("%s is busy: %s: %v", e.Target, users, e.Cause)
}

func (e *BusyError) Unwrap() error { return e.Cause }

// Unmount unmounts the topmost mount at target, if any. While the mount is busy, it waits for processes to end and for
// mounts to change, until ctx ends.
func Unmount(ctx context.Context, target string) error {
	return UnmountReporting(ctx, target, func([]Process) {})
}

// UnmountReporting unmounts like Unmount. It reports the processes that keep the mount busy whenever they change.
func UnmountReporting(ctx context.Context, target string, report func([]Process)) error {
	target, err := resolve(target)
	if err != nil {
		return fmt.Errorf("unmount: %w", err)
	}
	return whileBusy(ctx, "unmount", target, occupants, report, func() error {
		if _, there, err := At(target); err != nil || !there {
			return err
		}
		return unix.Unmount(target, unix.UMOUNT_NOFOLLOW)
	})
}

// AwaitUnused waits until the mount at target could be unmounted, but does not unmount it.
func AwaitUnused(ctx context.Context, target string, report func([]Process)) error {
	return whileBusy(ctx, "wait for the users of", target, occupants, report, func() error {
		path, err := resolve(target) // clears the mark of an earlier call
		if err != nil {
			return err
		}
		// The first call with MNT_EXPIRE only marks an unused mount.
		err = unix.Unmount(path, unix.MNT_EXPIRE|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EAGAIN) {
			_, err = resolve(path)
		}
		return err
	})
}

// recheckInterval bounds the delay until a closed file is noticed. Unlike the end of a process or a change of mounts,
// that causes no event.
const recheckInterval = time.Second

func awaitChange(ctx context.Context, users []Process) error {
	// Use files, not descriptors: the context may end while they are closed, and another file, even a disk, may then
	// have the same descriptor.
	alarm, alarmWriter, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _, _ = alarm.Close(), alarmWriter.Close() }()
	stop := context.AfterFunc(ctx, func() { _, _ = alarmWriter.Write([]byte{0}) })
	defer stop()
	table, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	defer table.Close()
	fds := []unix.PollFd{{Fd: int32(alarm.Fd()), Events: unix.POLLIN}, {Fd: int32(table.Fd()), Events: unix.POLLPRI}}
	for _, u := range users {
		fd, err := unix.PidfdOpen(u.PID, 0)
		if errors.Is(err, unix.ESRCH) {
			return nil // ended meanwhile
		}
		if err != nil {
			continue // kernels before 5.3
		}
		defer unix.Close(fd)
		fds = append(fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	_, err = unix.Poll(fds, int(recheckInterval.Milliseconds()))
	if errors.Is(err, unix.EINTR) {
		return nil
	}
	return err
}

// users returns the processes with files, directories or mappings on the file system visible at target.
func users(target string) ([]Process, error) {
	var st unix.Stat_t
	if err := unix.Stat(target, &st); err != nil {
		return nil, fmt.Errorf("stat %s: %w", target, err)
	}
	return processesUsing(func(dir string) string {
		return usedBy(dir, uint64(st.Dev), func(path string) bool { return below(path, target) })
	})
}

// occupants returns the users of target and the mounts below it.
func occupants(target string) ([]Process, error) {
	found, err := users(target)
	if err != nil {
		return nil, err
	}
	if target, err = resolve(target); err != nil {
		return nil, err
	}
	all, err := Table()
	for _, m := range all {
		if m.Target != target && strings.HasPrefix(m.Target, strings.TrimSuffix(target, "/")+"/") {
			found = append(found, Process{Command: m.Source, Path: m.Target})
		}
	}
	return found, err
}

// inspections bounds the system calls that inspect the files of processes, which the process or its file system may
// block.
var inspections bounded.Group

// unreadable replaces the path if such a call is blocked.
const unreadable = "which hides its files"

// processesUsing returns the processes for which used, called with their directory in /proc, returns a path, and those
// for which it is blocked.
func processesUsing(used func(dir string) string) ([]Process, error) {
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var users []Process
	for _, dir := range processes {
		path, err := bounded.Call(&inspections, dir, func() (string, error) { return used(dir), nil })
		if errors.Is(err, bounded.ErrHangs) && !errors.Is(err, bounded.ErrTooMany) {
			path = unreadable
		}
		if path != "" {
			users = append(users, process(dir, path, ""))
		}
	}
	sort.Slice(users, func(i, j int) bool { return users[i].PID < users[j].PID })
	return users, nil
}

// descriptorBatch bounds the descriptors of a process in memory, since a job may have a million.
const descriptorBatch = 512

// anyDescriptor reports whether matches returns true for a descriptor of a process, passed as a path in /proc. It
// ignores errors, since processes end meanwhile.
func anyDescriptor(dir string, matches func(link string) bool) bool {
	fds, err := os.Open(filepath.Join(dir, "fd"))
	if err != nil {
		return false
	}
	defer fds.Close()
	for {
		names, err := fds.Readdirnames(descriptorBatch)
		for _, name := range names {
			if matches(filepath.Join(fds.Name(), name)) {
				return true
			}
		}
		if err != nil {
			return false
		}
	}
}

// stat returns what the kernel knows about a file of a process. It does not query the file's file system, which may not
// respond.
func stat(link string) (st unix.Statx_t, ok bool) {
	err := unix.Statx(unix.AT_FDCWD, link, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE, &st)
	return st, err == nil
}

// usedBy returns a path that the process uses on a file system and that counts accepts, or "". It ignores errors, since
// processes end meanwhile.
func usedBy(dir string, dev uint64, counts func(path string) bool) (path string) {
	matches := func(link string) bool {
		if st, ok := stat(link); !ok || unix.Mkdev(st.Dev_major, st.Dev_minor) != dev {
			return false
		}
		to, err := os.Readlink(link)
		if err != nil || !counts(to) {
			return false
		}
		path = to
		return true
	}
	for _, l := range []string{"cwd", "root", "exe"} {
		if matches(filepath.Join(dir, l)) {
			return path
		}
	}
	if anyDescriptor(dir, matches) {
		return path
	}
	maps, err := os.Open(filepath.Join(dir, "maps"))
	if err != nil {
		return ""
	}
	defer maps.Close()
	want := fmt.Sprintf("%02x:%02x", unix.Major(dev), unix.Minor(dev))
	for s := bufio.NewScanner(maps); s.Scan(); {
		fields := strings.Fields(s.Text())
		if len(fields) >= 6 && fields[3] == want && counts(fields[5]) {
			return fields[5]
		}
	}
	return ""
}

// below reports whether a path is inside target. Files may be used through another bind mount of the same file system.
func below(path, target string) bool {
	return path == target || strings.HasPrefix(path, strings.TrimSuffix(target, "/")+"/") ||
		!strings.HasPrefix(path, "/")
}

// closeGrace bounds the wait for the kernel to close the files of an ended process: it writes back dirty pages first,
// while no process has the device open.
const closeGrace = 30 * time.Second

// AwaitIdle waits until an O_EXCL open of the block device succeeds, since a program started by a killed agent may
// still be writing. If ctx ends before, the error names that program.
func AwaitIdle(ctx context.Context, device string) error {
	var unusedSince time.Time // when no process had the device open any more
	for {
		f, err := os.OpenFile(device, os.O_RDONLY|unix.O_EXCL, 0)
		if err == nil {
			return f.Close()
		}
		if !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("open %s exclusively: %w", device, err)
		}
		users, err := openers(device)
		if err != nil {
			return fmt.Errorf("%s is in use: %w", device, err)
		}
		if len(users) > 0 {
			unusedSince = time.Time{}
		} else if unusedSince.IsZero() {
			unusedSince = time.Now()
		}
		isMounted, err := mounted(device)
		if err != nil {
			return err
		}
		if ctx.Err() != nil || isMounted || len(users) == 0 && time.Since(unusedSince) > closeGrace {
			return &BusyError{Target: device, Users: users, Cause: errors.Join(unix.EBUSY, context.Cause(ctx))}
		}
		if len(users) == 0 {
			time.Sleep(10 * time.Millisecond) // the end of write-back causes no event
			continue
		}
		if err := awaitChange(ctx, users); err != nil {
			return fmt.Errorf("wait for %s: %w", device, err)
		}
	}
}

// mounted reports whether the device is mounted. It does not detect swap and stacked devices.
func mounted(device string) (bool, error) {
	number, err := blkdev.NumberOf(device)
	if err != nil {
		return false, err
	}
	all, err := Of(number)
	return len(all) > 0, err
}

// openers returns the processes that have the block device open, under any name.
func openers(device string) ([]Process, error) {
	var want unix.Stat_t
	if err := unix.Stat(device, &want); err != nil {
		return nil, err
	}
	return processesUsing(func(dir string) string {
		if anyDescriptor(dir, func(link string) bool {
			st, ok := stat(link)
			return ok && st.Mode&unix.S_IFMT == unix.S_IFBLK &&
				unix.Mkdev(st.Rdev_major, st.Rdev_minor) == uint64(want.Rdev)
		}) {
			return device
		}
		return ""
	})
}
