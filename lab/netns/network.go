package netns

import (
	"errors"
	"fmt"
	"net"

	"cambium/internal/localroute"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Bridge creates a bridge in the namespace with the addresses, which are in CIDR notation.
func (n Namespace) Bridge(name string, addresses ...string) error {
	return n.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		// A fixed MAC address does not change with the links on the bridge: machines would use the old one, from their
		// neighbor table, for half a minute.
		attrs.HardwareAddr = net.HardwareAddr{0x02, 0xcb, 0, 0, 0, name[len(name)-1]}
		bridge := &netlink.Bridge{LinkAttrs: attrs}
		if err := netlink.LinkAdd(bridge); err != nil {
			return fmt.Errorf("bridge %s: %w", name, err)
		}
		if err := netlink.LinkSetUp(bridge); err != nil {
			return fmt.Errorf("bridge %s: %w", name, err)
		}
		for _, a := range addresses {
			if err := addAddress(bridge, a); err != nil {
				return err
			}
		}
		return nil
	})
}

// AddAddress adds an address to a link in the namespace.
func (n Namespace) AddAddress(link, address string) error {
	return n.Do(func() error {
		l, err := netlink.LinkByName(link)
		if err != nil {
			return fmt.Errorf("link %s: %w", link, err)
		}
		return addAddress(l, address)
	})
}

// RemoveAddress removes an address from a link in the namespace.
func (n Namespace) RemoveAddress(link, address string) error {
	return n.Do(func() error {
		l, err := netlink.LinkByName(link)
		if err != nil {
			return fmt.Errorf("link %s: %w", link, err)
		}
		addr, err := netlink.ParseAddr(address)
		if err == nil {
			err = netlink.AddrDel(l, addr)
		}
		if err != nil {
			return fmt.Errorf("remove address %s from %s: %w", address, link, err)
		}
		return nil
	})
}

// RemoveLink removes a link in the namespace.
func (n Namespace) RemoveLink(name string) error {
	return n.Do(func() error {
		l, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkDel(l)
		}
		if err != nil {
			return fmt.Errorf("remove link %s: %w", name, err)
		}
		return nil
	})
}

// Neighbor returns the hardware address for an IP address in the namespace, or nil if the kernel does not know it.
func (n Namespace) Neighbor(address string) (mac net.HardwareAddr) {
	ip := net.ParseIP(address)
	_ = n.Do(func() error {
		all, err := netlink.NeighList(0, netlink.FAMILY_ALL)
		for _, neighbor := range all {
			if neighbor.IP.Equal(ip) && len(neighbor.HardwareAddr) > 0 {
				mac = neighbor.HardwareAddr
			}
		}
		return err
	})
	return mac
}

// addAddress adds an address to a link that is up. When it returns, the address can be used.
func addAddress(link netlink.Link, address string) error {
	addr, err := netlink.ParseAddr(address)
	if err != nil {
		return fmt.Errorf("address %s: %w", address, err)
	}
	addr.Broadcast = nil
	if addr.IP.To4() == nil {
		addr.Flags |= unix.IFA_F_NODAD // no other machine is there
	}
	if err := netlink.AddrAdd(link, addr); err != nil {
		return fmt.Errorf("address %s on %s: %w", address, link.Attrs().Name, err)
	}
	if err := localroute.Await(nil, addr.IP); err != nil {
		return fmt.Errorf("address %s on %s: %w", address, link.Attrs().Name, err)
	}
	return nil
}

// Wire is a virtual cable from a bridge in one namespace to a new link in another.
type Wire struct {
	Bridge string           // in the near namespace
	Near   string           // name of the near end
	Far    string           // name of the far end
	MAC    net.HardwareAddr // of the far end
}

// Connect creates the wire. The far end is down, like a new network card.
func (n Namespace) Connect(far Namespace, w Wire) error {
	handle, err := netns.GetFromPath(far.Path())
	if err != nil {
		return fmt.Errorf("network namespace %s: %w", far.name, err)
	}
	defer func() { _ = handle.Close() }()
	return n.Do(func() error {
		bridge, err := netlink.LinkByName(w.Bridge)
		if err != nil {
			return fmt.Errorf("bridge %s: %w", w.Bridge, err)
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MasterIndex = w.Near, bridge.Attrs().Index
		veth := &netlink.Veth{LinkAttrs: attrs, PeerName: w.Far, PeerHardwareAddr: w.MAC,
			PeerNamespace: netlink.NsFd(int(handle))}
		// After a power cut the kernel may still be taking the old namespace, and with it the
		// old wire, apart.
		if old, err := netlink.LinkByName(w.Near); err == nil {
			if err := netlink.LinkDel(old); err != nil && !errors.Is(err, unix.ENODEV) {
				return fmt.Errorf("remove old wire %s: %w", w.Near, err)
			}
		}
		if err := netlink.LinkAdd(veth); err != nil {
			return fmt.Errorf("wire %s to %s: %w", w.Near, w.Far, err)
		}
		if err := markNIC(handle, w.Far); err != nil {
			return fmt.Errorf("wire %s to %s: %w", w.Near, w.Far, err)
		}
		return netlink.LinkSetUp(veth)
	})
}

// markNIC sets the alias by which the agent takes a link without a device for a network card.
func markNIC(far netns.NsHandle, name string) error {
	h, err := netlink.NewHandleAt(far)
	if err != nil {
		return err
	}
	defer h.Close()
	link, err := h.LinkByName(name)
	if err != nil {
		return err
	}
	return h.LinkSetAlias(link, "bosh-interface-"+name)
}
