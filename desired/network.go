package desired

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sort"
	"strings"

	"cambium/internal/advice"
	"cambium/platform/network"
	"cambium/settings"
)

// ErrNoNIC means that no NIC has the hardware address of a network. The caller waits for it, since NICs may be attached
// late.
var ErrNoNIC = errors.New("no NIC has the hardware address")

// Network returns the desired configuration of all links, and warnings about conflicts that it has resolved.
//
// Networks are matched to NICs by hardware address. If no network has one and there is a single NIC, they all use that
// NIC. An alias names its link. All networks of a NIC are configured together, in the order of their names. A NIC
// without a network gets DHCP.
//
// The error names each network that cannot be configured and why. The Desired returned with it holds the others and may
// be applied.
func Network(nets map[string]settings.Network, have network.State) (network.Desired, []string, error) {
	n := networks{have: have, links: map[string]*network.WantLink{}}
	for _, name := range sortedNames(nets) {
		if !nets[name].VIP() {
			n.names = append(n.names, name)
		}
	}
	n.nets = nets
	if preconfigured(nets) {
		return network.Desired{Preconfigured: true, Dynamic: n.dynamic(map[string]string{})}, nil, nil
	}
	bound := n.bind()
	n.chooseGateways()
	served := map[string]string{}
	for _, name := range n.names {
		if link, ok := bound[name]; ok && n.serve(name, link) {
			served[name] = link
		}
	}
	// Routes come after all addresses: a gateway may be in the subnet of another network.
	for _, name := range n.names {
		if link, ok := served[name]; ok {
			n.gateway(name, n.link(link))
			n.routes(name, n.link(link))
		}
	}
	for _, nic := range have.NICs() {
		if l := n.links[nic.Name]; l == nil || len(l.Networks) == n.labeled[nic.Name] {
			n.link(nic.Name).DHCP = true // it has only labeled addresses, or none
		}
	}
	return n.finish(bound)
}

// preconfigured reports whether something else configures all networks. It is true if there are none.
func preconfigured(nets map[string]settings.Network) bool {
	for _, n := range nets {
		if !n.VIP() && !n.Preconfigured {
			return false
		}
	}
	return true
}

