package sockowner

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"cambium/internal/rawsocket"
)

// Holder identifies the user and the process that hold a port.
type Holder struct {
	UID     uint32
	PID     int // 0 if no process was found
	Command string
}

// String describes the holder in one line. Command can be misleading, because a process chooses its own name.
func (h Holder) String() string {
	if h.PID == 0 {
		return fmt.Sprintf("a process of user %d", h.UID)
	}
	return fmt.Sprintf("process %d (%q) of user %d", h.PID, h.Command, h.UID)
}

// IsFree reports whether a server could listen on an address of this machine. A socket that is only bound, or whose
// listener was closed, may also block the port.
func IsFree(address netip.AddrPort) (bool, error) {
	var at unix.Sockaddr = &unix.SockaddrInet6{Port: int(address.Port()), Addr: address.Addr().As16()}
	family := unix.AF_INET6
	if address.Addr().Is4() {
		at, family = &unix.SockaddrInet4{Port: int(address.Port()), Addr: address.Addr().As4()}, unix.AF_INET
	}
	// Bound and not listening, it keeps no other server with this option away.
	reuse := func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) }
	probe, err := rawsocket.Open(family, unix.SOCK_STREAM, 0, at, reuse)
	if errors.Is(err, unix.EADDRINUSE) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	probe.Close()
	return true, nil
}

// Holder returns who holds an address of this machine, ignoring sockets of the user owner. It finds a socket that is
// only bound since Linux 6.8.
func (t Table) Holder(address netip.AddrPort, owner uint32) (Holder, error) {
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		request := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
		request.AddRawData(dumpRequest(family, address.Port()))
		answers, err := request.Execute(unix.NETLINK_INET_DIAG, 0)
		if err != nil {
			break // the table is read instead
		}
		for _, a := range answers {
			// In TIME_WAIT and before it is accepted, a socket is listed as root's and has no inode.
			if len(a) < inodeAt+4 || binary.BigEndian.Uint16(a[portAt:]) != address.Port() {
				continue
			}
			uid, inode := binary.NativeEndian.Uint32(a[uidAt:]), binary.NativeEndian.Uint32(a[inodeAt:])
			if inode != 0 && uid != owner {
				return withProcess(uid, inode), nil
			}
		}
	}
	uid, err := t.Listener(address)
	return Holder{UID: uid}, err
}

// withProcess adds a process that has the socket open. It ignores errors, since processes may end meanwhile.
func withProcess(uid, inode uint32) Holder {
	want := fmt.Sprintf("socket:[%d]", inode)
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range processes {
		if hasOpen(filepath.Join(dir, "fd"), want) {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			command, _ := os.ReadFile(filepath.Join(dir, "comm"))
			return Holder{UID: uid, PID: pid, Command: string(bytes.TrimSpace(command))}
		}
	}
	return Holder{UID: uid}
}

// descriptorBatch bounds how many descriptors of a process are read at a time. A job may have a million.
const descriptorBatch = 512

func hasOpen(dir, want string) bool {
	fds, err := os.Open(dir)
	if err != nil {
		return false
	}
	defer fds.Close()
	for {
		names, err := fds.Readdirnames(descriptorBatch)
		for _, name := range names {
			if to, err := os.Readlink(filepath.Join(dir, name)); err == nil && to == want {
				return true
			}
		}
		if err != nil {
			return false
		}
	}
}

// CloseWatch reports when a socket of a TCP port has been closed by every process that had it open.
type CloseWatch struct{ conn *rawsocket.Conn }

// WatchClosed watches a port in the network namespace of the calling thread. To miss no change, list the port's sockets
// after this call.
func WatchClosed(port uint16) (*CloseWatch, error) {
	const tcpDestroyed = 1 // the bit of the group SKNLGRP_INET_TCP_DESTROY, which is the first
	set := func(fd int) error {
		// The kernel drops what is about other ports: a busy machine closes many sockets.
		accept := []unix.SockFilter{
			{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: unix.SizeofNlMsghdr + portAt},
			{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: uint32(port)},
			{Code: unix.BPF_RET | unix.BPF_K, K: 0xffff},
			{Code: unix.BPF_RET | unix.BPF_K},
		}
		filter := &unix.SockFprog{Len: uint16(len(accept)), Filter: &accept[0]}
		return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, filter)
	}
	conn, err := rawsocket.Open(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_INET_DIAG,
		&unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: tcpDestroyed}, set)
	if err != nil {
		return nil, fmt.Errorf("watch sockets: %w", err)
	}
	return &CloseWatch{conn}, nil
}

// Wait returns when a socket was closed since the last call.
func (c *CloseWatch) Wait(ctx context.Context) error {
	_, _, err := c.conn.Receive(ctx, make([]byte, 1))
	if errors.Is(err, unix.ENOBUFS) {
		return nil // more than the kernel has kept
	}
	return err
}

// Close ends the watch.
func (c *CloseWatch) Close() { c.conn.Close() }
