package unit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	systemd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"cambium/internal/atomicfile"
)

// Systemd controls units of systemd. It connects at the first call and keeps the connection until Close. The zero value
// with Root "/" is usable.
type Systemd struct {
	Root string
	Log  *logrus.Entry
	// Self is the unit of this process. If empty, systemd is asked for it.
	Self string

	mu   sync.Mutex
	conn *connection // guarded by mu; nil before the first call

	// reboot is called if neither logind nor systemd accepts the request to power off; nil means reboot(2). Tests must
	// set it.
	reboot func(cmd int) error
}

// Close closes the connection. The next call opens a new one.
func (s *Systemd) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil {
		s.conn.Close()
		s.conn = nil
	}
}

// connect returns the open connection or opens one: systemd closes its private connections when it re-executes itself.
func (s *Systemd) connect(ctx context.Context) (*connection, error) {
	if conn := s.shareConnection(nil); conn != nil {
		return conn, nil
	}
	conn, err := dialSystemd(ctx, s.Root)
	if err != nil {
		return nil, err
	}
	return s.shareConnection(conn), nil
}

// shareConnection returns the connection in use. If there is none, that is dialed; otherwise it closes dialed, since
// another call has connected at the same time.
func (s *Systemd) shareConnection(dialed *connection) *connection {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.conn == nil || !s.conn.Connected():
		s.conn = dialed
	case dialed != nil:
		dialed.Close()
	}
	return s.conn
}

// Setup does nothing, since the stemcell has installed the unit. Only runit needs it.
func (s *Systemd) Setup(context.Context, string) error { return nil }

// Running reports whether a unit is already active.
func (s *Systemd) Running(ctx context.Context, name string) bool {
	conn, err := s.connect(ctx)
	return err == nil && conn.property(ctx, full(name), "ActiveState") == "active"
}

// Started logs a unit that is already active as if it had been started.
func (s *Systemd) Started(name string) { s.logCommand("systemctl start " + name) }

// Start starts a unit and waits until it is active. It succeeds if the unit is already active.
func (s *Systemd) Start(ctx context.Context, name string) error {
	if err := s.job(ctx, "start", (*systemd.Conn).StartUnitContext, name, s.startMode(ctx, full(name))); err != nil {
		return err
	}
	// If a start is skipped because of a condition, the job's result is "done", too.
	conn, err := s.connect(ctx)
	if err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	if conn.property(ctx, full(name), "ActiveState") == "inactive" &&
		conn.property(ctx, full(name), "ConditionResult") == false {
		return fmt.Errorf("start %s: %w", name, ErrCondition)
	}
	return nil
}

// startMode returns the mode for a start job. A unit ordered after the agent's own would wait until the agent is ready,
// while the agent waits for that unit; in that case the ordering is ignored.
func (s *Systemd) startMode(ctx context.Context, name string) string {
	const usual, atOnce = "replace", "ignore-dependencies"
	conn, err := s.connect(ctx)
	if err != nil {
		return usual // the start will report the error
	}
	self := full(s.Self)
	if s.Self == "" {
		if self, err = conn.GetUnitNameByPID(ctx, uint32(os.Getpid())); err != nil {
			return usual // this process is not a service
		}
	}
	if conn.property(ctx, self, "ActiveState") != "activating" {
		return usual
	}
	if after, ok := conn.property(ctx, name, "After").([]string); ok && slices.Contains(after, self) {
		return atOnce
	}
	return usual
}

// Stop stops a unit and waits until it is stopped. It succeeds if the unit is not running.
func (s *Systemd) Stop(ctx context.Context, name string) error {
	return s.job(ctx, "stop", (*systemd.Conn).StopUnitContext, name, "replace")
}

// Restart restarts a unit, or starts it if it is not running.
func (s *Systemd) Restart(ctx context.Context, name string) error {
	return s.job(ctx, "restart", (*systemd.Conn).RestartUnitContext, name, "replace")
}

// Reload makes a unit read its configuration again, or restarts it if it does not support that.
func (s *Systemd) Reload(ctx context.Context, name string) error {
	return s.job(ctx, "reload-or-restart", (*systemd.Conn).ReloadOrRestartUnitContext, name, "replace")
}

