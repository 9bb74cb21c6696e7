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

// alivePath returns the path of the lock that belongs to the status file at path. The agent holds the lock as long as
// it runs. The kernel releases it however the process ends. A pid would not do: containers have their own PID
// namespaces, and pids are reused. The modification time of the file is when the agent was last seen running. Only root
// can open it, because a user who can read a file can hold a read lock, which would prevent the agent's.
func alivePath(path string) string { return vcap.Run(filepath.Dir(path)).Alive() }

// alive is the file of the lock.
type alive struct {
	file   *os.File
	locked bool
}

// openAlive opens the file and tries to lock it.
func openAlive(path string) (*alive, error) {
	file, err := os.OpenFile(alivePath(path), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("status: %w", err)
	}
	a := &alive{file: file}
	return a, a.touch(time.Now())
}

// touch records that the agent is running. It also tries to take the lock if it does not have it, because an earlier
// process may hold it until it ends.
func (a *alive) touch(now time.Time) error {
	if !a.locked {
		a.locked = unix.FcntlFlock(a.file.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}) == nil
	}
	return os.Chtimes(a.file.Name(), now, now)
}

// running reports whether the agent that writes the status file at path is running, and when it was last seen. If there
// is no lock file, it returns true.
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

// States of a process in /proc.
const (
	processGone    = "" // there is no such process
	processUnknown = "?"
	processStopped = "T" // by a signal
	processTraced  = "t" // by a debugger
)

// ProcessStopped reports whether a signal or a debugger has stopped a process.
func ProcessStopped(pid int) bool {
	state, _, ok := processStat(strconv.Itoa(pid))
	return ok && (state == processStopped || state == processTraced)
}

// process returns the state of the process that wrote the document. It compares start times, because another process
// may have the pid by now, and always has in another PID namespace.
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

// Observe reads the document at path. If the agent does not run, or a signal has stopped it, State is NotRunning and
// LastState its last state.
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

// ended returns how the last process of the agent's unit ended, from systemd's SERVICE_RESULT, EXIT_CODE and
// EXIT_STATUS, which the unit writes to a file. It returns nil if that is unknown, or if the status was 0.
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
