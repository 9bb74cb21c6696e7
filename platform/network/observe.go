package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// nicAlias is the prefix of the alias that marks a container's link without a device as a NIC for the agent.
const nicAlias = "bosh-interface"

// dumpTries bounds the retries of an inconsistent dump.
const dumpTries = 10

// forever is the lifetime of a permanent address.
const forever = 0xffffffff

func (k *Kernel) path(parts ...string) string {
	return filepath.Join(append([]string{"/", k.Root}, parts...)...)
}

func (k *Kernel) sys(parts ...string) string {
	root := k.Sys
	if root == "" {
		root = "/sys"
	}
	return filepath.Join(append([]string{root}, parts...)...)
}

func (k *Kernel) sysctl(parts ...string) string {
	root := k.Proc
	if root == "" {
		root = "/proc"
	}
	return filepath.Join(append([]string{root, "sys/net"}, parts...)...)
}

func (k *Kernel) sysctlSet(parts ...string) bool {
	data, err := os.ReadFile(k.sysctl(parts...))
	return err == nil && strings.TrimSpace(string(data)) == "1"
}

// Observe reads links, addresses, routes and networkd's files.
func (k *Kernel) Observe(context.Context) (State, error) {
	s, err := k.ObserveLinks()
	if err != nil {
		return State{}, err
	}
	if s.Files, err = k.Networkd().Files(); err != nil {
		return State{}, err
	}
	s.Networkd = k.running().Probe()
	return s, nil
}

// ObserveLinks observes everything except networkd and its files, which do not change while a caller waits.
func (k *Kernel) ObserveLinks() (State, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return State{}, fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()

	var s State
	names := map[int]string{}
	if s.Links, err = k.links(h, names); err != nil {
		return State{}, err
	}
	if s.Routes, err = routes(h, names); err != nil {
		return State{}, err
	}
	_, err = os.Stat(k.sysctl("ipv6"))
	s.NoIPv6 = errors.Is(err, os.ErrNotExist)
	return s, nil
}

// Dump calls list again if a change has interrupted it.
func Dump[T any](what string, list func() (T, error)) (T, error) {
	for try := 0; ; try++ {
		found, err := list()
		switch {
		case err == nil:
			return found, nil
		case !errors.Is(err, netlink.ErrDumpInterrupted) || try == dumpTries:
			return found, fmt.Errorf("list %s: %w", what, err)
		}
	}
}

