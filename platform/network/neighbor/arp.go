package neighbor

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/mdlayher/socket"
	"golang.org/x/sys/unix"

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

// parseARP reads a message; frames may be padded, so more bytes are fine.
func parseARP(b []byte) (arp, bool) {
	if len(b) < arpLength || binary.BigEndian.Uint16(b) != 1 || binary.BigEndian.Uint16(b[2:]) != unix.ETH_P_IP || b[4] != 6 || b[5] != 4 {
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
	conn  *socket.Conn
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
	conn, err := socket.Socket(unix.AF_PACKET, unix.SOCK_DGRAM, int(protocol), "arp", nil)
	if err != nil {
		return nil, fmt.Errorf("open ARP socket: %w", err)
	}
	if err := conn.Bind(&unix.SockaddrLinklayer{Protocol: protocol, Ifindex: l.Index}); err != nil {
		return nil, errors.Join(fmt.Errorf("bind ARP socket to %s: %w", l.Name, err), conn.Close())
	}
	return &arpConn{conn, l.Index, [6]byte(mac)}, nil
}

func (c *arpConn) close() { _ = c.conn.Close() }

func (c *arpConn) broadcast(ctx context.Context, a arp) error {
	return c.conn.Sendto(ctx, a.bytes(), 0, &unix.SockaddrLinklayer{
		Protocol: bigEndian(unix.ETH_P_ARP), Ifindex: c.index, Halen: 6, Addr: ethernetBroadcast,
	})
}

// request asks who has ip. From the unspecified address it is a probe that changes no table.
func (c *arpConn) request(ctx context.Context, from, ip netip.Addr) error {
	return c.broadcast(ctx, arp{operation: arpRequest, senderMAC: c.mac, senderIP: from, targetIP: ip})
}

// announce sends ip as request and as reply: peers differ in which of the two they accept.
func (c *arpConn) announce(ctx context.Context, ip netip.Addr) error {
	for _, operation := range []uint16{arpRequest, arpReply} {
		if err := c.broadcast(ctx, arp{operation: operation, senderMAC: c.mac, senderIP: ip, targetMAC: c.mac, targetIP: ip}); err != nil {
			return err
		}
	}
	return nil
}

// receive returns the next message for which match is true.
func (c *arpConn) receive(ctx context.Context, match func(arp) bool) (arp, error) {
	var buffer [128]byte
	for {
		n, from, err := c.conn.Recvfrom(ctx, buffer[:], 0)
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
