// Package unit controls the machine's service manager: systemd over D-Bus, with go-systemd, or runit with its program
// sv. Both types have the same methods, so that a caller can declare an interface with those it needs. The package also
// implements systemd's notification protocol.
//
// All waits are bounded by a context. Start, Stop and Restart return at the end of the service manager's job, with its
// result. Nothing is polled.
package unit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// ErrAbsent is returned if no service manager is running: in a container without systemd, or early in a boot. Callers
// decide whether they can do without.
var ErrAbsent = errors.New("service manager is not running")

// ErrNotFound is returned if the service manager has no unit of that name.
var ErrNotFound = errors.New("no such unit")

// ErrCondition is returned if a start was skipped because of a condition of the unit, such as ConditionPathExists=. The
// unit is not running.
var ErrCondition = errors.New("a condition of the unit was not met")

// JobError is the error of a failed job of the service manager.
type JobError struct {
	Job    string // start, stop, restart, reload
	Unit   string
	Result string // failed, timeout, dependency, canceled …
	State  State  // the unit's state afterwards
}

func (e *JobError) Error() string {
	text := fmt.Sprintf("%s %s: %s", e.Job, e.Unit, e.Result)
	if e.State.Active != "" {
		text += fmt.Sprintf(" (now %s, %s)", e.State.Active, e.State.Sub)
	}
	return text
}

// State is a unit's state according to the service manager.
type State struct {
	Load    string // loaded, not-found, masked …
	Active  string // active, inactive, failed, activating, deactivating …
	Sub     string // running, dead, exited …
	MainPID int    // 0 if there is none
	// Result is the way in which the last run ended: success, exit-code, signal, oom-kill …
	Result   string
	Restarts int // automatic restarts by systemd
	// Began is the time from the start of the kernel until the unit last began to start (CLOCK_MONOTONIC), or 0 if
	// unknown.
	Began time.Duration
}

// Running reports whether the unit is active or becoming active.
func (s State) Running() bool {
	return s.Active == "active" || s.Active == "activating" || s.Active == "reloading"
}

// Booted reports whether systemd is the init of the system below root.
func Booted(root string) bool {
	info, err := os.Lstat(filepath.Join(root, "run/systemd/system"))
	return err == nil && info.IsDir()
}

// full adds the suffix .service to a name without one, as systemctl does.
func full(name string) string {
	for _, suffix := range []string{".service", ".socket", ".target", ".mount", ".timer", ".scope", ".slice", ".path",
		".device", ".swap", ".automount"} {
		if strings.HasSuffix(name, suffix) {
			return name
		}
	}
	return name + ".service"
}
