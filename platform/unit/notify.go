package unit

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"

	"cambium/internal/oneline"
)

// Notifier sends notifications to systemd. The zero value sends nothing, as in a process that systemd did not start.
// Unlike go-systemd's SdNotify, it does not read the environment for each message, and does not wait for systemd
// without a deadline.
type Notifier struct {
	socket   string
	watchdog time.Duration
}

// TakeNotifier reads systemd's environment variables and removes them, so that no program started by this process can
// send notifications on its behalf.
func TakeNotifier() (Notifier, error) {
	n := Notifier{socket: os.Getenv("NOTIFY_SOCKET")}
	if err := os.Unsetenv("NOTIFY_SOCKET"); err != nil {
		return Notifier{}, fmt.Errorf("take NOTIFY_SOCKET: %w", err)
	}
	var err error
	n.watchdog, err = daemon.SdWatchdogEnabled(true)
	return n, err
}

// Ready tells systemd that the service is ready.
func (n Notifier) Ready() error { return n.send(daemon.SdNotifyReady) }

// Status sets the line shown by `systemctl status`.
func (n Notifier) Status(text string) error {
	return n.send("STATUS=" + oneline.Of(text))
}

// Alive feeds the watchdog. Call it from the loop that must not hang, rather than from a separate timer.
func (n Notifier) Alive() error { return n.send(daemon.SdNotifyWatchdog) }

// Stopping tells systemd that the service is stopping on purpose.
func (n Notifier) Stopping() error { return n.send(daemon.SdNotifyStopping) }

// Watchdog returns the time after which systemd kills a process that has not called Alive, or 0 without a watchdog.
// Call Alive at least twice as often.
func (n Notifier) Watchdog() time.Duration { return n.watchdog }

// StoreSocket stores a socket in systemd, which passes it to later processes of this service under that name (see
// TakeListener). The socket stays open while the service restarts, even after a crash, and is closed when the service
// is stopped. The unit needs FileDescriptorStoreMax=; without it, systemd ignores the message. A socket unit would hold
// the port even if this agent was replaced by cloudfoundry/bosh-agent, which binds the port itself.
func (n Notifier) StoreSocket(name string, socket syscall.Conn) error {
	// Do not use File().Fd(): it makes the socket itself blocking, so that closing it would not end an Accept.
	raw, err := socket.SyscallConn()
	if err != nil {
		return fmt.Errorf("store socket in the service manager: %w", err)
	}
	var sent error
	err = raw.Control(func(fd uintptr) { sent = n.send("FDSTORE=1\nFDNAME="+name, unix.UnixRights(int(fd))...) })
	return errors.Join(err, sent)
}

// RemoveSocket makes systemd close a stored socket.
func (n Notifier) RemoveSocket(name string) error { return n.send("FDSTOREREMOVE=1\nFDNAME=" + name) }

// send sends a message, with file descriptors encoded as rights, if any.
func (n Notifier) send(message string, rights ...byte) (err error) {
	if n.socket == "" {
		return nil
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("notify systemd: %w", err)
		}
	}()
	// A leading @ means the abstract namespace, in package net, too.
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: n.socket, Net: "unixgram"})
	if err != nil {
		return err
	}
	// systemd reads this socket in its main loop. While that is busy, the agent must not wait.
	if err := conn.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
		return errors.Join(err, conn.Close())
	}
	// package net writes descriptors only to an address, which a connected socket does not accept.
	raw, err := conn.SyscallConn()
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	var sent error
	err = raw.Write(func(fd uintptr) bool {
		sent = unix.Sendmsg(int(fd), []byte(message), rights, nil, unix.MSG_NOSIGNAL)
		return !errors.Is(sent, unix.EAGAIN)
	})
	return errors.Join(err, sent, conn.Close())
}
