package monit

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// alive reports whether the process of a service runs; if that cannot be known, it does.
func (c *Client) alive(service string) bool {
	pidfile := c.pidfile(service)
	if pidfile == "" {
		return true
	}
	text, err := readPidfile(pidfile)
	if err != nil {
		return !errors.Is(err, os.ErrNotExist)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil || pid <= 0 {
		return false
	}
	return !errors.Is(unix.Kill(pid, 0), unix.ESRCH)
}

// maxPidfile is more than any number takes.
const maxPidfile = 64

// readPidfile reads a file in a directory that the job can write to. Opening it can block (a FIFO) or have an effect (a
// link to a watchdog's device), so an O_PATH descriptor tells the file type first.
func readPidfile(path string) (string, error) {
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
	// Through /proc, so that it is the same file even if the name was replaced.
	opened, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &os.PathError{Op: "open", Path: path, Err: err}
	}
	file := os.NewFile(uintptr(opened), path)
	defer func() { _ = file.Close() }() // read only
	text, err := io.ReadAll(io.LimitReader(file, maxPidfile))
	return string(text), err
}