// ReloadUnits makes systemd read its unit files again, unless it says that it knows the drop-in of the unit name as it
// now is, or that it is gone: systemd reads the files of a unit that it has not loaded when it needs them. A reload
// takes seconds on a slow machine, since it also runs systemd's generators.
func (s *Systemd) ReloadUnits(ctx context.Context, name, dropIn string) error {
	conn, err := s.connect(ctx)
	if err != nil {
		return fmt.Errorf("daemon-reload: %w", err)
	}
	used, known := conn.property(ctx, full(name), "DropInPaths").([]string)
	if known && slices.Contains(used, dropIn) == atomicfile.Exists(dropIn) &&
		conn.property(ctx, full(name), "NeedDaemonReload") == false {
		return nil
	}
	s.logCommand("systemctl daemon-reload")
	if err := conn.ReloadContext(ctx); err != nil {
		return fmt.Errorf("daemon-reload: %w", typed(err))
	}
	return nil
}

// Kill sends SIGKILL to a unit's main process only, since jobs must survive a restart of their supervisor.
func (s *Systemd) Kill(ctx context.Context, name string) error {
	s.logCommand("systemctl kill " + name)
	conn, err := s.connect(ctx)
	if err == nil {
		err = conn.KillUnitWithTarget(ctx, full(name), systemd.Main, int32(unix.SIGKILL))
	}
	if err != nil {
		return fmt.Errorf("kill %s: %w", name, typed(err))
	}
	return nil
}

// ResetFailed resets the failed state and the start counter of a unit, since systemd refuses to start one that has
// exited too often.
func (s *Systemd) ResetFailed(ctx context.Context, name string) error {
	conn, err := s.connect(ctx)
	if err == nil {
		err = conn.ResetFailedUnitContext(ctx, full(name))
	}
	if err != nil {
		return fmt.Errorf("reset %s: %w", name, typed(err))
	}
	return nil
}

// StartTransient starts a program as a unit that systemd removes when it exits.
func (s *Systemd) StartTransient(ctx context.Context, name, description string, argv []string) error {
	return s.job(
		ctx,
		"start",
		func(c *systemd.Conn, ctx context.Context, name, mode string, result chan<- string) (int, error) {
			return c.StartTransientUnitContext(ctx, name, mode, []systemd.Property{systemd.PropDescription(description),
				systemd.PropExecStart(argv,
					true), {Name: "CollectMode", Value: dbus.MakeVariant("inactive-or-failed")}}, result)
		},
		name,
		"fail",
	)
}

// Version returns systemd's version.
func (s *Systemd) Version(ctx context.Context) (int, error) {
	conn, err := s.connect(ctx)
	if err != nil {
		return 0, err
	}
	text, err := conn.GetManagerProperty("Version") // a quoted word such as 252.30-1~deb12u2
	if err != nil {
		return 0, fmt.Errorf("version of systemd: %w", typed(err))
	}
	var version int
	if _, err := fmt.Sscanf(text, `"%d`, &version); err != nil {
		return 0, fmt.Errorf("version of systemd %s: %w", text, err)
	}
	return version, nil
}

// State returns a unit's state. If the unit does not exist, Load is "not-found".
func (s *Systemd) State(ctx context.Context, name string) (State, error) {
	conn, err := s.connect(ctx)
	if err != nil {
		return State{}, fmt.Errorf("state of %s: %w", name, err)
	}
	of, err := conn.GetAllPropertiesContext(ctx, full(name))
	if err != nil {
		return State{}, fmt.Errorf("state of %s: %w", name, typed(err))
	}
	text := func(property string) string { t, _ := of[property].(string); return t }
	pid, _ := of["MainPID"].(uint32) // only services have one
	restarts, _ := of["NRestarts"].(uint32)
	began, _ := of["InactiveExitTimestampMonotonic"].(uint64)
	return State{
		Load:     text("LoadState"),
		Active:   text("ActiveState"),
		Sub:      text("SubState"),
		MainPID:  int(pid),
		Result:   text("Result"),
		Restarts: int(restarts),
		Began:    time.Duration(began) * time.Microsecond,
	}, nil
}

