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

// Bridge makes a bridge in the namespace and gives it the addresses, which are in CIDR form.
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

// AddAddress gives a link of the namespace one more address.
func (n Namespace) AddAddress(link, address string) error {
	return n.Do(func() error {
		l, err := netlink.LinkByName(link)
		if err != nil {
			return fmt.Errorf("link %s: %w", link, err)
		}
		return addAddress(l, address)
	})
}

// RemoveAddress takes an address from a link of the namespace.
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

// RemoveLink removes a link of the namespace.
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

// Neighbor is the hardware address of a host on one of the namespace's links, nil if the kernel
// knows none at that address.
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

// addAddress adds an address to a link that is up. When it returns, servers can be reached at the address.
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

// Wire is a virtual cable from a bridge of one namespace to a new link in another.
type Wire struct {
	Bridge string           // on this side
	Near   string           // name of the end on this side
	Far    string           // name of the end on the other side
	MAC    net.HardwareAddr // of the far end
}

// Connect lays the wire. The far end is left down, as a new network card is.
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

// markNIC gives a link the alias by which the agent takes it for a network card although it
// has no device.
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
