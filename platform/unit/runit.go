package unit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"cambium/internal/atomicfile"
	"cambium/internal/command"
	"cambium/internal/retry"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// Runit controls services of runit, the service manager of older stemcells. It runs the program sv, since stemcells
// replace that with their own.
type Runit struct {
	Root string
	Log  *logrus.Entry
	// Program replaces sv in tests.
	Program string
}

// RunitHas reports whether the stemcell below root has a runit service of that name, supervised or not.
func RunitHas(root, name string) bool {
	info, err := os.Stat(filepath.Join(root, "etc/sv", name, "run"))
	return err == nil && info.Mode().IsRegular()
}

// superviseTimeout bounds the wait for runsvdir, which looks for new services every five seconds.
const superviseTimeout = 15 * time.Second

// Setup makes runsvdir supervise a service that the stemcell contains but does not start. It waits until that is so,
// since sv fails before.
func (r *Runit) Setup(ctx context.Context, name string) error {
	link := filepath.Join(r.Root, "etc/service", name)
	if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
		return fmt.Errorf("set up %s: %w", name, err)
	}
	if err := atomicfile.Symlink(filepath.Join("/etc/sv", name), link); err != nil {
		return fmt.Errorf("set up %s: %w", name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, superviseTimeout)
	defer cancel()
	err := retry.Do(ctx, retry.Backoff{Min: 20 * time.Millisecond, Max: 200 * time.Millisecond},
		func(context.Context) error { return r.supervised(name) })
	if err != nil {
		return fmt.Errorf("set up %s: runsvdir does not supervise it: %w", name, err)
	}
	return nil
}

// supervised returns nil if runsv supervises a service, since runsv reads from this FIFO. Without a reader, the FIFO is
// from an earlier boot.
func (r *Runit) supervised(name string) error {
	file, err := os.OpenFile(filepath.Join(r.Root, "etc/sv", name, "supervise/ok"), os.O_WRONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	return file.Close()
}

// Start starts a service and waits until it is running.
func (r *Runit) Start(ctx context.Context, name string) error { return r.sv(ctx, "start", name) }

// Stop stops a service and waits until it is down.
func (r *Runit) Stop(ctx context.Context, name string) error { return r.sv(ctx, "stop", name) }

// Restart stops and starts a service.
func (r *Runit) Restart(ctx context.Context, name string) error { return r.sv(ctx, "restart", name) }

// Reload sends SIGHUP, upon which daemons read their configuration again.
func (r *Runit) Reload(ctx context.Context, name string) error { return r.sv(ctx, "reload", name) }

// Kill sends SIGKILL to a service's main process.
func (r *Runit) Kill(ctx context.Context, name string) error { return r.sv(ctx, "kill", name) }

// State returns the state that runsv records for a service.
func (r *Runit) State(_ context.Context, name string) (State, error) {
	dir := filepath.Join(r.Root, "etc/service", name)
	if _, err := os.Stat(dir); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return State{Load: "not-found", Active: "inactive", Sub: "dead"}, nil
		}
		return State{}, fmt.Errorf("state of %s: %w", name, err)
	}
	stat, err := os.ReadFile(filepath.Join(dir, "supervise/stat"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return State{}, fmt.Errorf("state of %s: %w", name, err)
	}
	state := State{Load: "loaded", Active: "inactive", Sub: "dead"}
	if bytes.HasPrefix(stat, []byte("run")) {
		state.Active, state.Sub = "active", "running"
		pid, err := os.ReadFile(filepath.Join(dir, "supervise/pid"))
		if err != nil {
			return State{}, fmt.Errorf("state of %s: %w", name, err)
		}
		// If the file is empty or incomplete, runsv is between two runs and there is no process.
		state.MainPID, _ = strconv.Atoi(string(bytes.TrimSpace(pid)))
	}
	return state, nil
}

// Running reports whether a service is already running.
func (r *Runit) Running(ctx context.Context, name string) bool {
	state, err := r.State(ctx, name)
	return err == nil && state.Active == "active"
}

// PowerOff shuts the machine down and turns it off.
func (r *Runit) PowerOff(ctx context.Context) error { return r.run(ctx, "shutdown", "-P", "now") }

// GoingDown returns "": runit stops its services one by one without announcing a shutdown.
func (r *Runit) GoingDown(context.Context) (how string, err error) { return "", nil }

// Started logs a service that is already running as if it had been started.
func (r *Runit) Started(name string) { r.logCommand("start", name) }

// logCommand logs the equivalent command: operators and scripts search the log for exactly these words.
func (r *Runit) logCommand(verb, name string) {
	if r.Log != nil {
		r.Log.WithField("command", "sv "+verb+" "+name).Info("asking runit")
	}
}

func (r *Runit) sv(ctx context.Context, verb, name string) error {
	r.logCommand(verb, name)
	program := r.Program
	if program == "" {
		program = "sv"
	}
	if err := r.run(ctx, program, verb, name); err != nil {
		return fmt.Errorf("%s %s: %w", verb, name, err)
	}
	return nil
}

func (r *Runit) run(ctx context.Context, program string, args ...string) error {
	_, err := command.Run(ctx, command.Cmd{Name: program, Args: args})
	if errors.Is(err, fs.ErrNotExist) || err != nil && command.Find(program) == "" {
		return fmt.Errorf("%w: %w", ErrAbsent, err)
	}
	return err
}
