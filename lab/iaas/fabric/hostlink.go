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

// The host reaches VMs, and they the host, only through the fabric's namespace, unless the operator
// wants a link to the host: a virtual cable with one end there, and a route to each segment. VMs reach what the
// host reaches if the operator wants that, too: the host then sends their packets on under its own address.

// Access is what a link to the host is for.
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
	failed := hostLinkOf(f.name).remove()
	if f.access == ToOutside {
		failed = errors.Join(failed, EndOutside(f.name))
	}
	f.access, f.routed = NoAccess, nil
	return failed
}

func (f *Fabric) makeLink(link hostLink, access Access) error {
	if access == ToOutside {
		if err := forwards(); err != nil {
			return err
		}
	}
	if err := link.make(f.Net, access); err != nil {
		return err
	}
	f.access = access
	for _, b := range f.bridges {
		for _, address := range b.addresses {
			if err := f.route(address.Masked()); err != nil {
				return err
			}
		}
	}
	return f.masquerade()
}

// masquerade lets the packets of the routed networks out, if that is wanted; the caller holds mu.
func (f *Fabric) masquerade() error {
	if f.access != ToOutside {
		return nil
	}
	return hostLinkOf(f.name).masquerade(f.routed)
}

// forwards says why packets of VMs do not get further than this host, nil if they do. The setting is the
// operator's: it is for all networks of the host.
func forwards() error {
	data, err := os.ReadFile("/proc/sys/net/ipv4/ip_forward")
	if err == nil && strings.TrimSpace(string(data)) != "1" {
		err = errors.New("this host forwards no packets; allow it with: sysctl -w net.ipv4.ip_forward=1")
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
	return f.masquerade()
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
	return f.masquerade()
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

// route makes a route to a network; one that the host reaches in another way is refused.
func (l hostLink) route(to netip.Prefix) error {
	link, err := netlink.LinkByName(l.name)
	if err != nil {
		return err
	}
	err = netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(to), Gw: l.far.AsSlice()})
	if errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("the host has a route to %s already: choose another range, or end the link with: lab host-route off", to)
	}
	return err
}

// masquerade has the host send packets from the networks on under its own address. The table replaces the one of
// before, in one step.
func (l hostLink) masquerade(from []netip.Prefix) error {
	near := netip.PrefixFrom(l.near, l.prefixBits).Masked()
	sources := []string{near.String()}
	for _, prefix := range from {
		sources = append(sources, prefix.String())
	}
	rules := fmt.Sprintf(`table ip %[1]s
delete table ip %[1]s
table ip %[1]s {
	chain outside {
		type nat hook postrouting priority srcnat
		ip saddr { %[2]s } oifname != "%[1]s" masquerade
	}
}
`, l.name, strings.Join(sources, ", "))
	if err := nft(rules); err != nil {
		return fmt.Errorf("masquerade: %w", err)
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

// EndOutside removes what masquerade has made for the fabric of that name, which a holder that was killed
// leaves. What is not there is no error.
func EndOutside(name string) error {
	return nft(fmt.Sprintf("table ip %[1]s\ndelete table ip %[1]s\n", hostLinkOf(name).name))
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
