package fabric

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"cambium/integration/lab/netns"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The host reaches VMs, and they the host, only through the fabric's namespace, unless the operator
// wants a link to the host: a virtual cable with one end there, and a route to each segment.

// hostLink is the cable's end on the host, and the two addresses of the cable: link-local ones, which no other
// network of the host has.
type hostLink struct {
	name       string
	near, far  netip.Addr
	prefixBits int
}

// hostLinkOf derives a link from the name of the IaaS, so that several do not meet.
func hostLinkOf(name string) hostLink {
	h := sha256.Sum256([]byte(name))
	near := netip.AddrFrom4([4]byte{169, 254, 1 + h[0]%150, h[1]&^3 | 1})
	return hostLink{name: "iaas-" + hex.EncodeToString(h[:])[:10], near: near, far: near.Next(), prefixBits: 30}
}

// LinkHost makes or removes the host's link.
func (f *Fabric) LinkHost(on bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.linked == on {
		return nil
	}
	link := hostLinkOf(f.name)
	if err := link.remove(); err != nil {
		return err
	}
	f.linked, f.routed = false, map[string]bool{}
	if !on {
		return nil
	}
	if err := link.make(f.Net); err != nil {
		return errors.Join(fmt.Errorf("link to the host: %w", err), link.remove())
	}
	f.linked = true
	for _, b := range f.bridges {
		for _, address := range b.addresses {
			if err := f.route(address); err != nil {
				return err
			}
		}
	}
	return nil
}

// route gives the host a route to a segment's network, if it is linked; the caller holds mu.
func (f *Fabric) route(address string) error {
	if !f.linked || f.routed[address] {
		return nil
	}
	if err := hostLinkOf(f.name).route(address); err != nil {
		return err
	}
	f.routed[address] = true
	return nil
}

// make lays the cable from the namespace of this process, the host's, to that of the IaaS.
func (l hostLink) make(space netns.Namespace) error {
	far, err := os.Open(space.Path())
	if err != nil {
		return err
	}
	defer func() { _ = far.Close() }()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = l.name
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: hostEnd, PeerNamespace: netlink.NsFd(int(far.Fd()))}); err != nil {
		return err
	}
	if err := addressUp(l.name, l.near, l.prefixBits); err != nil {
		return err
	}
	return space.Do(func() error {
		if err := addressUp(hostEnd, l.far, l.prefixBits); err != nil {
			return err
		}
		// Between the cable and the segments; of this namespace only.
		return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644)
	})
}

// hostEnd is the cable's end in the namespace of the IaaS.
const hostEnd = "host0"

func addressUp(name string, address netip.Addr, bits int) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	ipNet := &net.IPNet{IP: address.AsSlice(), Mask: net.CIDRMask(bits, address.BitLen())}
	if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: ipNet}); err != nil {
		return fmt.Errorf("address %s on %s: %w", address, name, err)
	}
	return netlink.LinkSetUp(link)
}

// route makes a route to the network in which a gateway's address is; a network that the host reaches
// in another way is refused.
func (l hostLink) route(address string) error {
	prefix, err := netip.ParsePrefix(address)
	if err != nil || !prefix.Addr().Is4() {
		return nil // the cable has no IPv6
	}
	link, err := netlink.LinkByName(l.name)
	if err != nil {
		return err
	}
	_, network, err := net.ParseCIDR(prefix.Masked().String())
	if err != nil {
		return err
	}
	err = netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: network, Gw: l.far.AsSlice()})
	if errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("the host has a route to %s already: choose another range, or end the link with: lab host-route off", network)
	}
	return err
}

func (l hostLink) remove() error {
	link, err := netlink.LinkByName(l.name)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return nil
	}
	if err != nil {
		return err
	}
	return netlink.LinkDel(link)
}
