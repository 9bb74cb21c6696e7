// Package watch waits for changes of files by inotify, for files that may not exist yet and
// whose directories may not either. It replaces polling; it does not say what changed: callers
// look again whenever it wakes them.
package watch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// interesting are the events after which a path may have appeared, vanished or changed. Files
// written by atomicfile arrive by rename.
const interesting = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE | unix.IN_CLOSE_WRITE |
	unix.IN_ATTRIB | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

// Until calls look until it returns true or an error, first at once and then after every change
// in the directory of path, or in the nearest parent that exists.
func Until(ctx context.Context, path string, look func() (bool, error)) (err error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("watch %s: %w", path, err)
	}
	events := os.NewFile(uintptr(fd), "inotify")
	// One descriptor for all rounds: closing it waits for an SRCU grace period, which takes tens of milliseconds.
	defer func() { err = errors.Join(err, events.Close()) }()
	for {
		// The watch comes before the look, so that no change can fall between them. Adding it again changes nothing,
		// or adds a directory that was made meanwhile.
		if err := addNearest(fd, filepath.Dir(path)); err != nil {
			return fmt.Errorf("watch %s: %w", path, err)
		}
		if done, err := look(); done || err != nil {
			return err
		}
		if err := next(ctx, events); err != nil {
			return fmt.Errorf("watch %s: %w", path, err)
		}
	}
}

func addNearest(fd int, dir string) error {
	for {
		_, err := unix.InotifyAddWatch(fd, dir, interesting)
		if err == nil {
			return nil
		}
		parent := filepath.Dir(dir)
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) || parent == dir {
			return err
		}
		dir = parent
	}
}

// next waits for one batch of events.
func next(ctx context.Context, events *os.File) error {
	stop := context.AfterFunc(ctx, func() { _ = events.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buffer := make([]byte, 4096)
	_, err := events.Read(buffer)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