// Failed returns the names of the units that have failed.
func (s *Systemd) Failed(ctx context.Context) (names []string, err error) {
	conn, err := s.connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("list failed units: %w", err)
	}
	units, err := conn.ListUnitsFilteredContext(ctx, []string{"failed"})
	if err != nil {
		return nil, fmt.Errorf("list failed units: %w", typed(err))
	}
	for _, u := range units {
		names = append(names, u.Name)
	}
	return names, nil
}

// GoingDown returns how the machine is shutting down, such as "reboot" or "poweroff", or "" if it is not.
func (s *Systemd) GoingDown(ctx context.Context) (how string, err error) {
	conn, err := s.connect(ctx)
	if err != nil {
		return "", fmt.Errorf("list jobs: %w", err)
	}
	jobs, err := conn.ListJobsContext(ctx)
	if err != nil {
		return "", fmt.Errorf("list jobs: %w", typed(err))
	}
	for _, j := range jobs {
		how, target := strings.CutSuffix(j.Unit, ".target")
		if target && j.JobType == "start" && slices.Contains([]string{"reboot", "poweroff", "halt", "kexec"}, how) {
			return how, nil
		}
	}
	return "", nil
}

// job queues a job and waits for its result. If the connection is lost meanwhile, because systemd has re-executed
// itself, it tries once more: requesting the same state twice is harmless.
func (s *Systemd) job(ctx context.Context, verb string, queue queueFunc, name, mode string) error {
	s.logCommand("systemctl " + verb + " " + name)
	conn, err := s.connect(ctx)
	var result string
	if err == nil {
		result, err = conn.job(ctx, queue, full(name), mode)
		if connectionLost(ctx, err) {
			conn.Close()
			if conn, err = s.connect(ctx); err == nil {
				result, err = conn.job(ctx, queue, full(name), mode)
			}
		}
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", verb, name, typed(err))
	}
	switch result {
	case "done", "skipped":
		return nil
	}
	failed := &JobError{Job: verb, Unit: name, Result: result}
	// The state is only additional information.
	failed.State, _ = s.State(ctx, name)
	return failed
}

// PowerOff shuts the machine down and turns it off. It returns once the request is accepted. It asks logind, which lets
// inhibitors finish, then systemd, and if neither is available, the kernel.
func (s *Systemd) PowerOff(ctx context.Context) error {
	logindErr := s.askLogind(ctx)
	if logindErr == nil {
		return nil
	}
	conn, err := s.connect(ctx)
	if err == nil {
		_, err = conn.StartUnitContext(ctx, "poweroff.target", "replace-irreversibly", nil)
	}
	if err == nil {
		return nil
	}
	err = fmt.Errorf("power off: %w",
		errors.Join(fmt.Errorf("logind: %w", logindErr), fmt.Errorf("systemd: %w", typed(err))))
	if ctx.Err() != nil {
		return err
	}

	reboot := s.reboot
	if reboot == nil {
		// This would turn off the real machine even if Root is another directory.
		if s.Root != "/" {
			return err
		}
		reboot = unix.Reboot
	}
	if s.Log != nil {
		s.Log.WithError(err).Warn("no service manager accepted the request; asking the kernel")
	}
	unix.Sync()
	if kernelErr := reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); kernelErr != nil {
		return errors.Join(err, fmt.Errorf("kernel: %w", kernelErr))
	}
	return nil
}

// askLogind calls logind's PowerOff. go-systemd's login1 does not return its error.
func (s *Systemd) askLogind(ctx context.Context) error {
	bus, err := SystemBus(ctx, s.Root)
	if err != nil {
		return err
	}
	const interactive = false // polkit must not ask a user
	err = bus.Object("org.freedesktop.login1", "/org/freedesktop/login1").
		CallWithContext(ctx, "org.freedesktop.login1.Manager.PowerOff", 0, interactive).Err
	_ = bus.Close() // the answer has arrived
	return typed(err)
}

// logCommand logs the equivalent command: operators and scripts search the log for exactly these words.
func (s *Systemd) logCommand(command string) {
	if s.Log != nil {
		s.Log.WithField("command", command).Info("asking systemd")
	}
}
