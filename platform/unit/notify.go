package unit

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// Notifier tells systemd about this process. The zero value says nothing, which is right for
// a process that systemd did not start.
type Notifier struct {
	socket   string
	watchdog time.Duration
}

// TakeNotifier reads what systemd put into the environment and removes it from there, so that
// no program this process starts speaks in its name.
func TakeNotifier() (Notifier, error) {
	n := Notifier{socket: os.Getenv("NOTIFY_SOCKET")}
	micros, pid := os.Getenv("WATCHDOG_USEC"), os.Getenv("WATCHDOG_PID")
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		if err := os.Unsetenv(name); err != nil {
			return Notifier{}, fmt.Errorf("take %s: %w", name, err)
		}
	}
	if micros == "" || pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return n, nil
	}
	usec, err := strconv.ParseInt(micros, 10, 64)
	if err != nil || usec <= 0 || usec > int64(24*time.Hour/time.Microsecond) {
		return n, fmt.Errorf("WATCHDOG_USEC=%q is not a time in microseconds", micros)
	}
	n.watchdog = time.Duration(usec) * time.Microsecond
	return n, nil
}

// Ready says that the service is up.
func (n Notifier) Ready() error { return n.send("READY=1") }

// Status is the line that `systemctl status` shows.
func (n Notifier) Status(text string) error {
	return n.send("STATUS=" + strings.Map(oneLine, text))
}

// Alive feeds the watchdog. Call it from what must not hang, not from a timer of its own.
func (n Notifier) Alive() error { return n.send("WATCHDOG=1") }

// Stopping says that the service is going down on purpose.
func (n Notifier) Stopping() error { return n.send("STOPPING=1") }

// Watchdog is the time after which systemd ends a process that has not called Alive; 0 means
// that it does not watch. Call Alive at least twice as often.
func (n Notifier) Watchdog() time.Duration { return n.watchdog }

func (n Notifier) send(message string) (err error) {
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
	// systemd reads this socket in its main loop; while it is busy, nobody may wait for it.
	if err := conn.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
		return errors.Join(err, conn.Close())
	}
	_, err = conn.Write([]byte(message))
	return errors.Join(err, conn.Close())
}

// oneLine keeps a status from starting a second assignment.
func oneLine(r rune) rune {
	if r < ' ' || r == 0x7f {
		return ' '
	}
	return r
}
