// Package pidfile reads the pid files of jobs and watches their processes. It sends no signals, because a pid file may
// name any process, even init.
package pidfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"cambium/internal/bounded"
)

// maxSize is larger than any number needs.
const maxSize = 64

// reads bounds reads of files in directories that jobs can write to.
var reads bounded.Group

// local lists the file systems on which a pid file may be. On others, such as procfs, FUSE or NFS, another process or
// machine decides what a read returns, and when.
var local = []int64{unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC,
	zfsSuperMagic, unix.TMPFS_MAGIC, unix.RAMFS_MAGIC, unix.OVERLAYFS_SUPER_MAGIC}

const zfsSuperMagic = 0x2fc12fc1

// Read returns the pid in a pid file: its first word, or 0 if that is not a positive number. If the file does not
// exist, the error matches os.ErrNotExist.
func Read(path string) (int, error) {
	text, err := bounded.Call(&reads, path, func() (string, error) { return content(path) })
	if err != nil {
		return 0, err
	}
	words := strings.Fields(text)
	if len(words) == 0 {
		return 0, nil
	}
	pid, err := strconv.ParseInt(words[0], 10, 32)
	if err != nil || pid < 0 {
		return 0, nil
	}
	return int(pid), nil
}

// content reads a file in a directory that a job can write to. Opening it could block (a FIFO) or have an effect (a
// link to a watchdog device), so the file type is checked first, with an O_PATH descriptor.
func content(path string) (string, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fd) }() // O_PATH, never written
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return "", &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return "", fmt.Errorf("%s is not a regular file", path)
	}
	var on unix.Statfs_t
	if err := unix.Fstatfs(fd, &on); err != nil {
		return "", &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	if !slices.Contains(local, int64(on.Type)) {
		return "", fmt.Errorf(
			"%s is not read: a pid file must be on tmpfs or a local disk, not on a file system of type %#x", path,
			on.Type)
	}
	// Through /proc, so that it is the same file even if the name was replaced. A lease of the job on it would hold an
	// open without O_NONBLOCK up for 45 seconds.
	again := fmt.Sprintf("/proc/self/fd/%d", fd)
	opened, err := unix.Open(again, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &os.PathError{Op: "open", Path: path, Err: err}
	}
	file := os.NewFile(uintptr(opened), path)
	defer func() { _ = file.Close() }() // read only
	text, err := io.ReadAll(io.LimitReader(file, maxSize))
	return string(text), err
}

// Alive reports whether a process of any user exists. A zombie does not count.
func Alive(pid int) bool {
	if pid <= 0 || errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ESRCH)
	}
	// The name of the program is in parentheses and may hold anything.
	_, rest, _ := strings.Cut(string(stat[max(strings.LastIndexByte(string(stat), ')'), 0):]), " ")
	return !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X")
}

// Watch waits for the end of a process.
type Watch struct {
	Pid  int
	file *os.File
}

// Follow calls ended when the process has ended, unless the watch is closed before. If there is no such process, the
// error matches os.ErrProcessDone.
func Follow(pid int, ended func()) (*Watch, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return nil, fmt.Errorf("process %d: %w", pid, os.ErrProcessDone)
	}
	if err != nil {
		return nil, fmt.Errorf("watch process %d: %w", pid, err)
	}
	// A file in non-blocking mode is waited for by the runtime, without a thread.
	w := &Watch{Pid: pid, file: os.NewFile(uintptr(fd), "pidfd")}
	raw, err := w.file.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, w.file.Close())
	}
	go func() {
		err := raw.Read(func(fd uintptr) bool {
			fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			n, err := unix.Poll(fds, 0)
			return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
		})
		if err == nil {
			ended()
		}
	}()
	return w, nil
}

// Close stops the watch.
func (w *Watch) Close() {
	if w != nil {
		_ = w.file.Close() // nothing was written
	}
}

// Reason describes how the process ended, once its parent has waited for it. For a process that is not a child, that
// requires Linux 6.15.
func (w *Watch) Reason() string {
	const unknown = "ended unexpectedly"
	raw, err := w.file.SyscallConn()
	if err != nil {
		return unknown
	}
	info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = unix.IoctlPidfdInfo(int(fd), &info) }); err != nil ||
		failed != nil || info.Mask&unix.PIDFD_INFO_EXIT == 0 {
		return unknown
	}
	if status := unix.WaitStatus(info.Exit_code); status.Signaled() {
		return "killed by " + unix.SignalName(status.Signal())
	}
	return fmt.Sprintf("exit status %d", unix.WaitStatus(info.Exit_code).ExitStatus())
}
