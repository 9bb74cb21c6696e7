package status

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"cambium/internal/vcap"
)

// States of a process in /proc.
const (
	processGone    = "" // there is no such process
	processUnknown = "?"
	processZombie  = "Z" // it has ended
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
	if d.Origin == nil || d.BootID != bootID() { // such as a file that was copied from another machine
		return processUnknown
	}
	state, ticks, ok := processStat(strconv.Itoa(d.PID))
	switch {
	case ok && ticks*int64(tick) == d.Origin.BootTime+d.Origin.Process && state != processZombie:
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
	process := d.process()
	gone := d.Stopped != nil || process == processGone
	d.Halted = !gone && (process == processStopped || process == processTraced)
	if !gone && !d.Halted {
		return d, nil
	}
	if info, err := os.Stat(path); err == nil && d.Stopped == nil {
		seen := info.ModTime().UTC()
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
