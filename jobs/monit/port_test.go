package monit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// portDaemon is a monit that runs, and listens at its start if it can.
type portDaemon struct {
	t       *testing.T
	address string
	monit   http.Handler
	kills   atomic.Int32
}

func (d *portDaemon) Kill(context.Context, string) error { d.kills.Add(1); return nil }

func (d *portDaemon) Start(context.Context, string) error {
	listener, err := net.Listen("tcp", d.address)
	if err != nil {
		return nil // it runs without
	}
	server := &http.Server{Handler: d.monit}
	d.t.Cleanup(func() { _ = server.Close() })
	go func() { _ = server.Serve(listener) }()
	return nil
}

// TestPortIsTakenBack: another process has monit's port without even listening. It is named, and monit is restarted
// once when the port is free.
func TestPortIsTakenBack(t *testing.T) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	socket := os.NewFile(uintptr(fd), "socket")
	defer socket.Close()
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	bound, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", bound.(*unix.SockaddrInet4).Port)
	f := services("a")
	c := serve(t, f)
	daemon := &portDaemon{t: t, address: address, monit: f}
	c.URL, c.Daemon, c.Taken = "http://"+address, daemon, make(chan struct{}, 1)
	held, alerts := make(chan error, 10), make(chan error, 10)
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		ended <- Port{Client: c, Log: logrus.NewEntry(logrus.New()), Held: func(by error) { held <- by },
			Alert: func(by error) { alerts <- by }}.Run(ctx)
	}()
	next := func() error {
		t.Helper()
		select {
		case by := <-held:
			return by
		case <-time.After(2 * time.Minute):
			t.Fatal("nothing within two minutes")
			return nil
		}
	}
	if _, err := c.Status(t.Context()); err == nil {
		t.Fatal("monit answers without its port")
	}
	if by := next(); by == nil || !strings.Contains(by.Error(), address) {
		t.Errorf("held by %v", by)
	}
	if daemon.kills.Load() != 0 {
		t.Error("monit was killed while its port was taken")
	}
	if err := socket.Close(); err != nil {
		t.Fatal(err)
	}
	if by := next(); by != nil {
		t.Errorf("held by %v, want nobody", by)
	}
	if _, err := c.Status(t.Context()); err != nil {
		t.Error(err)
	}
	if n := daemon.kills.Load(); n != 1 || len(alerts) != 1 {
		t.Errorf("monit was killed %d times, with %d alerts; want once with one", n, len(alerts))
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestHolderOfThePort names a listener of another user with its process.
func TestHolderOfThePort(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddrPort(listener.Addr().String())
	c := &Client{Owner: uint32(os.Getuid())}
	if by := c.holder(at); by != nil {
		t.Errorf("monit itself: got %v", by)
	}
	c.Owner++
	want := fmt.Sprintf("process %d ", os.Getpid())
	if by := c.holder(at); by == nil || !strings.HasPrefix(by.Error(), want) {
		t.Errorf("got %v, want %s", by, want)
	}
	if err := errors.Join(listener.Close(), c.holder(at)); err != nil {
		t.Error(err)
	}
}
