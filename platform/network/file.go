package network

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"cambium/platform/network/networkd"
)

// gatewaySince is the first systemd version that can ignore a lease's gateway and use its other routes.
const gatewaySince = 250

// refusedMetric is higher than the metric of any route that networkd or the agent sets, which is at most 1024.
const refusedMetric = 4096

// render returns the content of networkd's file for a link.
func render(l WantLink, daemon networkd.Status) string {
	var b strings.Builder
	section := func(name string, lines ...string) {
		if len(lines) > 0 {
			fmt.Fprintf(&b, "\n[%s]\n%s\n", name, strings.Join(lines, "\n"))
		}
	}
	b.WriteString(networkd.Marker)
	section("Match", "Name="+l.Name)
	for _, a := range l.Addresses {
		var lines []string
		if a.Label != "" {
			lines = append(lines, "Label="+a.Label)
		}
		lines = append(lines, "Address="+a.Prefix.String())
		// Set it explicitly: networkd compares it before it applies its default, and would remove the address for a
		// moment.
		if broadcast, ok := broadcast(a.Prefix); ok {
			lines = append(lines, "Broadcast="+broadcast.String())
		}
		section("Address", lines...)
	}

	var lines []string
	if l.DHCP {
		lines = append(lines, "DHCP=yes")
	}
	for _, r := range l.Routes {
		if r.Default() && !r.OnLink {
			lines = append(lines, "Gateway="+r.Gateway.String())
		}
	}
	if l.AcceptRA {
		lines = append(lines, "IPv6AcceptRA=true")
	}
	for _, server := range l.DNS {
		lines = append(lines, "DNS="+server.String())
	}
	section("Network", lines...)

	if l.DHCP {
		lines = []string{"UseDomains=yes", "UseMTU=yes"}
		if l.NoDHCPGateway && daemon.Version < gatewaySince {
			lines = append(lines, "UseRoutes=no")
		}
		section("DHCP", lines...)
		if l.NoDHCPGateway && daemon.Version >= gatewaySince {
			// UseGateway does not apply to a default route among the lease's classless routes, so that its metric must
			// be too high to win.
			section("DHCPv4", "UseGateway=no", "RouteMetric="+strconv.Itoa(refusedMetric))
		}
	}
	for _, r := range l.Routes {
		if r.Default() && !r.OnLink {
			continue
		}
		lines = []string{"Destination=" + r.To.String()}
		if r.Gateway.IsValid() {
			lines = append(lines, "Gateway="+r.Gateway.String())
		}
		if r.OnLink {
			lines = append(lines, "GatewayOnLink=yes")
		}
		section("Route", lines...)
	}
	b.WriteString("\n" + networkd.End + "\n")
	return b.String()
}

// broadcast returns the last address of an IPv4 subnet, if the subnet is large enough to have a broadcast address.
func broadcast(p netip.Prefix) (netip.Addr, bool) {
	if !p.Addr().Is4() || p.Bits() > 30 {
		return netip.Addr{}, false
	}
	ip := p.Addr().As4()
	for bit := p.Bits(); bit < 32; bit++ {
		ip[bit/8] |= 1 << (7 - bit%8)
	}
	return netip.AddrFrom4(ip), true
}

// record holds what an earlier run has set, according to the agent's file. It distinguishes leftovers from addresses of
// releases.
type record struct {
	addresses []netip.Prefix
	routes    []WantRoute
}

func readRecord(f networkd.File) record {
	var r record
	generated, _ := f.Split()
	for _, s := range networkd.Parse(generated) {
		var route WantRoute
		for _, k := range s.Settings {
			switch s.Name + "." + k.Key {
			case "Address.Address", "Network.Address":
				if p, err := netip.ParsePrefix(k.Value); err == nil {
					r.addresses = append(r.addresses, p)
				}
			case "Network.Gateway":
				if gw, err := netip.ParseAddr(k.Value); err == nil {
					r.routes = append(r.routes, WantRoute{To: defaultDestination(gw), Gateway: gw})
				}
			case "Route.Destination":
				route.To, _ = netip.ParsePrefix(k.Value)
			case "Route.Gateway":
				route.Gateway, _ = netip.ParseAddr(k.Value)
			}
		}
		if route.To.IsValid() {
			route.To = route.To.Masked()
			r.routes = append(r.routes, route)
		}
	}
	return r
}

// defaultDestination returns the destination of a default route in gw's address family.
func defaultDestination(gw netip.Addr) netip.Prefix {
	if gw.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

// matches reports whether networkd would use a file for a link. Conditions that are not supported here are met if
// networkd uses the file for that link at present.
func matches(f networkd.File, l Link) bool {
	conditions, unknown := 0, false
	for _, s := range networkd.Parse(f.Content) {
		if s.Name != "Match" {
			continue
		}
		for _, k := range s.Settings {
			if k.Value == "" {
				continue
			}
			conditions++
			switch k.Key {
			case "Name":
				if !matchName(k.Value, l.Name) {
					return false
				}
			case "MACAddress", "PermanentMACAddress":
				if !slices.ContainsFunc(strings.Fields(k.Value), func(text string) bool {
					mac, err := ParseMAC(text)
					return err == nil && mac == l.MAC
				}) {
					return false
				}
			default:
				unknown = true
			}
		}
	}
	if unknown {
		return l.NetworkFile == f.Path
	}
	return conditions > 0
}

func matchName(patterns, name string) bool {
	patterns, inverted := strings.CutPrefix(patterns, "!")
	for _, p := range strings.Fields(patterns) {
		if ok, err := filepath.Match(p, name); err == nil && ok {
			return !inverted
		}
	}
	return inverted
}
