package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"

	"cambium/lab/guest"
	"cambium/lab/machine"
)

// Shell returns the command line of a shell in the machine: the engine's Attach, the machine's socket, and args. The
// program must exchange frames of package guest: one Run, then input, until Exit.
func (m *Machine) Shell(args ...string) ([]string, error) {
	if !m.Running() {
		return nil, fmt.Errorf("%s: %w", m.Spec.Name, machine.ErrNotRunning)
	}
	if len(m.engine.Attach) == 0 {
		return nil, errors.New("this lab was started without a program that can open a shell")
	}
	if len(args) == 0 {
		args = []string{"/bin/bash", "-l"}
	}
	command := append(append([]string{}, m.engine.Attach...), m.socket(), "--")
	return append(command, args...), nil
}

// socket returns the path of the machine's socket. It is short, because socket paths are limited to about 100
// characters.
func (m *Machine) socket() string { return filepath.Join(os.TempDir(), m.Spec.Name+".shell") }

// listen serves shells to other processes of this user.
func (m *Machine) listen() error {
	_ = os.Remove(m.socket())
	l, err := net.Listen("unix", m.socket())
	if err != nil {
		return err
	}
	if err := os.Chmod(m.socket(), 0o600); err != nil {
		return errors.Join(err, l.Close())
	}
	m.shells = l
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				m.serveShell(conn)
			}()
		}
	}()
	return nil
}

// serveShell forwards one request to the machine.
func (m *Machine) serveShell(conn net.Conn) {
	out := &guest.Writer{W: conn}
	first, err := guest.Read(conn)
	var r guest.Request
	if err != nil || first.Kind != guest.Run || json.Unmarshal(first.Data, &r) != nil {
		return
	}
	h, err := m.reach()
	if err != nil {
		_ = out.JSON(guest.Exit, 0, guest.Result{Error: err.Error()})
		return
	}
	input, feed := io.Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		defer cancel() // the client has gone
		for {
			f, err := guest.Read(conn)
			switch {
			case err != nil:
				_ = feed.Close()
				return
			case f.Kind == guest.Stdin:
				_, _ = feed.Write(f.Data)
			case f.Kind == guest.StdinEnd:
				_ = feed.Close()
			}
		}
	}()
	result, err := h.call(ctx, r, input, guest.Stream{To: out, Kind: guest.Stdout},
		guest.Stream{To: out, Kind: guest.Stderr})
	_ = input.Close()
	if err != nil {
		result = guest.Result{Error: err.Error()}
	}
	_ = out.JSON(guest.Exit, 0, result)
}
