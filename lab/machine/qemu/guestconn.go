package qemu

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"sync"
	"time"

	"cambium/lab/guest"
	"cambium/lab/machine"
)

// guestConn is the host's end of the connection to a machine's guest program.
type guestConn struct {
	conn net.Conn
	out  *guest.Writer

	mu        sync.Mutex
	next      uint32
	calls     map[uint32]*guestCall
	connected chan struct{} // closed when the guest program has connected
	gone      chan struct{} // closed when the connection has ended
	stopped   chan struct{} // closed when the current reader has ended
	greeted   func()
}

// guestCall is a running request.
type guestCall struct {
	stdout, stderr io.Writer
	result         chan guest.Result
	failed         chan error
}

var errRewound = errors.New("the machine was rewound")

func newGuestConn(conn net.Conn, greeted func()) *guestConn {
	h := &guestConn{conn: conn, out: &guest.Writer{W: conn}, calls: map[uint32]*guestCall{},
		connected: make(chan struct{}), gone: make(chan struct{}),
		stopped: make(chan struct{}), greeted: greeted}
	go h.read(h.stopped)
	return h
}

func (h *guestConn) read(stopped chan struct{}) {
	defer close(stopped)
	for {
		f, err := guest.Read(h.conn)
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() {
			return // parked
		}
		if err != nil {
			h.fail(machine.ErrNotRunning)
			close(h.gone)
			return
		}
		h.handle(f)
	}
}

func (h *guestConn) handle(f guest.Frame) {
	if f.Kind == guest.Hello {
		h.mu.Lock()
		select {
		case <-h.connected:
		default:
			close(h.connected)
			h.greeted()
		}
		h.mu.Unlock()
		return
	}
	h.mu.Lock()
	c := h.calls[f.ID]
	if c != nil && f.Kind == guest.Exit {
		delete(h.calls, f.ID)
	}
	h.mu.Unlock()
	if c == nil {
		return
	}
	switch f.Kind {
	case guest.Stdout:
		_, _ = c.stdout.Write(f.Data)
	case guest.Stderr:
		_, _ = c.stderr.Write(f.Data)
	case guest.Exit:
		r := guest.Result{}
		if err := json.Unmarshal(f.Data, &r); err != nil {
			r.Error = err.Error()
		}
		c.result <- r
	}
}

// fail ends all calls with an error.
func (h *guestConn) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, c := range h.calls {
		c.failed <- err
		delete(h.calls, id)
	}
}

// park stops reading while the machine is paused, after everything that was sent has been read.
func (h *guestConn) park() {
	_ = h.conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	h.mu.Lock()
	stopped := h.stopped
	h.mu.Unlock()
	<-stopped
	h.fail(errRewound)
}

// resume continues to read. The guest must be between two frames.
func (h *guestConn) resume() {
	_ = h.conn.SetReadDeadline(time.Time{})
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case <-h.gone:
		return
	default:
	}
	h.stopped = make(chan struct{})
	select {
	case <-h.connected:
	default:
		close(h.connected)
		h.greeted()
	}
	go h.read(h.stopped)
}

// call sends a request and waits until it has ended.
func (h *guestConn) call(ctx context.Context, r guest.Request, stdin io.Reader, stdout,
	stderr io.Writer) (guest.Result, error) {
	select {
	case <-h.connected:
	case <-h.gone:
		return guest.Result{}, machine.ErrNotRunning
	case <-ctx.Done():
		return guest.Result{}, fmt.Errorf("the machine does not answer: %w", ctx.Err())
	}
	if stdout == nil {
		stdout = io.Discard
	}
	if stderr == nil {
		stderr = io.Discard
	}
	c := &guestCall{stdout: stdout, stderr: stderr, result: make(chan guest.Result, 1), failed: make(chan error, 1)}
	h.mu.Lock()
	h.next++
	id := h.next
	h.calls[id] = c
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.calls, id)
	}()
	if err := h.out.JSON(guest.Run, id, r); err != nil {
		return guest.Result{}, machine.ErrNotRunning
	}
	go func() {
		if stdin != nil {
			_, _ = io.Copy(guest.Stream{To: h.out, Kind: guest.Stdin, ID: id}, stdin)
		}
		_ = h.out.Frame(guest.StdinEnd, id, nil)
	}()
	select {
	case result := <-c.result:
		return result, nil
	case err := <-c.failed:
		return guest.Result{}, err
	case <-h.gone:
		return guest.Result{}, machine.ErrNotRunning
	case <-ctx.Done():
		_ = h.out.Frame(guest.Kill, id, nil)
		return guest.Result{}, ctx.Err()
	}
}

func (h *guestConn) readFile(ctx context.Context, path string) ([]byte, error) {
	var data bytes.Buffer
	r, err := h.call(ctx, guest.Request{Op: "read", Path: path}, nil, &data, nil)
	return data.Bytes(), result(path, r, err)
}

func (h *guestConn) writeFile(ctx context.Context, f machine.File) error {
	r, err := h.call(ctx, guest.Request{Op: "write", Path: f.Path, Mode: f.Mode}, bytes.NewReader(f.Data), nil, nil)
	return result(f.Path, r, err)
}

func result(what string, r guest.Result, err error) error {
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", what, err)
	case r.Absent:
		return fmt.Errorf("%s: %w", what, fs.ErrNotExist)
	case r.Error != "":
		return fmt.Errorf("%s: %s", what, r.Error)
	}
	return nil
}
