package device

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Await calls ready until it says true or fails, again after every kernel event about a
// device and after every change in the directories (or, while they are missing, in their
// nearest parents). It ends with the context's cause.
func Await(ctx context.Context, dirs []string, ready func() (bool, error)) error {
	if ok, err := ready(); ok || err != nil {
		return err
	}
	w, err := newWatch()
	if err != nil {
		return err
	}
	defer w.close()
	stop := context.AfterFunc(ctx, w.wake)
	defer stop()
	for {
		// The watch is added before the state is read, so that no event is missed in between.
		w.follow(dirs)
		if ok, err := ready(); ok || err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := w.wait(); err != nil {
			return err
		}
	}
}

// watch joins the two sources of device events: netlink messages of the kernel (uevents), and
// inotify for the nodes and links that udev makes.
type watch struct {
	inotify, uevent int
	// alarm and alarmWriter are the ends of a pipe. They are files and not descriptors: the context may end while the
	// watch is closed, and a descriptor of the same number may by then be a disk.
	alarm, alarmWriter *os.File
}

func newWatch() (*watch, error) {
	w := &watch{inotify: -1, uevent: -1}
	var err error
	if w.alarm, w.alarmWriter, err = os.Pipe(); err != nil {
		return nil, fmt.Errorf("watch devices: %w", err)
	}
	if w.inotify, err = unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK); err != nil {
		w.close()
		return nil, fmt.Errorf("watch devices: %w", err)
	}
	// Without netlink (some containers) inotify alone has to do.
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err == nil {
		if unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1}) == nil {
			w.uevent = fd
		} else {
			_ = unix.Close(fd)
		}
	}
	return w, nil
}

// follow adds watches, which is idempotent; a directory that appears later is caught through
// its parent.
func (w *watch) follow(dirs []string) {
	const mask = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_DELETE | unix.IN_ATTRIB | unix.IN_ONLYDIR
	for _, dir := range dirs {
		for {
			if _, err := unix.InotifyAddWatch(w.inotify, dir, mask); err == nil || dir == "/" || dir == "." {
				break
			}
			dir = filepath.Dir(dir)
		}
	}
}

func (w *watch) wake() { _, _ = w.alarmWriter.Write([]byte{0}) }

func (w *watch) wait() error {
	fds := []unix.PollFd{{Fd: int32(w.alarm.Fd()), Events: unix.POLLIN}, {Fd: int32(w.inotify), Events: unix.POLLIN}}
	if w.uevent >= 0 {
		fds = append(fds, unix.PollFd{Fd: int32(w.uevent), Events: unix.POLLIN})
	}
	for {
		_, err := unix.Poll(fds, -1)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("watch devices: %w", err)
		}
		break
	}
	// What exactly happened does not matter: the state is read anew. ENOBUFS only says that
	// there was much of it.
	var drop [8192]byte
	for _, p := range fds[1:] {
		for p.Revents != 0 {
			if n, err := unix.Read(int(p.Fd), drop[:]); (n <= 0 || err != nil) && !errors.Is(err, unix.ENOBUFS) {
				break
			}
		}
	}
	return nil
}

func (w *watch) close() {
	_, _ = w.alarm.Close(), w.alarmWriter.Close()
	for _, fd := range []int{w.inotify, w.uevent} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
