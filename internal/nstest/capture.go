package nstest

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/mdlayher/socket"
	"golang.org/x/sys/unix"
)

func hardware(t *testing.T, mac string) net.HardwareAddr {
	t.Helper()
	parsed, err := net.ParseMAC(mac)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

// Capture sees every frame that arrives at the other end of a link from now on.
type Capture struct{ conn *socket.Conn }

// Capture starts a capture at the other end of a link.
func (p *Peer) Capture(t *testing.T, name string) *Capture {
	t.Helper()
	link, err := p.Handle.LinkByName(name)
	if err != nil {
		t.Fatalf("peer link %s: %v", name, err)
	}
	conn, err := socket.Socket(unix.AF_PACKET, unix.SOCK_RAW, networkOrder(unix.ETH_P_ALL), "capture", &socket.Config{NetNS: int(p.ns)})
	if err != nil {
		t.Fatalf("open packet socket: %v", err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.Bind(&unix.SockaddrLinklayer{Protocol: uint16(networkOrder(unix.ETH_P_ALL)), Ifindex: link.Attrs().Index}); err != nil {
		t.Fatalf("bind packet socket: %v", err)
	}
	return &Capture{conn: conn}
}

// Wait returns the first frame for which match is true, or nil when there is none in time.
func (c *Capture) Wait(t *testing.T, limit time.Duration, match func(frame []byte) bool) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	buffer := make([]byte, 64<<10)
	for {
		n, from, err := c.conn.Recvfrom(ctx, buffer, 0)
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

func networkOrder(v uint16) int { return int(v<<8 | v>>8) }
