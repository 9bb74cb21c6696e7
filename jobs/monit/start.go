package monit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"cambium/internal/atomicfile"
	"cambium/internal/vcap"
)

// UnitName is the name of monit's service on all stemcells.
const UnitName = "monit"

// account is the content of monit.user. It is the same on every machine, because releases rely on it: the galera-agent
// of pxc-release has this password built in. It does not protect monit; the firewall decides which processes can reach
// it.
const account = "vcap:random-password"

// Services has the calls to the service manager that are needed to start monit, in addition to those of Daemon.
type Services interface {
	// Setup registers the service, if the service manager does not know it.
	Setup(ctx context.Context, name string) error
	Running(ctx context.Context, name string) bool
	// Started logs the start of a service that is already running. Stemcell tests search for that message.
	Started(name string)
}

// Op is the kind of a change.
type Op string

// The kinds of change.
const (
	OpWriteAccount Op = "write-account"
	OpWriteUnit    Op = "write-unit"
	OpRemoveFile   Op = "remove-file"
	OpStart        Op = "start"
	OpRestart      Op = "restart"
)

// Change is a step to a machine with a running monit.
type Change struct {
	Op   Op     `json:"op"`
	Path string `json:"path,omitempty"`
}

// String describes the change in one line.
func (c Change) String() string {
	switch c.Op {
	case OpWriteAccount, OpWriteUnit:
		return "write " + c.Path
	case OpRemoveFile:
		return "remove " + c.Path
	}
	return string(c.Op) + " " + UnitName
}

// Runs reports whether the change starts the daemon.
func (c Change) Runs() bool { return c.Op == OpStart || c.Op == OpRestart }

// Starter starts monit at boot.
type Starter struct {
	Dirs     vcap.Dirs
	Client   *Client
	Services Services
	// Program decides which program the unit runs.
	Program DropIn
	// HeldBack returns the monit files of jobs that must not start yet. HoldBack removes them before monit reads them,
	// and returns their paths.
	HeldBack, HoldBack func(ctx context.Context) ([]string, error)
	// AfterStart, if set, is called after monit was started. stateWritten is when monit's state file was last written
	// before. It must not block.
	AfterStart func(stateWritten time.Time)
}

// Plan returns the changes that Start would make.
func (s Starter) Plan(ctx context.Context) (changes []Change, err error) {
	known, err := accountKnown(s.Dirs)
	if err != nil {
		return nil, err
	}
	if !known {
		changes = append(changes, Change{Op: OpWriteAccount, Path: s.Dirs.MonitUser()})
	}
	files, err := s.HeldBack(ctx)
	if err != nil {
		return changes, err
	}
	for _, path := range files {
		changes = append(changes, Change{Op: OpRemoveFile, Path: path})
	}
	other, err := s.Program.differs()
	if err != nil {
		return changes, err
	}
	if other {
		changes = append(changes, s.Program.change())
	}
	switch running := s.Services.Running(ctx, UnitName); {
	case !running:
		changes = append(changes, Change{Op: OpStart})
	case !known || other:
		changes = append(changes, Change{Op: OpRestart})
	}
	return changes, nil
}

// Start writes monit's account, keeps stopped jobs stopped, and makes sure that a daemon with the account is running.
// It returns the changes. If only the agent was restarted, there are none.
func (s Starter) Start(ctx context.Context) (made []Change, err error) {
	running := make(chan bool, 1)
	go func() { running <- s.Services.Running(ctx, UnitName) }() // systemd takes as long as the disk
	written, err := writeAccount(s.Dirs)
	if err != nil {
		return nil, err
	}
	if written {
		made = append(made, Change{Op: OpWriteAccount, Path: s.Dirs.MonitUser()})
	}
	removed, err := s.HoldBack(ctx)
	for _, path := range removed {
		made = append(made, Change{Op: OpRemoveFile, Path: path})
	}
	if err != nil {
		return made, err
	}
	other, err := s.Program.differs()
	if err != nil {
		return made, err
	}
	runs := <-running
	var unmonitored map[string]bool
	if other && runs {
		if unmonitored, err = s.Program.before(ctx, s.Client); err != nil {
			return made, err
		}
	}
	if other {
		if err := s.Program.apply(ctx); err != nil {
			return made, err
		}
		made = append(made, s.Program.change())
	}
	if runs {
		if !written && !other {
			s.Services.Started(UnitName)
			return made, nil
		}
		// It has read another account when it started, or is another program. Reload replaces the daemon alone, and
		// waits until one answers that knows the new account.
		made = append(made, Change{Op: OpRestart})
		if err := s.Client.Reload(ctx); err != nil {
			return made, err
		}
		return made, s.Program.after(ctx, s.Client, unmonitored)
	}
	if err := s.Services.Setup(ctx, UnitName); err != nil {
		return made, err
	}
	stateWritten := stateWritten("/", s.Dirs)
	made = append(made, Change{Op: OpStart})
	if err := s.Client.Daemon.Start(ctx, UnitName); err != nil {
		return made, err
	}
	if s.AfterStart != nil {
		s.AfterStart(stateWritten)
	}
	return made, nil
}

// accountKnown reports whether monit.user has the account.
func accountKnown(dirs vcap.Dirs) (bool, error) {
	have, err := os.ReadFile(dirs.MonitUser())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("monit account: %w", err)
	}
	return bytes.Equal(have, []byte(account)), nil
}

// writeAccount writes the account to monit.user, unless it is there, and reports whether it has written.
func writeAccount(dirs vcap.Dirs) (written bool, err error) {
	known, err := accountKnown(dirs)
	if err != nil {
		return false, err
	}
	if known {
		return false, os.Chmod(dirs.MonitUser(), 0o600)
	}
	if err := os.MkdirAll(dirs.MonitJobs(), 0o700); err != nil {
		return false, fmt.Errorf("monit account: %w", err)
	}
	if err := atomicfile.Write(dirs.MonitUser(), []byte(account), 0o600); err != nil {
		return false, fmt.Errorf("monit account: %w", err)
	}
	return true, nil
}
