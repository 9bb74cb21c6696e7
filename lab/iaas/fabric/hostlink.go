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

// Access defines which connections a link to the host permits.
type Access string

// The kinds of access. Without any, there is no link.
const (
	NoAccess  Access = ""
	HostOnly  Access = "host"    // the host can reach VMs
	ToOutside Access = "outside" // VMs can also reach what the host can reach
)

// hostLink is the host's end of the virtual cable, and the two addresses of the cable. They are link-local, so that
// they do not collide with other networks of the host.
type hostLink struct {
	name       string
	near, far  netip.Addr
	prefixBits int
}

// hostLinkOf derives a link from the name of the IaaS, so that the links of several do not collide.
func hostLinkOf(name string) hostLink {
	h := sha256.Sum256([]byte(name))
	near := netip.AddrFrom4([4]byte{169, 254, 1 + h[0]%150, h[1]&^3 | 1})
	return hostLink{name: "iaas-" + hex.EncodeToString(h[:])[:10], near: near, far: near.Next(), prefixBits: 30}
}

// LinkHost creates, changes or removes the link to the host.
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

// unlink removes the link with its routes and filter. The caller holds mu.
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

// forwards returns an error if this host does not forward packets of VMs. It does not change the setting, which affects
// all networks of the host.
func forwards() error {
	data, err := os.ReadFile("/proc/sys/net/ipv4/ip_forward")
	if err == nil && strings.TrimSpace(string(data)) != "1" {
		err = errors.New("this host does not forward packets; allow it with: sysctl -w net.ipv4.ip_forward=1")
	}
	return err
}

// route adds a route to a segment's network on the host, if there is a link. The caller holds mu.
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

// unroute removes the route to a network from the host, as far as it exists. The caller holds mu.
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

// ipNet converts a prefix for package net.
func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// make creates the cable from the namespace of this process, the host's, to that of the IaaS.
func (l hostLink) make(space netns.Namespace, access Access) error {
	far, err := os.Open(space.Path())
	if err != nil {
		return err
	}
	defer func() { _ = far.Close() }()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = l.name
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: hostEnd,
		PeerNamespace: netlink.NsFd(int(far.Fd()))}); err != nil {
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

// hostEnd is the name of the cable's end in the namespace of the IaaS.
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

// shortestPrefix bounds the size of networks to which the host gets a route. Two halves would be the whole Internet.
const shortestPrefix = 8

// route adds a route to a network. It fails if the host already reaches a part of the network in another way.
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

// filter makes the host accept only answers from the link and, for ToOutside, forward packets of the routed networks
// with its own address. The table replaces the previous one atomically. The caller holds mu.
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

// nft changes the packet filter of the host, or that of the namespace which the command enter leads to.
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

// Disconnect removes the cable with its routes and filter from the host, for instance after a holder was killed. It
// ignores what does not exist.
func Disconnect(name string) error {
	l := hostLinkOf(name)
	if err := l.remove(); err != nil {
		return err
	}
	return nft(fmt.Sprintf("table inet %[1]s\ndelete table inet %[1]s\n", l.name))
}

// remove removes the cable, and with it the routes, from the host. It ignores what does not exist.
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
