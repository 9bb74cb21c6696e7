package unit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/godbus/dbus/v5"
)

type flavour int

const (
	direct flavour = iota // the other end is the service itself
	bus                   // the other end is a message bus, which wants to be greeted
)

// SystemBus connects to the system's message bus, for services other than systemd itself:
// networkd, resolved, timesyncd. The caller closes the connection.
func SystemBus(ctx context.Context, root string) (*dbus.Conn, error) {
	return dial(ctx, filepath.Join(root, "run/dbus/system_bus_socket"), bus)
}

func dial(ctx context.Context, path string, f flavour) (*dbus.Conn, error) {
	var d net.Dialer
	raw, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
			err = fmt.Errorf("%w: %w", ErrAbsent, err)
		}
		return nil, fmt.Errorf("connect to %s: %w", path, err)
	}
	conn, err := shakeHands(ctx, raw.(*net.UnixConn), f)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", path, err)
	}
	return conn, nil
}

// shakeHands authenticates. The library's own calls for this take no context, so the socket's
// deadline stands in for it.
func shakeHands(ctx context.Context, raw *net.UnixConn, f flavour) (*dbus.Conn, error) {
	expire := func() { _ = raw.SetDeadline(time.Unix(1, 0)) } // fails only on a closed socket
	stop := context.AfterFunc(ctx, expire)
	defer stop()
	conn, err := dbus.DialUnix(raw)
	if err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	err = conn.Auth([]dbus.Auth{dbus.AuthExternal(strconv.Itoa(os.Geteuid()))})
	if err == nil && f == bus {
		err = conn.Hello()
	}
	if err == nil && !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		_ = conn.Close() // the failure above is what matters
		return nil, err
	}
	return conn, nil
}

// typed turns the bus's error names into errors that callers can ask for.
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
