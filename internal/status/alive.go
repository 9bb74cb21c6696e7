package status

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cambium/internal/vcap"
)

// alivePath returns the path of the lock that belongs to the status file at path. The agent holds it for as long as its
// process exists: the kernel releases the lock however the process ends. A process id would not do: containers have
// their own PID namespaces, and ids are reused. The file's modification time tells when the agent was last seen
// running. Only root can open it: any user who can read a file can hold a read lock on it, which would keep the agent's
// away.
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
// it is retried with each touch.
func (a *alive) touch(now time.Time) error {
	if !a.locked {
		a.locked = unix.FcntlFlock(a.file.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}) == nil
	}
	return os.Chtimes(a.file.Name(), now, now)
}

// running reports whether the agent that writes the status file at path exists, and when it was last seen.
// Without the lock's file it is presumed to.
func running(path string) (is bool, seen time.Time, err error) {
	name := alivePath(path)
	info, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return true, seen, nil
	}
	if err != nil {
		return false, seen, fmt.Errorf("status: %w", err)
	}
	seen = info.ModTime().UTC()
	file, err := os.Open(name)
	if err != nil {
		return false, seen, fmt.Errorf("status: %w", err)
	}
	defer func() { _ = file.Close() }() // only read from
	// Tests the lock without taking it: a reader must not block an agent that starts.
	lock := unix.Flock_t{Type: unix.F_RDLCK}
	if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_GETLK, &lock); err != nil {
		return false, seen, fmt.Errorf("status: %w", err)
	}
	return lock.Type != unix.F_UNLCK, seen, nil
}

// The states of a process in /proc that concern its agent.
const (
	processGone    = "" // there is none
	processUnknown = "?"
	processStopped = "T" // by a signal
	processTraced  = "t" // by a debugger
)

// ProcessStopped reports whether a process was stopped by a signal, or by a debugger.
func ProcessStopped(pid int) bool {
	state, _, ok := processStat(strconv.Itoa(pid))
	return ok && (state == processStopped || state == processTraced)
}

// process is the state of the process that wrote the document. Its id may belong to another one by now, and in another
// PID namespace it always does.
func (d Document) process() string {
	if d.Origin == nil || d.BootID != bootID() {
		return processUnknown
	}
	state, ticks, ok := processStat(strconv.Itoa(d.PID))
	switch {
	case ok && ticks*int64(tick) == d.Origin.BootTime+d.Origin.Process:
		return state
	case ok || unix.Kill(d.PID, 0) == unix.ESRCH: // /proc may hide the processes of other users
		return processGone
	}
	return processUnknown
}

// Observe returns the document at path and whether its agent still runs: one that does not, or that was stopped by a
// signal, is NotRunning, with what it was as LastState.
func Observe(path string) (Document, error) {
	d, err := Read(path)
	if err != nil {
		return d, err
	}
	d.Ended = ended(path)
	is, seen, err := running(path)
	process := d.process()
	if errors.Is(err, fs.ErrPermission) { // the lock is for root
		is, err = d.Stopped == nil && process != processGone, nil
	}
	if err != nil {
		return d, err
	}
	d.Halted = is && (process == processStopped || process == processTraced)
	if is && !d.Halted {
		return d, nil
	}
	if d.Stopped == nil {
		d.Stopped = &seen
	}
	d.LastState, d.State = d.State, NotRunning
	return d, nil
}

// ended reads what the unit has written of the last process that ended: systemd's SERVICE_RESULT, EXIT_CODE and
// EXIT_STATUS. It is nil if that is not known, and for one that ended on purpose, with status 0.
func ended(path string) *End {
	name := vcap.Run(filepath.Dir(path)).Ended()
	data, err := os.ReadFile(name)
	words := strings.Fields(string(data))
	if err != nil || len(words) != 3 {
		return nil
	}
	info, err := os.Stat(name)
	if err != nil {
		return nil
	}
	result, code, exit := words[0], words[1], words[2]
	e := &End{How: fmt.Sprintf("%s, %s by %s", result, code, exit), At: info.ModTime().UTC()}
	if code == "exited" {
		if exit == "0" {
			return nil
		}
		e.How = fmt.Sprintf("%s, exited with %s", result, exit)
	}
	return e
}