func (k *Kernel) links(h *netlink.Handle, names map[int]string) ([]Link, error) {
	raw, err := Dump("links", h.LinkList)
	if err != nil {
		return nil, err
	}
	addresses, err := Dump("addresses", func() ([]netlink.Addr, error) { return h.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, err
	}
	byLink := map[int][]Address{}
	for _, a := range addresses {
		if converted, ok := address(a); ok {
			byLink[a.LinkIndex] = append(byLink[a.LinkIndex], converted)
		}
	}
	promoteAll := k.sysctlSet("ipv4/conf/all/promote_secondaries")
	links := make([]Link, 0, len(raw))
	for _, r := range raw {
		a := r.Attrs()
		names[a.Index] = a.Name
		link := Link{
			Index:     a.Index,
			Name:      a.Name,
			MAC:       MAC(a.HardwareAddr.String()),
			NIC:       k.isNIC(a),
			Up:        a.Flags&net.FlagUp != 0,
			Carrier:   a.RawFlags&unix.IFF_LOWER_UP != 0,
			MTU:       a.MTU,
			Addresses: byLink[a.Index],
		}
		if link.NIC {
			link.IPv6Disabled = k.sysctlSet("ipv6/conf", a.Name, "disable_ipv6")
			link.PromoteSecondaries = promoteAll || k.sysctlSet("ipv4/conf", a.Name, "promote_secondaries")
			link.NetworkFile = k.Networkd().FileOf(a.Index)
		}
		links = append(links, link)
	}
	sort.Slice(links, func(i, j int) bool { return links[i].Index < links[j].Index })
	return links, nil
}

// isNIC reports whether the IaaS has attached a link, rather than a bridge, tunnel or loopback. An Azure virtual
// function has the same MAC as its synthetic NIC; udev marks it.
func (k *Kernel) isNIC(a *netlink.LinkAttrs) bool {
	if _, err := os.Stat(k.sys("class/net", a.Name, "device")); err != nil && !strings.HasPrefix(a.Alias, nicAlias) {
		return false
	}
	udev, err := os.ReadFile(k.path("run/udev/data", "n"+strconv.Itoa(a.Index)))
	return err != nil || !slices.Contains(strings.Split(string(udev), "\n"), "E:AZURE_UNMANAGED_SRIOV=1")
}

func address(a netlink.Addr) (Address, bool) {
	if a.IPNet == nil {
		return Address{}, false
	}
	// With a peer, the prefix length is that of the peer's address.
	prefix, ok := toPrefix(&net.IPNet{IP: a.IP, Mask: a.Mask})
	if !ok {
		return Address{}, false
	}
	return Address{
		Prefix:    prefix,
		Label:     a.Label,
		Dynamic:   a.ValidLft != 0 && a.ValidLft != forever,
		Secondary: prefix.Addr().Is4() && a.Flags&unix.IFA_F_SECONDARY != 0,
		// An optimistic address may be used while it is tentative.
		Tentative: a.Flags&unix.IFA_F_TENTATIVE != 0 && a.Flags&unix.IFA_F_OPTIMISTIC == 0,
		DADFailed: a.Flags&unix.IFA_F_DADFAILED != 0,
		LinkScope: a.Scope != unix.RT_SCOPE_UNIVERSE,
	}, true
}

func routes(h *netlink.Handle, names map[int]string) ([]Route, error) {
	var all []Route
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		raw, err := Dump("routes",
			func() ([]netlink.Route, error) { return h.RouteListFiltered(family, &netlink.Route{}, 0) })
		if err != nil {
			return nil, err
		}
		for _, r := range raw {
			all = append(all, route(r, family, names)...)
		}
	}
	return all, nil
}

// route converts an entry of the routing table. An entry with several next hops becomes several routes.
func route(r netlink.Route, family int, names map[int]string) []Route {
	base := Route{To: netip.PrefixFrom(netip.IPv4Unspecified(), 0), Metric: r.Priority, Origin: origin(r.Protocol)}
	if family == netlink.FAMILY_V6 {
		base.To = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	if r.Dst != nil {
		to, ok := toPrefix(r.Dst)
		if !ok {
			return nil
		}
		base.To = to
	}
	if r.Type != 0 && r.Type != unix.RTN_UNICAST {
		return nil
	}
	hop := func(link int, gateway net.IP, flags int) Route {
		one := base
		one.Link = names[link]
		one.Gateway = toAddr(gateway)
		one.OnLink = flags&unix.RTNH_F_ONLINK != 0
		return one
	}
	if len(r.MultiPath) == 0 {
		return []Route{hop(r.LinkIndex, r.Gw, r.Flags)}
	}
	var hops []Route
	for _, n := range r.MultiPath {
		hops = append(hops, hop(n.LinkIndex, n.Gw, n.Flags))
	}
	return hops
}

func origin(p netlink.RouteProtocol) Origin {
	switch p {
	case unix.RTPROT_KERNEL:
		return OriginKernel
	case unix.RTPROT_STATIC, unix.RTPROT_BOOT:
		return OriginStatic
	case unix.RTPROT_DHCP:
		return OriginDHCP
	case unix.RTPROT_RA:
		return OriginRA
	}
	return OriginOther
}

func toAddr(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

func toPrefix(n *net.IPNet) (netip.Prefix, bool) {
	ip := toAddr(n.IP)
	bits, size := n.Mask.Size()
	if !ip.IsValid() || size != ip.BitLen() {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(ip, bits), true
}

func toIPNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
