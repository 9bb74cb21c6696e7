package iaas

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

// The host reaches VMs, and they the host, only through the IaaS's namespace, unless the operator
// wants a link to the host: a virtual cable with one end there, and a route to each segment. It ends with the
// holder. The wish is a file beside the directory of the IaaS, so that every holder knows of it.

func hostRouteWish(dir, name string) string { return Directory(dir, name) + "-host-route" }

// WishHostRoute notes whether holders give the host a link.
func WishHostRoute(dir, name string, on bool) error {
	if err := ValidName(name); err != nil {
		return err
	}
	if !on {
		err := os.Remove(hostRouteWish(dir, name))
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(hostRouteWish(dir, name), nil, 0o644)
}

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

// ConnectHost makes or removes the link, as it is wished now.
func (i *IaaS) ConnectHost() error {
	i.hostMu.Lock()
	defer i.hostMu.Unlock()
	_, err := os.Stat(i.hostWish)
	wanted := err == nil
	link := hostLinkOf(i.name)
	if i.hostLinked == wanted {
		return nil
	}
	if err := link.remove(); err != nil {
		return err
	}
	i.hostLinked = false
	if !wanted {
		return nil
	}
	if err := link.make(i.Net); err != nil {
		return errors.Join(fmt.Errorf("link to the host: %w", err), link.remove())
	}
	i.hostLinked = true
	i.mu.Lock()
	var addresses []string
	for _, b := range i.bridges {
		addresses = append(addresses, b.addresses...)
	}
	i.mu.Unlock()
	for _, address := range addresses {
		if err := link.route(address); err != nil {
			return err
		}
	}
	return nil
}

// routeHost gives the host a route to a segment's network, if it is linked.
func (i *IaaS) routeHost(address string) error {
	i.hostMu.Lock()
	defer i.hostMu.Unlock()
	if !i.hostLinked {
		return nil
	}
	return hostLinkOf(i.name).route(address)
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
