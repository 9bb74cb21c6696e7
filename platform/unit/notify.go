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

// Notifier tells systemd about this process. The zero value sends nothing, which is right for a
// process that systemd did not start. It keeps the socket's name, where go-systemd's SdNotify reads the
// environment at each call and waits for systemd without a deadline.
type Notifier struct {
	socket   string
	watchdog time.Duration
}

// TakeNotifier reads what systemd put into the environment and removes it from there, so that no
// program this process starts can notify on its behalf.
func TakeNotifier() (Notifier, error) {
	n := Notifier{socket: os.Getenv("NOTIFY_SOCKET")}
	if err := os.Unsetenv("NOTIFY_SOCKET"); err != nil {
		return Notifier{}, fmt.Errorf("take NOTIFY_SOCKET: %w", err)
	}
	var err error
	n.watchdog, err = daemon.SdWatchdogEnabled(true)
	return n, err
}

// Ready reports that the service is up.
func (n Notifier) Ready() error { return n.send(daemon.SdNotifyReady) }

// Status is the line that `systemctl status` shows.
func (n Notifier) Status(text string) error {
	return n.send("STATUS=" + oneline.Of(text))
}

// Alive feeds the watchdog. Call it from the loop that must not hang, not from a timer of its own.
func (n Notifier) Alive() error { return n.send(daemon.SdNotifyWatchdog) }

// Stopping reports that the service is going down on purpose.
func (n Notifier) Stopping() error { return n.send(daemon.SdNotifyStopping) }

// Watchdog is the time after which systemd ends a process that has not called Alive; 0 means
// that there is no watchdog. Call Alive at least twice as often.
func (n Notifier) Watchdog() time.Duration { return n.watchdog }

// Keep hands systemd a socket, which it passes to each later process of this service under that name (see
// TakeListener). The socket stays open while the service is started again, after a crash too, and is closed when the
// service is stopped. It needs FileDescriptorStoreMax= in the unit; without it systemd ignores the message. A socket
// unit would keep the port even where cloudfoundry/bosh-agent, which binds it itself, has replaced this agent.
func (n Notifier) Keep(name string, socket syscall.Conn) error {
	// Not File().Fd(): it makes the socket itself blocking, and closing it would not end an Accept.
	raw, err := socket.SyscallConn()
	if err != nil {
		return fmt.Errorf("store socket in the service manager: %w", err)
	}
	var sent error
	err = raw.Control(func(fd uintptr) { sent = n.send("FDSTORE=1\nFDNAME="+name, unix.UnixRights(int(fd))...) })
	return errors.Join(err, sent)
}

// Release has systemd close a socket that it keeps.
func (n Notifier) Release(name string) error { return n.send("FDSTOREREMOVE=1\nFDNAME=" + name) }

// send passes a message on, with file descriptors encoded as rights if there are any.
func (n Notifier) send(message string, rights ...byte) (err error) {
	if n.socket == "" {
		return nil
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("notify systemd: %w", err)
		}
	}()
	// A leading @ means the abstract name space; package net reads it the same way.
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: n.socket, Net: "unixgram"})
	if err != nil {
		return err
	}
	// systemd reads this socket in its main loop; while it is busy, the agent must not wait for it.
	if err := conn.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
		return errors.Join(err, conn.Close())
	}
	// net writes descriptors only to an address, which a connected socket does not take.
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