func sortedNames(nets map[string]settings.Network) []string {
	names := make([]string, 0, len(nets))
	for name := range nets {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

type networks struct {
	have              network.State
	nets              map[string]settings.Network
	names             []string // without vip networks, sorted
	links             map[string]*network.WantLink
	labeled           map[string]int // networks of a link that only add a labeled address
	gateways          map[bool]string
	hasGatewayDefault bool // some network is the default for gateway
	warnings          []string
	failed            []error
}

func (n *networks) warn(name, format string, args ...any) {
	n.warnings = append(n.warnings, fmt.Sprintf("network %q: %s", name, fmt.Sprintf(format, args...)))
}

// fail records that a network cannot be configured because of the value of key in the settings.
func (n *networks) fail(name, key, format string, args ...any) {
	err := fmt.Errorf("network %q: %s", name, fmt.Sprintf(format, args...))
	n.failed = append(n.failed, advice.With("correct "+origin(name, key), err))
}

// origin describes a key of a network and who writes it.
func origin(name, key string) string { return settings.DescribeKey("networks.*."+key, name) }

func (n *networks) link(name string) *network.WantLink {
	if n.links[name] == nil {
		n.links[name] = &network.WantLink{Name: name}
	}
	return n.links[name]
}

// bind maps each network to its link.
func (n *networks) bind() map[string]string {
	bound := map[string]string{}
	nics := n.have.NICs()
	byMAC := map[network.MAC]string{}
	for _, nic := range nics {
		if other, twice := byMAC[nic.MAC]; twice {
			n.warnings = append(n.warnings,
				fmt.Sprintf("links %s and %s have the same hardware address; %s is used", other, nic.Name, other))
			continue
		}
		byMAC[nic.MAC] = nic.Name
	}
	// With a single NIC, networks without a hardware address belong to it.
	anonymous := len(nics) == 1 &&
		!slices.ContainsFunc(n.names, func(name string) bool { return n.nets[name].MAC != "" })
	for _, name := range n.names {
		net := n.nets[name]
		switch {
		case net.MAC != "":
			mac, err := network.ParseMAC(net.MAC)
			if err != nil {
				n.fail(name, "mac", "%v", err)
				continue
			}
			link, known := byMAC[mac]
			if !known {
				n.failed = append(n.failed, advice.With(
					"attach the network card with that address ('ip link' lists those here), or correct "+origin(
						name, "mac"),
					fmt.Errorf("network %q: %w %s: %s", name, ErrNoNIC, mac, listNICs(nics)),
				))
				continue
			}
			bound[name] = link
		case anonymous && (net.Alias == "" || len(n.names) == 1):
			bound[name] = nics[0].Name
		case net.Alias != "":
			link, _, _ := strings.Cut(net.Alias, ":")
			if err := checkAlias(net.Alias); err != nil {
				n.fail(name, "alias", "%v", err)
				continue
			}
			if _, known := n.have.Link(link); !known {
				n.fail(name, "alias", "there is no link %s", link)
				continue
			}
			bound[name] = link
		default:
			n.warn(name, "has neither a hardware address nor an alias; it is not configured")
		}
	}
	return bound
}

// listNICs describes the machine's NICs, for an operator who looks for a missing one.
func listNICs(nics []network.Link) string {
	if len(nics) == 0 {
		return "the machine has no NICs"
	}
	var all []string
	for _, nic := range nics {
		all = append(all, fmt.Sprintf("%s (%s)", nic.Name, nic.MAC))
	}
	return "the machine has " + strings.Join(all, ", ")
}

// maxLabel is the kernel's limit for the label of an address.
const maxLabel = 15

func checkAlias(alias string) error {
	switch {
	case alias == "." || alias == ".." || strings.ContainsAny(alias, "/ \t\n\r\v\f"):
		return fmt.Errorf("alias %q is not a valid link name", alias)
	case len(alias) > maxLabel:
		return fmt.Errorf("alias %q is longer than %d characters", alias, maxLabel)
	}
	return nil
}

// static reports whether the settings contain the address. An alias is static unless it asks for DHCP.
func static(net settings.Network) bool { return net.Alias != "" && !net.UseDHCP || !net.DHCP() }

// chooseGateways picks, for each address family, the network whose gateway becomes the default route.
func (n *networks) chooseGateways() {
	n.gateways = map[bool]string{}
	for _, name := range n.names {
		net := n.nets[name]
		if !net.DefaultFor("gateway") {
			continue
		}
		n.hasGatewayDefault = true
		gw, err := parseIP(net.Gateway)
		if !static(net) || err != nil {
			continue
		}
		if first, taken := n.gateways[gw.Is6()]; taken {
			n.warn(name, "network %q already has the default gateway; %s is not used", first, gw)
			continue
		}
		n.gateways[gw.Is6()] = name
	}
}

// serve adds the address of a network, or DHCP, to its link. It returns false if that fails.
func (n *networks) serve(name, link string) bool {
	net := n.nets[name]
	l := n.link(link)
	if !static(net) {
		l.Networks = append(l.Networks, name)
		l.DHCP = true
		ip, err := parseIP(net.IP)
		if err == nil && ip.Is6() {
			l.AcceptRA = true
		}
		if net.Prefix != "" && net.Prefix != "32" && net.Prefix != "128" {
			ip = netip.Addr{} // the base of a delegated range, not an address
		}
		l.Leases = append(l.Leases, network.WantLease{Network: name, IP: ip})
		return true
	}
	prefix, err := staticPrefix(net)
	if err != nil {
		key := "netmask"
		if _, bad := parseIP(net.IP); bad != nil || prefix.IsValid() {
			key = "ip"
		}
		n.fail(name, key, "%v", err)
		return false
	}
	if other, taken := n.taken(prefix.Addr()); taken {
		if other.link == link && other.prefix == prefix {
			n.warn(name, "has the same address %s as network %q", prefix.Addr(), other.network)
		} else {
			n.fail(name, "ip", "address %s already belongs to network %q", prefix.Addr(), other.network)
			return false
		}
	} else {
		n.overlaps(name, link, prefix)
		a := network.WantAddress{Prefix: prefix, Network: name}
		if base, _, labeled := strings.Cut(net.Alias, ":"); labeled && base == link {
			a.Label = net.Alias
			if n.labeled == nil {
				n.labeled = map[string]int{}
			}
			n.labeled[link]++
		}
		l.Addresses = append(l.Addresses, a)
	}
	l.Networks = append(l.Networks, name)
	if prefix.Addr().Is6() {
		l.AcceptRA = true
	}
	return true
}

type owner struct {
	network, link string
	prefix        netip.Prefix
}

func (n *networks) taken(ip netip.Addr) (owner, bool) {
	for _, l := range n.links {
		for _, a := range l.Addresses {
			if a.Prefix.Addr() == ip {
				return owner{a.Network, l.Name, a.Prefix}, true
			}
		}
	}
	return owner{}, false
}

// overlaps warns if another link has an overlapping subnet, since the kernel may then send replies over either link.
func (n *networks) overlaps(name, link string, prefix netip.Prefix) {
	for _, other := range n.names {
		for _, l := range n.links {
			for _, a := range l.Addresses {
				if a.Network == other && l.Name != link && a.Prefix.Overlaps(prefix) {
					n.warn(name, "subnet %s on %s overlaps with that of network %q on %s", prefix.Masked(), link,
						other, l.Name)
				}
			}
		}
	}
}

// gateway adds the default route if this network was chosen for it. A DHCP lease brings its own.
func (n *networks) gateway(name string, l *network.WantLink) {
	net := n.nets[name]
	if !static(net) || !net.DefaultFor("gateway") {
		return
	}
	prefix, _ := staticPrefix(net)
	gw, err := parseIP(net.Gateway)
	switch {
	case net.Gateway == "":
		n.warn(name, "is the default for gateway, but has no gateway: correct %s", origin(name, "gateway"))
		return
	case err != nil:
		n.warn(name, "gateway %v; there is no default route: correct %s", err, origin(name, "gateway"))
		return
	case gw.Is4() != prefix.Addr().Is4():
		n.warn(name, "gateway %s and address %s have different address families; there is no default route: correct %s",
			gw, prefix.Addr(), origin(name, "gateway"))
		return
	case gw == prefix.Addr():
		n.warn(name, "gateway %s is the machine itself; there is no default route: correct %s", gw,
			origin(name, "gateway"))
		return
	case n.gateways[gw.Is6()] != name:
		return
	}
	r := network.WantRoute{To: netip.PrefixFrom(gw, 0).Masked(), Gateway: gw, Network: name}
	if !reaches(l, gw) {
		// Some IaaSes use a subnet of one address to route everything through the gateway.
		if !prefix.IsSingleIP() {
			n.warn(name, "gateway %s is outside subnet %s; it is expected on the link: unless that is so, correct %s",
				gw, prefix.Masked(), origin(name, "netmask"))
		}
		r.OnLink = true
	}
	l.Routes = append(l.Routes, r)
}

// reaches reports whether a gateway is in the subnet of one of the link's addresses.
func reaches(l *network.WantLink, gw netip.Addr) bool {
	return gw.IsLinkLocalUnicast() ||
		slices.ContainsFunc(l.Addresses, func(a network.WantAddress) bool { return a.Prefix.Contains(gw) })
}

// routes adds the extra routes of a network. It skips invalid ones with a warning.
func (n *networks) routes(name string, l *network.WantLink) {
	net := n.nets[name]
	for _, r := range net.Routes {
		want, err := wantRoute(r)
		if err != nil {
			n.warn(name, "route ignored: %v", err)
			continue
		}
		want.Network = name
		if other, taken := n.routed(want); taken {
			if other != want.Gateway {
				n.warn(name, "route to %s via %s ignored: there already is one via %s", want.To, want.Gateway, other)
			}
			continue
		}
		if !l.DHCP &&
			!slices.ContainsFunc(l.Addresses,
				func(a network.WantAddress) bool { return a.Prefix.Addr().Is4() == want.Gateway.Is4() }) {
			n.warn(name, "route to %s via %s ignored: %s has no address of that family", want.To, want.Gateway, l.Name)
			continue
		}
		// With a lease the gateway is in the lease's subnet, which is not known yet.
		want.OnLink = !l.DHCP && !reaches(l, want.Gateway)
		l.Routes = append(l.Routes, want)
	}
}

func (n *networks) routed(want network.WantRoute) (netip.Addr, bool) {
	for _, l := range n.links {
		for _, r := range l.Routes {
			if r.To == want.To {
				return r.Gateway, true
			}
		}
	}
	return netip.Addr{}, false
}

// finish sorts the links and their addresses, and adds DNS servers.
func (n *networks) finish(bound map[string]string) (network.Desired, []string, error) {
	servers, warnings := dnsServers(n.names, n.nets)
	n.warnings = append(n.warnings, warnings...)
	d := network.Desired{Dynamic: n.dynamic(bound)}
	// The first address of a subnet is the one that connections come from: that of the network
	// with the default gateway, then the others by name, and those with a label last.
	rank := func(a network.WantAddress) int {
		switch {
		case a.Label != "":
			return 2
		case n.nets[a.Network].DefaultFor("gateway"):
			return 0
		}
		return 1
	}
	for _, l := range n.links {
		sort.SliceStable(l.Addresses, func(i, j int) bool { return rank(l.Addresses[i]) < rank(l.Addresses[j]) })
		l.DNS = servers
		l.NoDHCPGateway = l.DHCP && n.hasGatewayDefault && !slices.ContainsFunc(l.Networks, func(name string) bool {
			return n.nets[name].DefaultFor("gateway")
		})
		d.Links = append(d.Links, *l)
	}
	sort.Slice(d.Links, func(i, j int) bool { return d.Links[i].Name < d.Links[j].Name })
	return d, n.warnings, errors.Join(n.failed...)
}

// dynamic lists the networks whose address is read from the link. A network with a prefix shorter than a single address
// is a range delegated to the machine; it is left out.
func (n *networks) dynamic(bound map[string]string) (all []network.Dynamic) {
	for _, name := range n.names {
		net := n.nets[name]
		if static(net) || net.Prefix != "" && net.Prefix != "32" && net.Prefix != "128" {
			continue
		}
		all = append(all, network.Dynamic{Network: name, Link: bound[name], IPv6: net.Prefix == "128"})
	}
	return all
}
