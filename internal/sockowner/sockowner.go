// Package sockowner finds the user that owns a TCP socket of this machine: the other end of a local connection, or the
// listener on a local port. TCP has no peer credentials, but the kernel lists all sockets of the network namespace with
// their owners. The answer is valid only for the moment, so ask while the connection is open and before a secret is
// sent.
//
// A socket that no process has open is not reported, because the kernel lists root as its owner. It is in TIME_WAIT,
// waits to be accepted, or remains of a multipath TCP connection, which stays established for a while after its user
// has closed it (before Linux 6.16).
package sockowner

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// ErrUnknown means that the kernel lists no such socket: it was closed, or belongs to another machine or network
// namespace.
var ErrUnknown = errors.New("the owner of the socket is unknown")

// States of a socket in /proc/net/tcp.
const (
	established = "01"
	listening   = "0A"
)

// Table reads the sockets below Dir. If Dir is empty, it asks the kernel for a single socket, or reads /proc/net.
type Table struct{ Dir string }

// Peer returns the user at the other end of an established connection within this machine.
func (t Table) Peer(conn net.Conn) (uint32, error) {
	peer, own, err := addresses(conn)
	if err != nil {
		return 0, err
	}
	if t.Dir == "" {
		if uid, err := diagPeer(peer, own); !errors.Is(err, errNoDiag) {
			return uid, err
		}
	}
	return t.find(func(s socket) bool { return s.state == established && s.local == peer && s.remote == own })
}

func addresses(conn net.Conn) (peer, own netip.AddrPort, err error) {
	remote, ok := conn.RemoteAddr().(*net.TCPAddr)
	local, ok2 := conn.LocalAddr().(*net.TCPAddr)
	if !ok || !ok2 {
		return peer, own, errors.New("not a TCP connection")
	}
	return unmapped(remote.AddrPort()), unmapped(local.AddrPort()), nil
}

// OtherEnd is like Peer, but the socket may be in any state: after it has closed its sending half, it still receives.
func (t Table) OtherEnd(conn net.Conn) (uint32, error) {
	peer, own, err := addresses(conn)
	if err != nil {
		return 0, err
	}
	if t.Dir == "" {
		if _, uid, err := diagSocket(peer, own); !errors.Is(err, errNoDiag) {
			return uid, err
		}
	}
	return t.find(func(s socket) bool { return s.local == peer && s.remote == own })
}

// Listener returns the user whose socket accepts connections to an address of this machine.
func (t Table) Listener(address netip.AddrPort) (uint32, error) {
	address = unmapped(address)
	if t.Dir == "" {
		if uid, err := diagListener(address); err == nil {
			return uid, nil
		}
	}
	return t.find(func(s socket) bool {
		return s.state == listening && s.local.Port() == address.Port() &&
			(s.local.Addr() == address.Addr() || s.local.Addr().IsUnspecified())
	})
}

func unmapped(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}

type socket struct {
	local, remote netip.AddrPort
	state         string
	uid           uint32
	inode         uint64 // 0 if no process has it open
}

func (t Table) find(match func(socket) bool) (uint32, error) {
	dir := t.Dir
	if dir == "" {
		dir = "/proc/net"
	}
	for _, name := range []string{"tcp", "tcp6"} {
		file, err := os.Open(filepath.Join(dir, name))
		if errors.Is(err, os.ErrNotExist) {
			continue // a kernel without IPv6
		}
		if err != nil {
			return 0, err
		}
		uid, found, err := search(file, match)
		if err := errors.Join(err, file.Close()); err != nil {
			return 0, err
		}
		if found {
			return uid, nil
		}
	}
	return 0, ErrUnknown
}

func search(table io.Reader, match func(socket) bool) (uint32, bool, error) {
	lines := bufio.NewScanner(table)
	lines.Scan() // the heading
	for lines.Scan() {
		s, err := parse(lines.Text())
		if err != nil {
			return 0, false, err
		}
		if s.inode != 0 && match(s) {
			return s.uid, true, nil
		}
	}
	return 0, false, lines.Err()
}

// parse parses a line such as "0: 0100007F:0B06 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 …".
func parse(line string) (s socket, err error) {
	fields := strings.Fields(line)
	if len(fields) < 10 {
		return s, fmt.Errorf("socket table: a line has %d fields", len(fields))
	}
	if s.local, err = parseAddress(fields[1]); err != nil {
		return s, err
	}
	if s.remote, err = parseAddress(fields[2]); err != nil {
		return s, err
	}
	uid, err := strconv.ParseUint(fields[7], 10, 32)
	if err != nil {
		return s, fmt.Errorf("socket table: uid: %w", err)
	}
	if s.inode, err = strconv.ParseUint(fields[9], 10, 64); err != nil {
		return s, fmt.Errorf("socket table: inode: %w", err)
	}
	s.state, s.uid = fields[3], uint32(uid)
	return s, nil
}

// parseAddress parses an address, which is hexadecimal words of four bytes in host byte order, and a port.
func parseAddress(text string) (netip.AddrPort, error) {
	words, portText, _ := strings.Cut(text, ":")
	port, err := strconv.ParseUint(portText, 16, 16)
	if err != nil || len(words) != 8 && len(words) != 32 {
		return netip.AddrPort{}, fmt.Errorf("socket table: address %q", text)
	}
	var ip []byte
	for i := 0; i < len(words); i += 8 {
		word, err := strconv.ParseUint(words[i:i+8], 16, 32)
		if err != nil {
			return netip.AddrPort{}, fmt.Errorf("socket table: address %q", text)
		}
		ip = append(ip, byte(word), byte(word>>8), byte(word>>16), byte(word>>24))
	}
	address, _ := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(address.Unmap(), uint16(port)), nil
}
