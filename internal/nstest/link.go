package nstest

import (
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"cambium/internal/localroute"
	"cambium/internal/thread"
)

// untilJustBefore returns the time until shortly before the deadline, so that the parent process can still report.
func untilJustBefore(deadline time.Time) time.Duration {
	return max(time.Until(deadline)-5*time.Second, time.Second)
}

// routeHandle returns a netlink handle for the namespace of the process.
func routeHandle(t *testing.T) *netlink.Handle {
	t.Helper()
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatalf("open netlink: %v", err)
	}
	t.Cleanup(h.Close)
	return h
}

func setUp(t *testing.T, h *netlink.Handle, name string) netlink.Link {
	t.Helper()
	link, err := h.LinkByName(name)
	if err != nil {
		t.Fatalf("link %s: %v", name, err)
	}
	if err := h.LinkSetUp(link); err != nil {
		t.Fatalf("set %s up: %v", name, err)
	}
	return link
}

// Peer is a second network namespace with the other ends of all links. It plays the gateway, the DHCP server and so on.
type Peer struct {
	Handle *netlink.Handle
	ns     netns.NsHandle
}

// NewPeer creates an empty peer namespace, with forwarding enabled and loopback up.
func NewPeer(t *testing.T) *Peer {
	t.Helper()
	p := &Peer{}
	err := thread.Run(func() (err error) {
		if p.ns, err = netns.New(); err != nil {
			return err
		}
		return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644)
	})
	if err != nil {
		t.Fatalf("make a peer namespace: %v", err)
	}
	h, err := netlink.NewHandleAt(p.ns, unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatalf("open netlink in the peer namespace: %v", err)
	}
	p.Handle = h
	t.Cleanup(func() {
		h.Close()
		_ = p.ns.Close()
	})
	setUp(t, h, "lo")
	return p
}

// Do calls f on a thread inside the peer namespace. Sockets that f opens stay there.
func (p *Peer) Do(t *testing.T, f func() error) {
	t.Helper()
	err := thread.Run(func() error {
		if err := netns.Set(p.ns); err != nil {
			return err
		}
		return f()
	})
	if err != nil {
		t.Fatalf("in the peer namespace: %v", err)
	}
}

// NIC creates a link that the agent takes for a NIC of the machine. mac is its hardware address, or "" for a random
// one. Its other end has the same name, is in the peer namespace, and is up. The link itself is down, as a NIC is at
// boot.
func (p *Peer) NIC(t *testing.T, name, mac string) {
	t.Helper()
	// The kernel sends no event for an alias given to a link that is down, so the link is renamed
	// last: a listener then sees the NIC complete.
	p.veth(t, "unnamed", name, mac)
	h := routeHandle(t)
	link, err := h.LinkByName("unnamed")
	if err == nil {
		err = h.LinkSetAlias(link, "bosh-interface-"+name)
	}
	if err == nil {
		err = h.LinkSetName(link, name)
	}
	if err != nil {
		t.Fatalf("make NIC %s: %v", name, err)
	}
}

// Veth creates a link that the agent must not take for a NIC.
func (p *Peer) Veth(t *testing.T, name, mac string) {
	t.Helper()
	p.veth(t, name, name, mac)
}

func (p *Peer) veth(t *testing.T, name, peerName, mac string) {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	if mac != "" {
		attrs.HardwareAddr = hardware(t, mac)
	}
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: peerName, PeerNamespace: netlink.NsFd(int(p.ns))}
	if err := routeHandle(t).LinkAdd(veth); err != nil {
		t.Fatalf("make %s: %v", name, err)
	}
	setUp(t, p.Handle, peerName)
}

// Address adds an address to the other end of a link, and waits until it can be used.
func (p *Peer) Address(t *testing.T, name, prefix string) {
	t.Helper()
	link, err := p.Handle.LinkByName(name)
	if err != nil {
		t.Fatalf("peer link %s: %v", name, err)
	}
	addr, err := netlink.ParseAddr(netip.MustParsePrefix(prefix).String())
	if err != nil {
		t.Fatal(err)
	}
	addr.Flags = unix.IFA_F_NODAD
	if err := p.Handle.AddrReplace(link, addr); err != nil {
		t.Fatalf("peer address %s on %s: %v", prefix, name, err)
	}
	if err := localroute.Await(&p.ns, addr.IP); err != nil {
		t.Fatalf("peer address %s on %s: %v", prefix, name, err)
	}
}

// Up adds an address to the near end of a link, and brings the link up.
func Up(t *testing.T, name, prefix string) {
	t.Helper()
	link, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatalf("link %s: %v", name, err)
	}
	address, err := netlink.ParseAddr(prefix)
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.AddrAdd(link, address); err != nil {
		t.Fatalf("address %s on %s: %v", prefix, name, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		t.Fatalf("link %s: %v", name, err)
	}
}

// MAC returns the hardware address of the other end of a link.
func (p *Peer) MAC(t *testing.T, name string) string {
	t.Helper()
	link, err := p.Handle.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return link.Attrs().HardwareAddr.String()
}
