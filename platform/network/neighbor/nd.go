package neighbor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"cambium/internal/rawsocket"
	"cambium/platform/network"
)

const (
	ndSolicitation  = 135
	ndAdvertisement = 136
	// ndHopLimit is the hop limit that receivers require, since it proves that no router has forwarded the message.
	ndHopLimit = 255
	ndOverride = 1 << 5

	optionSourceLinkAddress = 1
	optionTargetLinkAddress = 2
)

var allNodes = netip.MustParseAddr("ff02::1")

// ndConn sends and receives neighbor discovery messages on one link.
type ndConn struct {
	conn  *rawsocket.Conn
	index int
	mac   net.HardwareAddr
}

// dialND opens a socket to send from one of the link's addresses.
func dialND(l network.Link, from netip.Addr) (*ndConn, error) {
	mac, err := net.ParseMAC(string(l.MAC))
	if err != nil || len(mac) != 6 {
		return nil, fmt.Errorf("%s has no Ethernet address", l.Name)
	}
	var filter unix.ICMPv6Filter // a set bit blocks the type
	for i := range filter.Data {
		filter.Data[i] = ^uint32(0)
	}
	filter.Data[ndAdvertisement/32] &^= 1 << (ndAdvertisement % 32)
	conn, err := rawsocket.Open(unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6,
		&unix.SockaddrInet6{Addr: from.As16(), ZoneId: uint32(l.Index)}, func(fd int) error {
			return errors.Join(unix.SetsockoptICMPv6Filter(fd, unix.IPPROTO_ICMPV6, unix.ICMPV6_FILTER, &filter),
				unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF, l.Index),
				unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, ndHopLimit),
				unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_LOOP, 0))
		})
	if err != nil {
		return nil, fmt.Errorf("neighbor discovery on %s: %w", l.Name, err)
	}
	return &ndConn{conn, l.Index, mac}, nil
}

func (c *ndConn) close() { c.conn.Close() }

// message returns a solicitation or an advertisement. The kernel fills in the checksum.
func (c *ndConn) message(kind, flags byte, target netip.Addr, option byte) []byte {
	b := []byte{kind, 0, 0, 0, flags, 0, 0, 0}
	b = append(b, target.AsSlice()...)
	b = append(b, option, 1)
	return append(b, c.mac...)
}

func (c *ndConn) send(b []byte, to netip.Addr) error {
	return c.conn.Send(b, &unix.SockaddrInet6{Addr: to.As16(), ZoneId: uint32(c.index)})
}

// announce sends an unsolicited advertisement of ip to all nodes on the link.
func (c *ndConn) announce(ip netip.Addr) error {
	return c.send(c.message(ndAdvertisement, ndOverride, ip, optionTargetLinkAddress), allNodes)
}

// request sends a neighbor solicitation for ip to its solicited-node multicast group.
func (c *ndConn) request(ip netip.Addr) error {
	last := ip.As16()
	group := netip.MustParseAddr("ff02::1:ff00:0").As16()
	copy(group[13:], last[13:])
	return c.send(c.message(ndSolicitation, 0, ip, optionSourceLinkAddress), netip.AddrFrom16(group))
}

// receive waits for an advertisement of ip.
func (c *ndConn) receive(ctx context.Context, ip netip.Addr) error {
	var buffer [1500]byte
	for {
		n, _, err := c.conn.Receive(ctx, buffer[:])
		if err != nil {
			return err
		}
		if target, ok := parseAdvertisement(buffer[:n]); ok && target == ip {
			return nil
		}
	}
}

func parseAdvertisement(b []byte) (netip.Addr, bool) {
	if len(b) < 24 || b[0] != ndAdvertisement || b[1] != 0 {
		return netip.Addr{}, false
	}
	return netip.AddrFrom16([16]byte(b[8:24])), true
}
