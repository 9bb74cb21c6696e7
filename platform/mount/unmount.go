package mount

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cambium/internal/blkdev"
)

// Process is a process that keeps a mount busy.
type Process struct {
	PID     int
	Command string
	Path    string // the first file found that it uses on the mount, or where it has it mounted
	// Namespace is its mount namespace, if that is not the agent's.
	Namespace string
}

func (p Process) String() string {
	if p.Namespace != "" {
		return fmt.Sprintf("%s (pid %d, %s in mount namespace %s)", p.Command, p.PID, p.Path, p.Namespace)
	}
	return fmt.Sprintf("%s (pid %d, %s)", p.Command, p.PID, p.Path)
}

// BusyError means that the mount was still in use when the context ended.
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
	who := strings.Join(names, ", ")
	if who == "" {
		who = "no process of this machine; another mount is on top of it, or it is exported"
	}
	return fmt.Sprintf("%s is busy: %s: %v", e.Target, who, e.Cause)
}

func (e *BusyError) Unwrap() error { return e.Cause }

// Unmount unmounts the topmost mount at target; where nothing is mounted it does nothing. While the
// mount is busy it waits for processes to end and for mounts to change, until ctx ends.
func Unmount(ctx context.Context, target string) error {
	return UnmountReporting(ctx, target, func([]Process) {})
}

// UnmountReporting is Unmount that reports the processes that keep the mount busy, whenever they
// change.
func UnmountReporting(ctx context.Context, target string, report func([]Process)) error {
	target, err := resolve(target)
	if err != nil {
		return fmt.Errorf("unmount: %w", err)
	}
	err = whileBusy(ctx, target, report, func() error {
		if _, there, err := At(target); err != nil || !there {
			return err
		}
		return unix.Unmount(target, unix.UMOUNT_NOFOLLOW)
	})
	var busy *BusyError
	if err != nil && !errors.As(err, &busy) {
		return fmt.Errorf("unmount %s: %w", target, err)
	}
	return err
}

// recheckInterval bounds how late it is noticed that a process has closed a file: unlike the end of
// a process or a change of mounts, that causes no event.
const recheckInterval = time.Second

func awaitChange(ctx context.Context, users []Process) error {
	var alarm [2]int
	if err := unix.Pipe2(alarm[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return err
	}
	defer func() { _ = unix.Close(alarm[0]); _ = unix.Close(alarm[1]) }()
	stop := context.AfterFunc(ctx, func() { _, _ = unix.Write(alarm[1], []byte{0}) })
	defer stop()
	table, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	defer table.Close()
	fds := []unix.PollFd{{Fd: int32(alarm[0]), Events: unix.POLLIN}, {Fd: int32(table.Fd()), Events: unix.POLLPRI}}
	for _, u := range users {
		fd, err := unix.PidfdOpen(u.PID, 0)
		if errors.Is(err, unix.ESRCH) {
			return nil // it has ended meanwhile
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

// Users finds the processes that have files, directories or mappings on the file system that
// is visible at target.
func Users(target string) ([]Process, error) {
	var st unix.Stat_t
	if err := unix.Stat(target, &st); err != nil {
		return nil, fmt.Errorf("stat %s: %w", target, err)
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var users []Process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		dir := filepath.Join("/proc", e.Name())
		if path := usedBy(dir, st.Dev, func(path string) bool { return below(path, target) }); path != "" {
			name, _ := os.ReadFile(filepath.Join(dir, "comm")) // it may have ended; then only the pid is named
			users = append(users, Process{PID: pid, Command: strings.TrimSpace(string(name)), Path: path})
		}
	}
	sort.Slice(users, func(i, j int) bool { return users[i].PID < users[j].PID })
	return users, nil
}

// usedBy returns a path that counts and that the process uses on a file system, if any. Errors are ignored: processes
// end meanwhile.
func usedBy(dir string, dev uint64, counts func(path string) bool) string {
	links := []string{"cwd", "root", "exe"}
	if fds, err := os.ReadDir(filepath.Join(dir, "fd")); err == nil {
		for _, fd := range fds {
			links = append(links, "fd/"+fd.Name())
		}
	}
	for _, l := range links {
		var st unix.Stat_t
		link := filepath.Join(dir, l)
		if unix.Stat(link, &st) != nil || st.Dev != dev {
			continue
		}
		if path, err := os.Readlink(link); err == nil && counts(path) {
			return path
		}
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

// below excludes files of the same file system that are used through another bind mount.
func below(path, target string) bool {
	return path == target || strings.HasPrefix(path, strings.TrimSuffix(target, "/")+"/") || !strings.HasPrefix(path, "/")
}

// closeGrace is how long the kernel may take to close the files of an ended process: it first writes
// back dirty pages, and no process holds the device meanwhile.
const closeGrace = 30 * time.Second

// AwaitIdle waits until an O_EXCL open of the block device succeeds. A program that a killed agent
// had started may still be writing; the error names it when ctx ends.
func AwaitIdle(ctx context.Context, device string) error {
	var unusedSince time.Time // no process has the device open since then
	for {
		f, err := os.OpenFile(device, os.O_RDONLY|unix.O_EXCL, 0)
		if err == nil {
			return f.Close()
		}
		if !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("open %s for exclusive use: %w", device, err)
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
			time.Sleep(10 * time.Millisecond) // the kernel sends no event when write-back is complete
			continue
		}
		if err := awaitChange(ctx, users); err != nil {
			return fmt.Errorf("wait for %s: %w", device, err)
		}
	}
}

// mounted reports whether the device is mounted. Swap and stacked devices are not detected.
func mounted(device string) (bool, error) {
	number, err := blkdev.NumberOf(device)
	if err != nil {
		return false, err
	}
	all, err := Of(number)
	return len(all) > 0, err
}

func openers(device string) ([]Process, error) {
	var want unix.Stat_t
	if err := unix.Stat(device, &want); err != nil {
		return nil, err
	}
	links, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return nil, err
	}
	seen := map[int]bool{}
	var users []Process
	for _, link := range links {
		var st unix.Stat_t
		if unix.Stat(link, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK || st.Rdev != want.Rdev {
			continue
		}
		dir := filepath.Dir(filepath.Dir(link))
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || seen[pid] {
			continue
		}
		seen[pid] = true
		name, _ := os.ReadFile(filepath.Join(dir, "comm")) // it may have ended meanwhile
		users = append(users, Process{PID: pid, Command: strings.TrimSpace(string(name)), Path: device})
	}
	return users, nil
}
