package unit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"cambium/internal/retry"

	"github.com/godbus/dbus/v5"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

const (
	systemdName  = "org.freedesktop.systemd1"
	systemdPath  = dbus.ObjectPath("/org/freedesktop/systemd1")
	managerFace  = "org.freedesktop.systemd1.Manager"
	unitFace     = "org.freedesktop.systemd1.Unit"
	serviceFace  = "org.freedesktop.systemd1.Service"
	propertyFace = "org.freedesktop.DBus.Properties"
)

// Systemd is the service manager of most stemcells. The zero value with Root "/" works; the
// connection is made at the first call and kept. Close ends it.
type Systemd struct {
	Root string
	Log  *logrus.Entry
	// Self is the unit that this process runs in; empty means that systemd is asked.
	Self string

	once sync.Once
	turn chan struct{} // guards conn and behind; a channel, so that waiting for it can end
	conn *dbus.Conn
	// behind are the units that Warm has looked at: whether they are ordered after our own.
	behind map[string]bool

	// reboot is the last resort when nobody takes the request to power off; nil means
	// reboot(2). A test must never reach that.
	reboot func(cmd int) error
}

// Close ends the connection; the next call makes a new one.
func (s *Systemd) Close() {
	if s.lock(context.Background()) == nil {
		s.drop()
		s.unlock()
	}
}

func (s *Systemd) lock(ctx context.Context) error {
	s.once.Do(func() { s.turn = make(chan struct{}, 1) })
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *Systemd) unlock() { <-s.turn }

func (s *Systemd) drop() {
	if s.conn != nil {
		_ = s.conn.Close() // nothing is in flight that could be lost
		s.conn = nil
	}
}

// connect prefers the socket that systemd itself listens on: it is there before the bus is,
// and needs no third process to answer. It closes when systemd re-executes itself, hence the
// check.
func (s *Systemd) connect(ctx context.Context) (*dbus.Conn, error) {
	if err := s.lock(ctx); err != nil {
		return nil, err
	}
	defer s.unlock()
	if s.conn != nil && s.conn.Connected() {
		return s.conn, nil
	}
	s.drop()
	conn, err := dial(ctx, filepath.Join(s.Root, "run/systemd/private"), direct)
	if err == nil {
		if err = wake(ctx, conn); err != nil {
			_ = conn.Close() // it never worked
		}
	}
	if err == nil {
		s.conn = conn
		return conn, nil
	}
	conn, busErr := SystemBus(ctx, s.Root)
	if busErr != nil {
		return nil, errors.Join(err, busErr)
	}
	match := []dbus.MatchOption{dbus.WithMatchInterface(managerFace), dbus.WithMatchMember("JobRemoved")}
	err = conn.AddMatchSignalContext(ctx, match...)
	if err == nil {
		err = conn.Object(systemdName, systemdPath).CallWithContext(ctx, managerFace+".Subscribe", 0).Err
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("subscribe to systemd: %w", typed(err)), conn.Close())
	}
	s.conn = conn
	return conn, nil
}

// wake makes sure that systemd listens. It can happen to read our first message together with the
// end of the handshake, and then leaves that message alone until there is more to read: so there
// is more, until it answers.
func wake(ctx context.Context, conn *dbus.Conn) error {
	// The first pauses are short, since a boot waits for them.
	for attempt := range 20 {
		short, cancel := context.WithTimeout(ctx, retry.Backoff{Min: 5 * time.Millisecond, Max: time.Second}.Pause(attempt))
		err := conn.Object(systemdName, systemdPath).CallWithContext(short, "org.freedesktop.DBus.Peer.Ping", 0).Err
		cancel()
		if err == nil || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
	}
	return errors.New("systemd does not answer")
}

// Warm connects ahead of the first request, which then need not wait for it, and has systemd load
// the units that will be started.
func (s *Systemd) Warm(ctx context.Context, units ...string) {
	conn, err := s.connect(ctx)
	if err != nil {
		if s.Log != nil {
			s.Log.WithError(err).Debug("systemd is not reachable yet")
		}
		return
	}
	for _, name := range units {
		if is, ok := s.isBehind(ctx, conn, name); ok && s.lock(ctx) == nil {
			if s.behind == nil {
				s.behind = map[string]bool{}
			}
			s.behind[name] = is
			s.unlock()
		}
	}
}

// Setup does nothing: the stemcell has installed the unit. It exists for runit's sake.
func (s *Systemd) Setup(context.Context, string) error { return nil }

// Running reports whether a unit is up already, so that there is nothing to start.
func (s *Systemd) Running(ctx context.Context, name string) bool {
	conn, err := s.connect(ctx)
	return err == nil && text(property(ctx, conn, pathOf(name), "ActiveState")) == "active"
}

// Started says that a unit needs no start, in the words of one.
func (s *Systemd) Started(name string) { s.say("systemctl start " + name) }

