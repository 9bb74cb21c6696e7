//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/signal"

	"cambium/lab/guest"

	"golang.org/x/sys/unix"
)

// attach runs a program in a virtual machine, on this terminal if there is one. The shell command of a machine calls
// it.
func attach(ctx context.Context, c *call) error {
	if err := c.parse(1, 1); err != nil {
		return err
	}
	if len(c.extra) == 0 {
		return usagef("missing command after --")
	}
	conn, err := net.Dial("unix", c.args[0])
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	r := guest.Request{Op: "run", Args: c.extra}
	out := &guest.Writer{W: conn}
	if restore, err := rawTerminal(); err == nil {
		defer restore()
		r.Terminal = true
		r.Env = []string{"TERM=" + os.Getenv("TERM")}
		r.Rows, r.Columns = windowSize()
		changed := make(chan os.Signal, 1)
		signal.Notify(changed, unix.SIGWINCH)
		defer signal.Stop(changed)
		go func() {
			for range changed {
				rows, columns := windowSize()
				_ = out.JSON(guest.Window, 0, guest.Request{Rows: rows, Columns: columns})
			}
		}()
	}
	if err := out.JSON(guest.Run, 0, r); err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(guest.Stream{To: out, Kind: guest.Stdin}, os.Stdin)
		_ = out.Frame(guest.StdinEnd, 0, nil)
	}()
	for {
		f, err := guest.Read(conn)
		if err != nil {
			return errors.New("the connection to the machine was lost")
		}
		switch f.Kind {
		case guest.Stdout:
			_, _ = c.stdout.Write(f.Data)
		case guest.Stderr:
			_, _ = c.stderr.Write(f.Data)
		case guest.Exit:
			return exit(f.Data)
		}
	}
}

func exit(data []byte) error {
	var r guest.Result
	if err := json.Unmarshal(data, &r); err != nil {
		return err
	}
	if r.Error != "" {
		return errors.New(r.Error)
	}
	if r.Status != 0 {
		return exitStatus(r.Status)
	}
	return nil
}

func windowSize() (rows, columns int) {
	size, err := unix.IoctlGetWinsize(int(os.Stdin.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 24, 80
	}
	return int(size.Row), int(size.Col)
}

// rawTerminal switches the terminal to raw mode, so that every key is sent to the machine. It fails if there is no
// terminal.
func rawTerminal() (restore func(), err error) {
	fd := int(os.Stdin.Fd())
	old, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, err
	}
	if _, err := unix.IoctlGetTermios(int(os.Stdout.Fd()), unix.TCGETS); err != nil {
		return nil, err
	}
	raw := *old
	raw.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	raw.Oflag &^= unix.OPOST
	raw.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	raw.Cflag = raw.Cflag&^(unix.CSIZE|unix.PARENB) | unix.CS8
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &raw); err != nil {
		return nil, err
	}
	return func() { _ = unix.IoctlSetTermios(fd, unix.TCSETS, old) }, nil
}
