// Package network configures links, addresses and routes.
//
// Static addresses and routes are set at once, over netlink. A file for each link makes them known to systemd-networkd,
// which would remove them otherwise; networkd also provides DHCP. [Diff] makes the decisions, as a pure function;
// [Kernel] reads and writes. Correct addresses and routes are never removed, not even for a moment, so that connections
// survive each call.
//
// Subpackages: networkd (the daemon's files and D-Bus interface), wait (until a network is usable), neighbor (ARP and
// neighbor discovery), confirm (changes that are rolled back if they cut off the machine).
//
// The package does not use settings; package desired translates them.
package network

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sirupsen/logrus"

	"cambium/internal/hwaddr"
	"cambium/platform/network/networkd"
)

// Kernel reads and changes the machine's network. Only tests set Root, Sys and Proc.
type Kernel struct {
	Root string // directory of all files; "/" if empty
	Sys  string // the sysfs of this network namespace; "/sys" if empty
	Proc string // the procfs of this network namespace; "/proc" if empty
	Log  *logrus.Entry

	// daemon replaces networkd in tests.
	daemon daemon
}

// daemon has the methods of networkd.Daemon that need a running networkd.
type daemon interface {
	Probe() networkd.Status
	Reload(ctx context.Context, links map[int]networkd.AwaitedLink) error
}

// Networkd returns the machine's systemd-networkd.
func (k *Kernel) Networkd() networkd.Daemon { return networkd.Daemon{Root: k.Root, Log: k.Log} }

func (k *Kernel) running() daemon {
	if k.daemon != nil {
		return k.daemon
	}
	return k.Networkd()
}

// MAC is a hardware address as the kernel writes it: lower case, with colons.
type MAC string

// ParseMAC accepts all common spellings.
func ParseMAC(text string) (MAC, error) {
	mac, err := hwaddr.Parse(text)
	return MAC(mac), err
}

// State describes the machine's network as observed.
type State struct {
	Links    []Link          `json:"links"`
	Routes   []Route         `json:"routes"` // main table
	Files    []networkd.File `json:"files"`  // networkd's .network files, in the order in which it reads them
	Networkd networkd.Status `json:"networkd"`
	// NoIPv6 is set if the kernel was started without IPv6.
	NoIPv6 bool `json:"no_ipv6,omitempty"`
}

// Configured reports whether an agent has configured this machine before.
func (s State) Configured() bool {
	return slices.ContainsFunc(s.Files, func(f networkd.File) bool { _, ours := f.OurLink(); return ours })
}

// Link returns the link with that name.
func (s State) Link(name string) (Link, bool) {
	i := slices.IndexFunc(s.Links, func(l Link) bool { return l.Name == name })
	if i < 0 {
		return Link{}, false
	}
	return s.Links[i], true
}

// NICs returns the links to which networks may be matched, in order of their index.
func (s State) NICs() []Link {
	return slices.DeleteFunc(slices.Clone(s.Links), func(l Link) bool { return !l.NIC })
}

// Link is a network interface.
type Link struct {
	Index int    `json:"index"`
	Name  string `json:"name"`
	MAC   MAC    `json:"mac"`
	// NIC is set if the IaaS has attached the link: it has a device, or the agent's alias, and is not the virtual
	// function of an Azure accelerated interface.
	NIC                bool      `json:"nic"`
	Up                 bool      `json:"up"`
	Carrier            bool      `json:"carrier"`
	MTU                int       `json:"mtu"`
	Addresses          []Address `json:"addresses"`
	IPv6Disabled       bool      `json:"ipv6_disabled,omitempty"`
	PromoteSecondaries bool      `json:"promote_secondaries,omitempty"`
	// NetworkFile is the .network file that networkd uses for the link.
	NetworkFile string `json:"network_file,omitempty"`
}

// Subnet returns the subnet that contains ip, among those of the link's addresses.
func (l Link) Subnet(ip netip.Addr) (subnet netip.Prefix, found bool) {
	for _, a := range l.Addresses {
		if a.Prefix.Contains(ip) && !a.Prefix.IsSingleIP() {
			return a.Prefix.Masked(), true
		}
	}
	return subnet, false
}

// Address is an address on a link.
type Address struct {
	Prefix    netip.Prefix `json:"prefix"` // with host bits
	Label     string       `json:"label,omitempty"`
	Dynamic   bool         `json:"dynamic,omitempty"` // has a lifetime: DHCP or router advertisement
	Secondary bool         `json:"secondary,omitempty"`
	Tentative bool         `json:"tentative,omitempty"`
	DADFailed bool         `json:"dad_failed,omitempty"`
	LinkScope bool         `json:"link_scope,omitempty"`
}

