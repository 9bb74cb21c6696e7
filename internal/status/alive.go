package status

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"cambium/internal/vcap"
)

// alivePath is the lock that belongs to the status file at path. The agent holds it for as long as its process exists:
// the kernel releases the lock however the process ends. A process id would not do: containers have their own PID
// namespaces, and ids are reused. Its modification time is when the agent was last seen running. Only root can open it:
// whoever can read a file can hold a read lock on it, which would keep the agent's away.
func alivePath(path string) string { return vcap.Run(filepath.Dir(path)).Alive() }

// alive holds the lock.
type alive struct {
	file   *os.File
	locked bool
}

// openAlive opens the file and tries to lock it. One that others may have open, of an earlier version, is replaced.
func openAlive(path string) (*alive, error) {
	name := alivePath(path)
	info, err := os.Lstat(name)
	if err == nil && info.Mode() != 0o600 {
		err = os.Remove(name)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("status: %w", err)
	}
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("status: %w", err)
	}
	a := &alive{file: file}
	return a, a.touch(time.Now())
}

// touch records that the agent runs. The lock may still be held by an earlier process that is about to end;
// it is tried again with each touch.
func (a *alive) touch(now time.Time) error {
	if !a.locked {
		a.locked = unix.FcntlFlock(a.file.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}) == nil
	}
	return os.Chtimes(a.file.Name(), now, now)
}

// running reports whether the agent that writes the status file at path exists, and when it was last seen.
// Without the lock's file it is presumed to.
func running(path string) (is bool, seen time.Time, err error) {
	file, err := os.Open(alivePath(path))
	if errors.Is(err, fs.ErrNotExist) {
		return true, time.Time{}, nil
	}
	if err != nil {
		return false, seen, fmt.Errorf("status: %w", err)
	}
	defer func() { _ = file.Close() }() // only read from
	// Tests the lock without taking it: a reader must not block an agent that starts.
	lock := unix.Flock_t{Type: unix.F_RDLCK}
	err = unix.FcntlFlock(file.Fd(), unix.F_OFD_GETLK, &lock)
	info, statErr := file.Stat()
	if err := errors.Join(err, statErr); err != nil {
		return false, seen, fmt.Errorf("status: %w", err)
	}
	return lock.Type != unix.F_UNLCK, info.ModTime().UTC(), nil
}

// Observe returns the document at path and whether its agent still runs: one that does not is NotRunning, with
// what it was as LastState. To a user other than root, only one that recorded its end is; others are Unchecked.
func Observe(path string) (Document, error) {
	d, err := Read(path)
	if err != nil {
		return d, err
	}
	is, seen, err := running(path)
	if errors.Is(err, fs.ErrPermission) {
		d.Unchecked = d.Stopped == nil
		is, err = d.Unchecked, nil
	}
	if err != nil || is {
		return d, err
	}
	if d.Stopped != nil {
		seen = *d.Stopped
	}
	d.LastState, d.State, d.Stopped = d.State, NotRunning, &seen
	return d, nil
}
