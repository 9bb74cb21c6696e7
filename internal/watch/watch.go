// Package watch waits for changes of files (inotify) and for the kernel's events about devices (uevents). The files
// need not exist yet, nor their directories. It replaces polling: it does not report what has changed, so callers check
// again after each event.
package watch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"cambium/internal/bounded"
)

// names lists the events after which a path may have appeared or vanished. Files written by atomicfile are renamed into
// place.
const names = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE | unix.IN_ATTRIB |
	unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

// Until calls look at once, and then after every change in the directory of path, or in the nearest existing parent. It
// returns when look returns true or an error, or when ctx ends.
func Until(ctx context.Context, path string, look func() (bool, error)) error {
	return until(ctx, 0, []string{filepath.Dir(path)}, look)
}

// UntilDevice is like Until, but calls look after every change in the directories and after every uevent.
func UntilDevice(ctx context.Context, dirs []string, look func() (bool, error)) error {
	if done, err := look(); done || err != nil {
		return err
	}
	return until(ctx, Kernel, dirs, look)
}

func until(ctx context.Context, groups uint32, dirs []string, look func() (bool, error)) error {
	l, err := Listen(groups, func([]byte) bool { return true })
	if err != nil {
		return err
	}
	defer l.Close()
	for {
		// The watch comes before the look, so that no change can fall between them. Adding it again changes nothing,
		// or adds a directory that was made meanwhile.
		for _, dir := range dirs {
			if err := l.Add(dir); err != nil && groups == 0 {
				return err
			}
		}
		if done, err := look(); done || err != nil {
			return err
		}
		select {
		case <-l.Events:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Groups of uevents: sent by the kernel, and sent by udev after it has processed them.
const (
	Kernel uint32 = 1 << iota
	Udev
)

// Listener watches directories and devices.
type Listener struct {
	// Events receives a token after each relevant event. Unread tokens do not add up.
	Events chan struct{}

	inotify int
	mask    uint32
	files   []*os.File
	reading sync.WaitGroup
}

// Listen returns a listener for groups of uevents; 0 means none. relevant is called with each message and decides
// whether it counts.
func Listen(groups uint32, relevant func(message []byte) bool) (*Listener, error) {
	// One descriptor as long as it is needed: closing it waits for an SRCU grace period, which takes tens of
	// milliseconds.
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("inotify: %w", err)
	}
	l := &Listener{Events: make(chan struct{}, 1), inotify: fd, mask: names}
	l.follow(fd, relevant)
	if groups == 0 {
		l.mask |= unix.IN_CLOSE_WRITE // not in /dev: programs close /dev/null all the time
		return l, nil
	}
	// Without netlink (some containers) inotify alone has to do.
	const flags = unix.SOCK_RAW | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
	if fd, err := unix.Socket(unix.AF_NETLINK, flags, unix.NETLINK_KOBJECT_UEVENT); err == nil {
		l.follow(fd, relevant)
		_ = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups})
	}
	return l, nil
}

// follow reads the messages of a descriptor until it is closed.
func (l *Listener) follow(fd int, relevant func([]byte) bool) {
	file := os.NewFile(uintptr(fd), "events")
	l.files = append(l.files, file)
	l.reading.Go(func() {
		buffer := make([]byte, 16<<10)
		for {
			n, err := file.Read(buffer)
			lost := errors.Is(err, unix.ENOBUFS) // there were too many
			if err != nil && !lost {
				return
			}
			if lost || relevant(buffer[:n]) {
				select {
				case l.Events <- struct{}{}:
				default: // a token is there already
				}
			}
		}
	})
}

// adds bounds calls on paths that jobs can influence, such as those of their pid files.
var adds bounded.Group

// Add watches a directory or, while it does not exist, its nearest existing parent.
func (l *Listener) Add(dir string) error {
	// A call that is left behind ends with the error of a closed descriptor, or adds a watch that nobody misses.
	_, err := bounded.Call(&adds, dir, func() (struct{}, error) { return struct{}{}, l.add(dir) })
	return err
}

func (l *Listener) add(dir string) error {
	for at, child := dir, ""; ; {
		_, err := unix.InotifyAddWatch(l.inotify, at, l.mask)
		parent := filepath.Dir(at)
		switch {
		case err == nil && !isDir(child):
			return nil
		case err == nil: // child was made before its parent was listened to
			at, child = dir, ""
		case !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) || parent == at:
			return fmt.Errorf("inotify: %s: %w", at, err)
		default:
			at, child = parent, at
		}
	}
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// Close stops the listener.
func (l *Listener) Close() {
	for _, file := range l.files {
		_ = file.Close() // it was read only
	}
	l.reading.Wait()
}
