// Package unit drives the machine's service manager: systemd over D-Bus, as a thin layer on go-systemd,
// or runit through its own sv program. Both have the same methods, so that a caller declares the few
// it needs and works with either. It also implements the notification protocol by which a service
// tells systemd that it is ready, what it is doing and that it is alive.
//
// Every wait is bounded by a context. Starting, stopping and restarting return when the
// service manager's job has ended, with its result; nothing is polled.
package unit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// ErrAbsent means that there is no service manager to talk to: a container without systemd, or
// a boot too early for it. Callers that can work without one go on; others report it.
var ErrAbsent = errors.New("service manager is not running")

// ErrNotFound means that the service manager has no unit of that name.
var ErrNotFound = errors.New("no such unit")

// ErrCondition means that a start was skipped because a condition of the unit does not hold
// (ConditionPathExists= and the like); the unit is not running.
var ErrCondition = errors.New("a condition of the unit was not met")

// JobError means that a job of the service manager failed.
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
	MainPID int    // 0 when there is none
	// Result names the way in which the last run ended: success, exit-code, signal, oom-kill …
	Result   string
	Restarts int // how often systemd has started it again by itself
	// Began is the time from the start of the kernel until the unit last began to start (CLOCK_MONOTONIC); 0 if that is
	// not known.
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

// full adds the suffix .service to a name without a suffix, as systemctl does.
func full(name string) string {
	for _, suffix := range []string{".service", ".socket", ".target", ".mount", ".timer", ".scope", ".slice", ".path", ".device", ".swap", ".automount"} {
		if strings.HasSuffix(name, suffix) {
			return name
		}
	}
	return name + ".service"
}
