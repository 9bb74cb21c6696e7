package neighbor

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"cambium/internal/rawsocket"
	"cambium/platform/network"
)

const (
	arpRequest = 1
	arpReply   = 2
	arpLength  = 28
)

// arp is an ARP message for IPv4 over Ethernet.
type arp struct {
	operation            uint16
	senderMAC, targetMAC [6]byte
	senderIP, targetIP   netip.Addr
}

func (a arp) bytes() []byte {
	b := make([]byte, 0, arpLength)
	b = binary.BigEndian.AppendUint16(b, 1) // Ethernet
	b = binary.BigEndian.AppendUint16(b, unix.ETH_P_IP)
	b = append(b, 6, 4)
	b = binary.BigEndian.AppendUint16(b, a.operation)
	b = append(b, a.senderMAC[:]...)
	b = append(b, a.senderIP.AsSlice()...)
	b = append(b, a.targetMAC[:]...)
	return append(b, a.targetIP.AsSlice()...)
}

// parseARP parses a message. Frames may be padded, so extra bytes are ignored.
func parseARP(b []byte) (arp, bool) {
	if len(b) < arpLength || binary.BigEndian.Uint16(b) != 1 || binary.BigEndian.Uint16(b[2:]) != unix.ETH_P_IP ||
		b[4] != 6 ||
		b[5] != 4 {
		return arp{}, false
	}
	return arp{
		operation: binary.BigEndian.Uint16(b[6:]),
		senderMAC: [6]byte(b[8:14]),
		senderIP:  netip.AddrFrom4([4]byte(b[14:18])),
		targetMAC: [6]byte(b[18:24]),
		targetIP:  netip.AddrFrom4([4]byte(b[24:28])),
	}, true
}

// arpConn sends and receives ARP on one link.
type arpConn struct {
	conn  *rawsocket.Conn
	index int
	mac   [6]byte
}

var ethernetBroadcast = [8]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

func dialARP(l network.Link) (*arpConn, error) {
	mac, err := net.ParseMAC(string(l.MAC))
	if err != nil || len(mac) != 6 {
		return nil, fmt.Errorf("%s has no Ethernet address", l.Name)
	}
	protocol := bigEndian(unix.ETH_P_ARP)
	// If the protocol was set now, the socket would receive from all links until it is bound to one.
	conn, err := rawsocket.Open(unix.AF_PACKET, unix.SOCK_DGRAM, 0,
		&unix.SockaddrLinklayer{Protocol: protocol, Ifindex: l.Index}, nil)
	if err != nil {
		return nil, fmt.Errorf("ARP on %s: %w", l.Name, err)
	}
	return &arpConn{conn, l.Index, [6]byte(mac)}, nil
}

func (c *arpConn) close() { c.conn.Close() }

func (c *arpConn) broadcast(a arp) error {
	return c.conn.Send(a.bytes(), &unix.SockaddrLinklayer{
		Protocol: bigEndian(unix.ETH_P_ARP), Ifindex: c.index, Halen: 6, Addr: ethernetBroadcast,
	})
}

// request asks who has ip. With the unspecified address as from, it is a probe that changes no ARP tables.
func (c *arpConn) request(from, ip netip.Addr) error {
	return c.broadcast(arp{operation: arpRequest, senderMAC: c.mac, senderIP: from, targetIP: ip})
}

// announce announces ip both as a request and as a reply, since peers differ in which one they accept.
func (c *arpConn) announce(ip netip.Addr) error {
	for _, operation := range []uint16{arpRequest, arpReply} {
		a := arp{operation: operation, senderMAC: c.mac, senderIP: ip, targetMAC: c.mac, targetIP: ip}
		if err := c.broadcast(a); err != nil {
			return err
		}
	}
	return nil
}

// receive returns the next message for which match returns true.
func (c *arpConn) receive(ctx context.Context, match func(arp) bool) (arp, error) {
	var buffer [128]byte
	for {
		n, from, err := c.conn.Receive(ctx, buffer[:])
		if err != nil {
			return arp{}, err
		}
		if l, ok := from.(*unix.SockaddrLinklayer); ok && l.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		if a, ok := parseARP(buffer[:n]); ok && match(a) {
			return a, nil
		}
	}
}

func bigEndian(v uint16) uint16 { return v<<8 | v>>8 }