// Start starts a unit and waits until it is up; one that runs already is a success.
func (s *Systemd) Start(ctx context.Context, name string) error {
	if err := s.job(ctx, "start", "StartUnit", name, s.startMode(ctx, name)); err != nil {
		return err
	}
	// A start that a condition turned down ends with the result "done" all the same.
	conn, err := s.connect(ctx)
	if err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	if text(property(ctx, conn, pathOf(name), "ActiveState")) == "inactive" {
		if held, ok := property(ctx, conn, pathOf(name), "ConditionResult").Value().(bool); ok && !held {
			return fmt.Errorf("start %s: %w", name, ErrCondition)
		}
	}
	return nil
}

// startMode is how to start a unit. One that is ordered after our own would wait until we have
// said that we are ready, while we wait for it; if that is the case the order is set aside.
func (s *Systemd) startMode(ctx context.Context, name string) string {
	const usual, atOnce = "replace", "ignore-dependencies"
	conn, err := s.connect(ctx)
	if err != nil {
		return usual // the start itself will say so
	}
	if s.lock(ctx) != nil {
		return usual
	}
	behind, known := s.behind[name]
	s.unlock()
	if !known {
		behind, known = s.isBehind(ctx, conn, name)
	}
	if !known || !behind {
		return usual
	}
	self, err := s.self(ctx, conn)
	if err != nil || text(property(ctx, conn, self, "ActiveState")) != "activating" {
		return usual
	}
	return atOnce
}

// isBehind reports whether a unit is ordered after our own; ok is false where that cannot be told,
// as for a process that is no service.
func (s *Systemd) isBehind(ctx context.Context, conn *dbus.Conn, name string) (behind, ok bool) {
	self, err := s.self(ctx, conn)
	if err != nil {
		return false, false
	}
	after, ok := property(ctx, conn, pathOf(name), "After").Value().([]string)
	return slices.Contains(after, text(property(ctx, conn, self, "Id"))), ok
}

func (s *Systemd) self(ctx context.Context, conn *dbus.Conn) (path dbus.ObjectPath, err error) {
	if s.Self != "" {
		return pathOf(s.Self), nil
	}
	err = conn.Object(systemdName, systemdPath).CallWithContext(ctx, managerFace+".GetUnitByPID", 0, uint32(os.Getpid())).Store(&path)
	return path, err
}

// pathOf is the object that stands for a unit. systemd loads the unit when the object is asked for.
func pathOf(name string) dbus.ObjectPath {
	var path strings.Builder
	path.WriteString("/org/freedesktop/systemd1/unit/")
	for i, c := range []byte(full(name)) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if letter || i > 0 && c >= '0' && c <= '9' {
			path.WriteByte(c)
		} else {
			fmt.Fprintf(&path, "_%02x", c)
		}
	}
	return dbus.ObjectPath(path.String())
}

// property is one property of a unit, empty if it cannot be had. systemd collects all of them in
// milliseconds, one in no time.
func property(ctx context.Context, conn *dbus.Conn, path dbus.ObjectPath, name string) (v dbus.Variant) {
	if err := conn.Object(systemdName, path).CallWithContext(ctx, propertyFace+".Get", 0, unitFace, name).Store(&v); err != nil {
		return dbus.Variant{}
	}
	return v
}

func properties(ctx context.Context, conn *dbus.Conn, path dbus.ObjectPath, face string) (of map[string]dbus.Variant, err error) {
	err = conn.Object(systemdName, path).CallWithContext(ctx, propertyFace+".GetAll", 0, face).Store(&of)
	return of, err
}

// Stop stops a unit and waits until it is down; one that does not run is a success.
func (s *Systemd) Stop(ctx context.Context, name string) error {
	return s.job(ctx, "stop", "StopUnit", name, "replace")
}

// Restart stops and starts a unit, or starts it if it does not run.
func (s *Systemd) Restart(ctx context.Context, name string) error {
	return s.job(ctx, "restart", "RestartUnit", name, "replace")
}

// Reload lets a unit read its configuration again, or restarts it if it cannot do that.
func (s *Systemd) Reload(ctx context.Context, name string) error {
	return s.job(ctx, "reload-or-restart", "ReloadOrRestartUnit", name, "replace")
}

// Kill sends a signal to a unit's main process. What the main process has started stays: jobs
// must outlive a restart of their supervisor.
func (s *Systemd) Kill(ctx context.Context, name string, signal syscall.Signal) error {
	s.say("systemctl kill " + name)
	conn, err := s.connect(ctx)
	if err != nil {
		return fmt.Errorf("kill %s: %w", name, err)
	}
	call := conn.Object(systemdName, systemdPath).CallWithContext(ctx, managerFace+".KillUnit", 0, full(name), "main", int32(signal))
	if call.Err != nil {
		return fmt.Errorf("kill %s: %w", name, typed(call.Err))
	}
	return nil
}

