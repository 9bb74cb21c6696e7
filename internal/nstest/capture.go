package nstest

import (
	"context"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cambium/internal/rawsocket"
)

func hardware(t *testing.T, mac string) net.HardwareAddr {
	t.Helper()
	parsed, err := net.ParseMAC(mac)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

// Capture captures the frames that arrive at the other end of a link.
type Capture struct{ conn *rawsocket.Conn }

// Capture starts a capture at the other end of a link.
func (p *Peer) Capture(t *testing.T, name string) *Capture {
	t.Helper()
	link, err := p.Handle.LinkByName(name)
	if err != nil {
		t.Fatalf("peer link %s: %v", name, err)
	}
	var conn *rawsocket.Conn
	p.Do(t, func() (err error) {
		conn, err = rawsocket.Open(unix.AF_PACKET, unix.SOCK_RAW, 0,
			&unix.SockaddrLinklayer{Protocol: networkOrder(unix.ETH_P_ALL), Ifindex: link.Attrs().Index}, nil)
		return err
	})
	t.Cleanup(conn.Close)
	return &Capture{conn: conn}
}

// Wait returns the first frame for which match returns true, or nil after limit.
func (c *Capture) Wait(t *testing.T, limit time.Duration, match func(frame []byte) bool) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	buffer := make([]byte, 64<<10)
	for {
		n, from, err := c.conn.Receive(ctx, buffer)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			t.Fatalf("capture: %v", err)
		}
		if l, ok := from.(*unix.SockaddrLinklayer); ok && l.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		if match(buffer[:n]) {
			return append([]byte(nil), buffer[:n]...)
		}
	}
}

func networkOrder(v uint16) uint16 { return v<<8 | v>>8 }
