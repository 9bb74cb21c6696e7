//go:build vm

package monit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"cambium/internal/sockowner"
	"cambium/internal/thread"
	"cambium/lab/testvm"
)

// TestMain is the first process of the virtual machine as well.
func TestMain(m *testing.M) { testvm.Main(m, guestChecks, nil) }

var guestChecks = []testvm.Check{
	{Name: "root's mail is an alert, also over multipath TCP", Run: func(ctx context.Context) error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(lo); err != nil {
			return err
		}
		for _, protocol := range []int{unix.IPPROTO_TCP, unix.IPPROTO_MPTCP} {
			if n, err := forge(ctx, multipath, sockowner.Table{}, 0, protocol, false); err != nil || n != forgeries {
				return fmt.Errorf("protocol %d: %d of %d mails arrived: %w", protocol, n, forgeries, err)
			}
		}
		return nil
	}},
	// A socket that systemd has kept since an earlier version of the agent accepts multipath TCP.
	{Name: "vcap's mail is none: sock_diag, multipath TCP", Run: func(ctx context.Context) error {
		return nobodyForges(ctx, multipath, sockowner.Table{})
	}},
	{Name: "vcap's mail is none: /proc/net, multipath TCP", Run: func(ctx context.Context) error {
		return nobodyForges(ctx, multipath, sockowner.Table{Dir: "/proc/net"})
	}},
	{Name: "vcap's mail is none: the agent's own listener", Run: func(ctx context.Context) error {
		return nobodyForges(ctx, func(ctx context.Context) (*net.TCPListener, error) {
			return ListenAlerts(ctx, "127.0.0.1:0")
		}, sockowner.Table{})
	}},
}

func multipath(ctx context.Context) (*net.TCPListener, error) {
	var config net.ListenConfig
	config.SetMultipathTCP(true)
	listener, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return listener.(*net.TCPListener), nil
}

// forgeries is the number of mails that forge sends.
const forgeries = 100

func nobodyForges(ctx context.Context, listen func(context.Context) (*net.TCPListener, error),
	sockets sockowner.Table) error {
	const vcap = 1000
	n, err := forge(ctx, listen, sockets, vcap, unix.IPPROTO_MPTCP, true)
	if err == nil && n > 0 {
		err = fmt.Errorf("%d of %d mails became alerts", n, forgeries)
	}
	return err
}

// forge sends mails to the agent's intake, and returns how many became alerts.
func forge(ctx context.Context, listen func(context.Context) (*net.TCPListener, error), sockets sockowner.Table, uid,
	protocol int, hasty bool) (taken int64, err error) {
	listener, err := listen(ctx)
	if err != nil {
		return 0, err
	}
	log := logrus.New()
	log.SetOutput(io.Discard)
	ctx, cancel := context.WithCancel(ctx)
	var alerts atomic.Int64
	done := make(chan error, 1)
	go func() {
		done <- Alerts{Log: logrus.NewEntry(log), Sockets: sockets, Listener: listener}.Run(ctx, "",
			func(Alert) { alerts.Add(1) })
	}()
	for range forgeries {
		err = errors.Join(err, send(uid, protocol, listener.Addr().(*net.TCPAddr).Port, hasty))
	}
	time.Sleep(2 * time.Second) // what is refused is not announced
	cancel()
	return alerts.Load(), errors.Join(err, <-done)
}

// send sends a mail as a user, and waits for the answer unless it is hasty.
func send(uid, protocol, port int, hasty bool) error {
	return thread.Run(func() error {
		// Of this thread only.
		if _, _, failed := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); failed != 0 {
			return failed
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, protocol)
		if err != nil {
			return fmt.Errorf("socket: %w", err)
		}
		defer unix.Close(fd)
		if err := unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
			return fmt.Errorf("connect: %w", err)
		}
		_, err = unix.Write(fd, []byte("EHLO x\r\nMAIL FROM:<a>\r\nRCPT TO:<b>\r\nDATA\r\n"+mail+".\r\nQUIT\r\n"))
		for answer := make([]byte, 4096); err == nil && !hasty; {
			var n int
			if n, err = unix.Read(fd, answer); n == 0 {
				break
			}
		}
		return err
	})
}