// State says how a unit is. A unit that does not exist has Load "not-found".
func (s *Systemd) State(ctx context.Context, name string) (state State, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("state of %s: %w", name, typed(err))
		}
	}()
	conn, err := s.connect(ctx)
	if err != nil {
		return State{}, err
	}
	of, err := properties(ctx, conn, pathOf(name), unitFace)
	if err != nil {
		return State{}, err
	}
	state = State{Load: text(of["LoadState"]), Active: text(of["ActiveState"]), Sub: text(of["SubState"])}
	// Only services have these; for another kind of unit their absence is no error.
	if of, err := properties(ctx, conn, pathOf(name), serviceFace); err == nil {
		pid, _ := of["MainPID"].Value().(uint32)
		state.MainPID, state.Result = int(pid), text(of["Result"])
	}
	return state, nil
}

// job asks for a change and waits for systemd to say how it ended. A connection lost in the
// middle (systemd re-executed itself) is made again once: asking twice for the same state is
// harmless.
func (s *Systemd) job(ctx context.Context, verb, method, name, mode string) error {
	s.say("systemctl " + verb + " " + name)
	result, err := s.tryJob(ctx, method, full(name), mode)
	if err != nil && lost(err) && ctx.Err() == nil {
		result, err = s.tryJob(ctx, method, full(name), mode)
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", verb, name, typed(err))
	}
	switch result {
	case "done", "skipped":
		return nil
	}
	failed := &JobError{Job: verb, Unit: name, Result: result}
	// The state only enriches the error; without it the result still stands.
	failed.State, _ = s.State(ctx, name)
	return failed
}

func (s *Systemd) tryJob(ctx context.Context, method, unit, mode string) (result string, err error) {
	conn, err := s.connect(ctx)
	if err != nil {
		return "", err
	}
	// Registered before the call, so that a job that ends at once is not missed.
	signals := make(chan *dbus.Signal, 16)
	conn.Signal(signals)
	defer conn.RemoveSignal(signals)
	var job dbus.ObjectPath
	if err := conn.Object(systemdName, systemdPath).CallWithContext(ctx, managerFace+"."+method, 0, unit, mode).Store(&job); err != nil {
		return "", err
	}
	for {
		select {
		case signal, open := <-signals:
			if !open || signal == nil {
				return "", dbus.ErrClosed
			}
			if signal.Name != managerFace+".JobRemoved" || len(signal.Body) != 4 || signal.Body[1] != job {
				continue
			}
			result, _ := signal.Body[3].(string)
			return result, nil
		case <-conn.Context().Done():
			return "", dbus.ErrClosed
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}

// PowerOff turns the machine off, in order: services are stopped first. It returns when the
// request was taken, not when the machine is off.
func (s *Systemd) PowerOff(ctx context.Context) error {
	return s.leave(ctx, "PowerOff", "poweroff.target", unix.LINUX_REBOOT_CMD_POWER_OFF)
}

// Reboot starts the machine again, in order.
func (s *Systemd) Reboot(ctx context.Context) error {
	return s.leave(ctx, "Reboot", "reboot.target", unix.LINUX_REBOOT_CMD_RESTART)
}

// leave asks logind, which lets inhibitors finish; then systemd itself; and when neither is
// there, the kernel.
func (s *Systemd) leave(ctx context.Context, method, target string, command int) error {
	var failed []error
	bus, err := SystemBus(ctx, s.Root)
	if err == nil {
		call := bus.Object("org.freedesktop.login1", "/org/freedesktop/login1").
			CallWithContext(ctx, "org.freedesktop.login1.Manager."+method, 0, false)
		_ = bus.Close() // the answer is here already
		if err = call.Err; err == nil {
			return nil
		}
	}
	failed = append(failed, fmt.Errorf("logind: %w", typed(err)))

	conn, err := s.connect(ctx)
	if err == nil {
		err = conn.Object(systemdName, systemdPath).
			CallWithContext(ctx, managerFace+".StartUnit", 0, target, "replace-irreversibly").Err
		if err == nil {
			return nil
		}
	}
	failed = append(failed, fmt.Errorf("systemd: %w", typed(err)))
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", method, errors.Join(failed...))
	}

	if s.Log != nil {
		s.Log.WithError(errors.Join(failed...)).Warn("no service manager took the request, asking the kernel")
	}
	reboot := s.reboot
	if reboot == nil {
		// The kernel is the one of this process, whatever Root says.
		if s.Root != "/" {
			return fmt.Errorf("%s: %w", method, errors.Join(failed...))
		}
		reboot = unix.Reboot
	}
	unix.Sync()
	if err := reboot(command); err != nil {
		return fmt.Errorf("%s: %w", method, errors.Join(append(failed, fmt.Errorf("kernel: %w", err))...))
	}
	return nil
}

// say logs what an operator would have typed: others look for these very words in the log.
func (s *Systemd) say(command string) {
	if s.Log != nil {
		s.Log.WithField("command", command).Info("asking systemd")
	}
}

func text(v dbus.Variant) string {
	t, _ := v.Value().(string)
	return t
}

// lost reports whether err means that the other side went away.
func lost(err error) bool {
	return errors.Is(err, dbus.ErrClosed) || errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
}
