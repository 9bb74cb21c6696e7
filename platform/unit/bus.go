package unit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"cambium/internal/retry"

	systemd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
)

// SystemBus connects to the system's D-Bus, for services other than systemd itself, such as networkd and logind. The
// caller closes the connection.
func SystemBus(ctx context.Context, root string) (*dbus.Conn, error) {
	return dial(ctx, filepath.Join(root, "run/dbus/system_bus_socket"), (*dbus.Conn).Hello)
}

// dial connects and authenticates. Then it calls greet to send what the peer expects first.
func dial(ctx context.Context, path string, greet func(*dbus.Conn) error) (*dbus.Conn, error) {
	// Connecting to a Unix socket never waits: a full backlog is an error.
	conn, err := dbus.Dial("unix:path=" + dbus.EscapeBusAddressValue(path))
	if err == nil {
		err = closeOnCancel(ctx, conn, func() error {
			if err := conn.Auth([]dbus.Auth{dbus.AuthExternal(strconv.Itoa(os.Geteuid()))}); err != nil {
				return err
			}
			return greet(conn)
		})
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		err = fmt.Errorf("%w: %w", ErrAbsent, err)
	}
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", path, err)
	}
	return conn, nil
}

// closeOnCancel runs a call on conn that takes no context. If ctx ends first, it closes conn, which makes the call
// return. It also closes conn after an error.
func closeOnCancel(ctx context.Context, conn *dbus.Conn, call func() error) error {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() }) // the cause is ctx's
	err := call()
	if !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = conn.Close() // the failure above is what matters
	}
	return err
}

// connection is go-systemd's connection, with a channel that is closed when the connection is lost. go-systemd does not
// report that, so that a caller would wait forever for the result of a job.
type connection struct {
	*systemd.Conn
	closed <-chan struct{}
}

// dialSystemd connects to systemd. It prefers systemd's private socket, which exists before the bus does and needs no
// third process.
func dialSystemd(ctx context.Context, root string) (*connection, error) {
	conn, err := dial(ctx, filepath.Join(root, "run/systemd/private"),
		func(conn *dbus.Conn) error { return ping(ctx, conn) })
	if err != nil {
		var busErr error
		if conn, busErr = SystemBus(ctx, root); busErr != nil {
			return nil, errors.Join(err, busErr)
		}
	}
	c := &connection{closed: conn.Context().Done()}
	err = closeOnCancel(ctx, conn, func() (err error) {
		// go-systemd uses one connection for calls and one for signals. One is enough for both, since result channels
		// are buffered.
		c.Conn, err = systemd.NewConnection(func() (*dbus.Conn, error) { return conn, nil })
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("subscribe to systemd: %w", err)
	}
	return c, nil
}

// ping makes sure that systemd reads its private socket. If systemd has read the first message together with the end of
// the handshake, it does not process it before the next one arrives, so ping sends messages until one is answered.
func ping(ctx context.Context, conn *dbus.Conn) error {
	// The first pauses are short, since boots wait for them.
	pauses := retry.Backoff{Min: 5 * time.Millisecond, Max: time.Second}
	for attempt := range 20 {
		short, cancel := context.WithTimeout(ctx, pauses.Pause(attempt))
		err := conn.Object("org.freedesktop.systemd1", "/org/freedesktop/systemd1").
			CallWithContext(short, "org.freedesktop.DBus.Peer.Ping", 0).
			Err
		cancel()
		if err == nil || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
	}
	return errors.New("systemd does not answer")
}

// job calls a method of go-systemd that queues a job, and waits for the job's result. go-systemd queues one job at a
// time, so a call also waits for the reply to an earlier one, bounded by that one's context. The jobs themselves run in
// parallel.
func (c *connection) job(ctx context.Context, queue queueFunc, name, mode string) (string, error) {
	// The channel is buffered: go-systemd handles no other result before this one is received, which does not happen if
	// ctx ends.
	result := make(chan string, 1)
	if _, err := queue(c.Conn, ctx, name, mode, result); err != nil {
		return "", err
	}
	select {
	case r := <-result:
		return r, nil
	case <-c.closed:
		return "", dbus.ErrClosed
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

type queueFunc func(c *systemd.Conn, ctx context.Context, name, mode string, result chan<- string) (int, error)

// property returns a property of a unit, or nil if it cannot be read. systemd needs milliseconds to collect all
// properties, but only microseconds for one.
func (c *connection) property(ctx context.Context, unit, name string) any {
	p, err := c.GetUnitPropertyContext(ctx, unit, name)
	if err != nil {
		return nil
	}
	return p.Value.Value()
}

// connectionLost reports whether a call failed because the connection was lost, as when systemd re-executes itself.
// Errors that systemd returns are of type dbus.Error.
func connectionLost(ctx context.Context, err error) bool {
	var answer dbus.Error
	return err != nil && ctx.Err() == nil && !errors.As(err, &answer)
}

// typed converts D-Bus error names to the errors of this package.
func typed(err error) error {
	var d dbus.Error
	if !errors.As(err, &d) {
		return err
	}
	switch d.Name {
	case "org.freedesktop.systemd1.NoSuchUnit", "org.freedesktop.systemd1.LoadFailed":
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	case "org.freedesktop.DBus.Error.ServiceUnknown", "org.freedesktop.DBus.Error.NameHasNoOwner":
		return fmt.Errorf("%w: %w", ErrAbsent, err)
	}
	return err
}
