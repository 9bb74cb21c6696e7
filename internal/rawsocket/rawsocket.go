// Package rawsocket has sockets that package net lacks: netlink, packet and raw ICMP sockets. Every wait ends with its
// context.
package rawsocket

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Conn is a socket in the network namespace of the thread that opened it. Use it from one goroutine at a time.
type Conn struct {
	file *os.File // non-blocking, so that the runtime's poller waits and Close or a deadline ends the wait
	raw  syscall.RawConn
}

// Open opens a socket and binds it to address. If set is not nil, it is called before, to set options.
func Open(family, kind, protocol int, address unix.Sockaddr, set func(fd int) error) (*Conn, error) {
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return nil, fmt.Errorf("open socket: %w", err)
	}
	file := os.NewFile(uintptr(fd), "socket")
	if set != nil {
		err = set(fd)
	}
	if err == nil {
		err = unix.Bind(fd, address)
	}
	raw, rawErr := file.SyscallConn()
	if err := errors.Join(err, rawErr); err != nil {
		return nil, errors.Join(fmt.Errorf("set up socket: %w", err), file.Close())
	}
	return &Conn{file, raw}, nil
}

// Close closes the socket. Messages that were sent are not affected.
func (c *Conn) Close() { _ = c.file.Close() }

// Receive returns the next message and its sender. If ctx ends first, it returns the cause. It cuts a message that is
// longer than buffer.
func (c *Conn) Receive(ctx context.Context, buffer []byte) (n int, from unix.Sockaddr, err error) {
	if ctx.Err() != nil {
		return 0, nil, context.Cause(ctx)
	}
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = c.file.SetReadDeadline(time.Unix(0, 1))
		close(interrupted)
	})
	pollErr := c.raw.Read(func(fd uintptr) bool {
		for err = unix.EINTR; err == unix.EINTR; {
			n, from, err = unix.Recvfrom(int(fd), buffer, 0)
		}
		return err != unix.EAGAIN
	})
	if !stop() {
		<-interrupted
		_ = c.file.SetReadDeadline(time.Time{}) // for the next wait
	}
	switch {
	case pollErr == nil && err == nil:
		return n, from, nil
	case pollErr == nil:
		return 0, nil, os.NewSyscallError("recvfrom", err)
	case ctx.Err() != nil:
		return 0, nil, context.Cause(ctx)
	}
	return 0, nil, pollErr
}

// Send sends a message without waiting. If the kernel has no room for it, the message is lost, as it could be on the
// network.
func (c *Conn) Send(message []byte, to unix.Sockaddr) error {
	var err error
	controlErr := c.raw.Control(func(fd uintptr) {
		for err = unix.EINTR; err == unix.EINTR; {
			err = unix.Sendto(int(fd), message, 0, to)
		}
	})
	if err == unix.EAGAIN {
		err = nil
	}
	return errors.Join(controlErr, os.NewSyscallError("sendto", err))
}