// Usable reports whether the kernel lets programs use the address.
func (a Address) Usable() bool { return !a.Tentative && !a.DADFailed }

// Global reports whether the address can be reached from beyond the link.
func (a Address) Global() bool {
	ip := a.Prefix.Addr()
	return !a.LinkScope && !ip.IsLinkLocalUnicast() && !ip.IsLoopback()
}

// Origin is the creator of a route, as far as it matters to Diff.
type Origin string

// Origins of routes.
const (
	OriginKernel Origin = "kernel" // comes and goes with an address
	OriginStatic Origin = "static" // an administrator, networkd's files, or the agent
	OriginDHCP   Origin = "dhcp"
	OriginRA     Origin = "ra" // router advertisement
	OriginOther  Origin = "other"
)

// Route is an entry of the main routing table.
type Route struct {
	Link    string       `json:"link"`
	To      netip.Prefix `json:"to"` // 0.0.0.0/0 or ::/0 for a default route
	Gateway netip.Addr   `json:"gateway,omitzero"`
	Metric  int          `json:"metric,omitempty"`
	Origin  Origin       `json:"origin"`
	OnLink  bool         `json:"on_link,omitempty"`
}

// Default reports whether this is a default route.
func (r Route) Default() bool { return r.To.Bits() == 0 }

// Desired is the wanted configuration. Links that it does not contain are left unchanged.
type Desired struct {
	// Preconfigured is set if something else configures the network. The agent then changes nothing.
	Preconfigured bool       `json:"preconfigured,omitempty"`
	Links         []WantLink `json:"links"` // by name
	// Dynamic lists the networks whose addresses wait.Resolve looks up.
	Dynamic []Dynamic `json:"dynamic,omitempty"`
	// AwaitIPv6 makes wait.Ready wait for duplicate address detection of static IPv6 addresses. It is set if the bus is
	// reached over IPv6.
	AwaitIPv6 bool `json:"await_ipv6,omitempty"`
}

// WantLink is the wanted state of a link.
type WantLink struct {
	Name     string   `json:"name"`
	Networks []string `json:"networks"` // names for messages; none for a NIC without a network
	// DHCP requests leases in both address families. There may be static addresses, too.
	DHCP bool `json:"dhcp,omitempty"`
	// NoDHCPGateway ignores the lease's default route, since another network provides it.
	NoDHCPGateway bool          `json:"no_dhcp_gateway,omitempty"`
	AcceptRA      bool          `json:"accept_ra,omitempty"`
	Addresses     []WantAddress `json:"addresses,omitempty"` // the first of each subnet is the primary one
	Routes        []WantRoute   `json:"routes,omitempty"`
	DNS           []netip.Addr  `json:"dns,omitempty"`
	// Leases lists the networks for which a lease is expected.
	Leases []WantLease `json:"leases,omitempty"`
}

// WantLease is a network whose address comes from a DHCP server.
type WantLease struct {
	Network string `json:"network"`
	// IP is the expected address, if the settings contain one.
	IP netip.Addr `json:"ip,omitzero"`
}

// WantAddress is a wanted static address.
type WantAddress struct {
	Prefix  netip.Prefix `json:"prefix"`
	Label   string       `json:"label,omitempty"`
	Network string       `json:"network"`
}

// WantRoute is a wanted static route.
type WantRoute struct {
	To      netip.Prefix `json:"to"`
	Gateway netip.Addr   `json:"gateway,omitzero"`
	// OnLink is set if the gateway is reachable although it is in no subnet of the link.
	OnLink  bool   `json:"on_link,omitempty"`
	Network string `json:"network"`
}

// Default reports whether this is a default route.
func (r WantRoute) Default() bool { return r.To.Bits() == 0 }

// Dynamic is a network whose address comes from a lease.
type Dynamic struct {
	Network string `json:"network"`
	Link    string `json:"link,omitempty"` // if empty, the link of the default route
	IPv6    bool   `json:"ipv6,omitempty"`
}

// Resolved is the address that a dynamic network has obtained.
type Resolved struct {
	IP      string
	Netmask string
	Gateway string
}

// ipv6 reports whether the configuration requires IPv6.
func (d Desired) ipv6() bool {
	return slices.ContainsFunc(d.Links, func(l WantLink) bool {
		return l.AcceptRA || slices.ContainsFunc(l.Addresses, func(a WantAddress) bool { return a.Prefix.Addr().Is6() })
	})
}

// NetworkNames formats the names of the link's networks, for messages.
func (l WantLink) NetworkNames() string {
	quoted := make([]string, len(l.Networks))
	for i, n := range l.Networks {
		quoted[i] = fmt.Sprintf("%q", n)
	}
	return strings.Join(quoted, ", ")
}
