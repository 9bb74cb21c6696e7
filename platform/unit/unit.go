// Package unit drives the machine's service manager: systemd over D-Bus, or runit through its
// own sv program. Both have the same methods, so that a caller declares the few it needs and
// does not care. It also speaks the notification protocol by which a service tells systemd
// that it is ready, what it is doing and that it is alive.
//
// Every call ends when its context does. Starting, stopping and restarting return when the
// service manager's job has ended, with its result; nothing is polled.
package unit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// ErrAbsent means that there is no service manager to talk to: a container without systemd, or
// a boot too early for it. Callers that can do without go on; others report it.
var ErrAbsent = errors.New("service manager is not running")

// ErrNotFound means that the service manager knows no unit of that name.
var ErrNotFound = errors.New("no such unit")

// ErrCondition means that a start was skipped because a condition of the unit does not hold
// (ConditionPathExists= and the like); the unit is not running.
var ErrCondition = errors.New("a condition of the unit does not hold")

// JobError means that the service manager tried and did not succeed.
type JobError struct {
	Job    string // start, stop, restart, reload
	Unit   string
	Result string // failed, timeout, dependency, canceled …
	State  State  // what the unit was in afterwards
}

func (e *JobError) Error() string {
	text := fmt.Sprintf("%s %s: %s", e.Job, e.Unit, e.Result)
	if e.State.Active != "" {
		text += fmt.Sprintf(" (now %s, %s)", e.State.Active, e.State.Sub)
	}
	return text
}

// State is what the service manager says of a unit.
type State struct {
	Load    string // loaded, not-found, masked …
	Active  string // active, inactive, failed, activating, deactivating …
	Sub     string // running, dead, exited …
	MainPID int    // 0 when there is none
	// Result is why a service ended last: success, exit-code, signal, oom-kill …
	Result string
}

// Running reports whether the unit is up or coming up.
func (s State) Running() bool {
	return s.Active == "active" || s.Active == "activating" || s.Active == "reloading"
}

// Booted reports whether systemd is the init of the system below root.
func Booted(root string) bool {
	info, err := os.Lstat(filepath.Join(root, "run/systemd/system"))
	return err == nil && info.IsDir()
}

// full adds the suffix that systemctl lets people leave out.
func full(name string) string {
	for _, suffix := range []string{".service", ".socket", ".target", ".mount", ".timer", ".scope", ".slice", ".path", ".device", ".swap", ".automount"} {
		if strings.HasSuffix(name, suffix) {
			return name
		}
	}
	return name + ".service"
}
