package fabric

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"

	"cambium/lab/netns"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The host reaches VMs only through the fabric's namespace, unless the operator wants a link to the host: a virtual
// cable with one end there, and a route to each segment. VMs cannot open connections to the host over it. They reach
// what the host reaches if the operator wants that, too: the host then sends their packets on under its own address.

// Access selects the connections that a link to the host permits.
type Access string

// The kinds of access. A link is made for all but the first.
const (
	NoAccess  Access = ""
	HostOnly  Access = "host"    // the host reaches VMs
	ToOutside Access = "outside" // and VMs reach what the host reaches
)

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

// LinkHost makes, changes or removes the host's link.
func (f *Fabric) LinkHost(access Access) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.access == access {
		return nil
	}
	if err := f.unlink(); err != nil || access == NoAccess {
		return err
	}
	if err := f.makeLink(hostLinkOf(f.name), access); err != nil {
		return errors.Join(fmt.Errorf("link to the host: %w", err), f.unlink())
	}
	return nil
}

// unlink removes the link and what belongs to it; the caller holds mu.
func (f *Fabric) unlink() error {
	if f.access == NoAccess {
		return nil
	}
	f.access, f.routed = NoAccess, nil
	return Disconnect(f.name)
}

func (f *Fabric) makeLink(link hostLink, access Access) error {
	if access == ToOutside {
		if err := forwards(); err != nil {
			return err
		}
	}
	f.access = access
	if err := f.filter(); err != nil { // before there is something to filter
		return err
	}
	if err := link.make(f.Net, access); err != nil {
		return err
	}
	for _, b := range f.bridges {
		for _, address := range b.addresses {
			if err := f.route(address.Masked()); err != nil {
				return err
			}
		}
	}
	return nil
}

// forwards says why packets of VMs do not get further than this host, nil if they do. The setting is the
// operator's: it is for all networks of the host.
func forwards() error {
	data, err := os.ReadFile("/proc/sys/net/ipv4/ip_forward")
	if err == nil && strings.TrimSpace(string(data)) != "1" {
		err = errors.New("this host does not forward packets; allow it with: sysctl -w net.ipv4.ip_forward=1")
	}
	return err
}

// route gives the host a route to a segment's network, if it is linked; the caller holds mu.
func (f *Fabric) route(to netip.Prefix) error {
	if !to.Addr().Is4() || f.access == NoAccess || slices.Contains(f.routed, to) {
		return nil // the cable has no IPv6
	}
	if err := hostLinkOf(f.name).route(to); err != nil {
		return err
	}
	f.routed = append(f.routed, to)
	return f.filter()
}

// unroute takes the route to a network from the host, as far as it is there; the caller holds mu.
func (f *Fabric) unroute(to netip.Prefix) error {
	if !slices.Contains(f.routed, to) {
		return nil
	}
	link, err := netlink.LinkByName(hostLinkOf(f.name).name)
	if err == nil {
		err = netlink.RouteDel(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(to)})
	}
	var missing netlink.LinkNotFoundError
	if err != nil && !errors.Is(err, unix.ESRCH) && !errors.As(err, &missing) {
		return fmt.Errorf("route to %s: %w", to, err)
	}
	f.routed = slices.DeleteFunc(f.routed, func(p netip.Prefix) bool { return p == to })
	return f.filter()
}

// ipNet is a network as package net has it.
func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// make lays the cable from the namespace of this process, the host's, to that of the IaaS.
func (l hostLink) make(space netns.Namespace, access Access) error {
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
		if access == ToOutside {
			if err := netlink.RouteAdd(&netlink.Route{Gw: l.near.AsSlice()}); err != nil {
				return fmt.Errorf("default route: %w", err)
			}
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
	if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(address, bits))}); err != nil {
		return fmt.Errorf("address %s on %s: %w", address, name, err)
	}
	return netlink.LinkSetUp(link)
}

// shortestPrefix bounds the networks that the host gets a route to: two halves would be the whole Internet.
const shortestPrefix = 8

// route makes a route to a network; one of which the host reaches a part in another way is refused.
func (l hostLink) route(to netip.Prefix) error {
	if to.Bits() < shortestPrefix {
		return fmt.Errorf("range %s is too large for a route on the host: want a prefix of at least %d bits, "+
			"or end the link with: lab host-route off", to, shortestPrefix)
	}
	link, err := netlink.LinkByName(l.name)
	if err != nil {
		return err
	}
	all := netlink.Route{Table: unix.RT_TABLE_UNSPEC}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &all, netlink.RT_FILTER_TABLE)
	if err != nil {
		return fmt.Errorf("routes of the host: %w", err)
	}
	for _, r := range routes {
		if r.Dst == nil || r.LinkIndex == link.Attrs().Index {
			continue
		}
		address, _ := netip.AddrFromSlice(r.Dst.IP.To4())
		bits, _ := r.Dst.Mask.Size()
		if other := netip.PrefixFrom(address, bits); bits > 0 && other.Overlaps(to) {
			return fmt.Errorf("range %s overlaps %s, to which the host has a route: choose another range, "+
				"or end the link with: lab host-route off", to, other)
		}
	}
	return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(to), Gw: l.far.AsSlice()})
}

// filter has the host take nothing from the link but answers, and send packets from the routed networks on under its
// own address if that is wanted. The table replaces the one of before, in one step; the caller holds mu.
func (f *Fabric) filter() error {
	l := hostLinkOf(f.name)
	onward, masquerade := "drop", ""
	if f.access == ToOutside {
		sources := []string{netip.PrefixFrom(l.near, l.prefixBits).Masked().String()}
		for _, prefix := range f.routed {
			sources = append(sources, prefix.String())
		}
		onward = "accept"
		masquerade = fmt.Sprintf(`	chain outside {
		type nat hook postrouting priority srcnat
		ip saddr { %s } oifname != %q masquerade
	}
`, strings.Join(sources, ", "), l.name)
	}
	rules := fmt.Sprintf(`table inet %[1]s
delete table inet %[1]s
table inet %[1]s {
	chain input {
		type filter hook input priority filter
		iifname %[1]q ct state established,related accept
		iifname %[1]q drop
	}
	chain forward {
		type filter hook forward priority filter
		iifname %[1]q ct state established,related accept
		iifname %[1]q %[2]s
	}
%[3]s}
`, l.name, onward, masquerade)
	if err := nft(rules); err != nil {
		return fmt.Errorf("filter of the link to the host: %w", err)
	}
	return nil
}

// nft changes the host's packet filter, or that of where enter leads to.
func nft(rules string, enter ...string) error {
	argv := append(enter, "nft", "-f", "-")
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin = strings.NewReader(rules)
	out, err := cmd.CombinedOutput()
	if _, missing := exec.LookPath("nft"); missing != nil {
		return errors.New("this host has no nft; install the package nftables")
	}
	if err != nil {
		return fmt.Errorf("nft: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// Disconnect takes the cable, its routes and its filter from the host, which a holder that was killed leaves. What is
// not there is no error.
func Disconnect(name string) error {
	l := hostLinkOf(name)
	if err := l.remove(); err != nil {
		return err
	}
	return nft(fmt.Sprintf("table inet %[1]s\ndelete table inet %[1]s\n", l.name))
}

// remove takes the cable, and the routes with it, from the host. What is not there is no error.
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
