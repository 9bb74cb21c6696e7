package sockowner

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// errNoDiag means that the kernel cannot look up a single socket.
var errNoDiag = errors.New("no sock_diag")

// States of a socket in sock_diag.
const (
	tcpEstablished = 1
	tcpListen      = 10
)

// diagPeer asks the kernel for the established socket with these addresses. Reading the table of all sockets takes tens
// of milliseconds if a job has opened ten thousand, which is too slow for each accepted connection.
func diagPeer(peer, own netip.AddrPort) (uint32, error) {
	state, uid, err := diagSocket(peer, own)
	if err == nil && state != tcpEstablished {
		return 0, ErrUnknown
	}
	return uid, err
}

// diagSocket asks the kernel for the other end of a connection of this process. For a connection that has not been
// accepted yet, it returns the listener.
func diagSocket(peer, own netip.AddrPort) (state uint8, uid uint32, err error) {
	if state, uid, err = diag(peer, own); err == nil || errors.Is(err, ErrUnknown) {
		return state, uid, err
	}
	// An unknown socket and a kernel without the module are the same error. Our own end exists.
	if _, _, err := diag(own, peer); err == nil {
		return 0, 0, ErrUnknown
	}
	return 0, 0, errNoDiag
}

// diagListener asks the kernel for the socket that would accept a connection to the address.
func diagListener(address netip.AddrPort) (uint32, error) {
	anywhere := netip.IPv4Unspecified()
	if address.Addr().Is6() {
		anywhere = netip.IPv6Unspecified()
	}
	state, uid, err := diag(address, netip.AddrPortFrom(anywhere, 0))
	if err == nil && state != tcpListen {
		err = ErrUnknown
	}
	return uid, err
}

// Offsets in a struct inet_diag_msg: family, state and timers, then ports and addresses (48 bytes), three counters, the
// user, the inode.
const stateAt, portAt, uidAt, inodeAt = 1, 4, 4 + 48 + 12, 4 + 48 + 16

// diag returns the state and the owner of the socket that is bound to local and connected to remote. It returns
// ErrUnknown for a socket that no process has open, although the kernel lists an owner.
func diag(local, remote netip.AddrPort) (state uint8, uid uint32, err error) {
	request := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, 0)
	request.AddRawData(diagRequest(local, remote))
	answers, err := request.Execute(unix.NETLINK_INET_DIAG, 0)
	if err != nil {
		return 0, 0, err
	}
	if len(answers) != 1 || len(answers[0]) < inodeAt+4 {
		return 0, 0, errNoDiag
	}
	if binary.NativeEndian.Uint32(answers[0][inodeAt:]) == 0 {
		return 0, 0, ErrUnknown
	}
	return answers[0][stateAt], binary.NativeEndian.Uint32(answers[0][uidAt:]), nil
}

// dumpRequest returns a request for all sockets with a local port.
func dumpRequest(family byte, port uint16) []byte {
	request := make([]byte, 56)
	request[0], request[1] = family, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(request[4:], 0xffffffff)
	binary.BigEndian.PutUint16(request[8:], port)
	return request
}

// diagRequest returns a struct inet_diag_req_v2: family and protocol, the wanted states, ports and addresses in network
// byte order, interface, and a cookie that matches any socket.
func diagRequest(local, remote netip.AddrPort) []byte {
	family := byte(unix.AF_INET)
	if local.Addr().Is6() {
		family = unix.AF_INET6
	}
	request := []byte{family, unix.IPPROTO_TCP, 0, 0}
	request = binary.NativeEndian.AppendUint32(request, 0xffffffff)
	request = binary.BigEndian.AppendUint16(request, local.Port())
	request = binary.BigEndian.AppendUint16(request, remote.Port())
	for _, address := range []netip.Addr{local.Addr(), remote.Addr()} {
		field := make([]byte, 16)
		copy(field, address.AsSlice())
		request = append(request, field...)
	}
	request = binary.NativeEndian.AppendUint32(request, 0)
	return binary.NativeEndian.AppendUint64(request, 0xffffffffffffffff)
}
