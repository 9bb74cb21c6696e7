package desired

import (
	"fmt"
	"net/netip"

	"cambium/settings"
)

// DNS returns the machine's name servers in the order of the settings, and warnings. Vip networks count only if all
// others are preconfigured.
func DNS(nets map[string]settings.Network) ([]netip.Addr, []string) {
	var names []string
	all := preconfigured(nets)
	for _, name := range sortedNames(nets) {
		if all || !nets[name].VIP() {
			names = append(names, name)
		}
	}
	return dnsServers(names, nets)
}

// dnsServers returns the servers of the only network, or else of the one that is the default for dns.
func dnsServers(names []string, nets map[string]settings.Network) (servers []netip.Addr, warnings []string) {
	chosen := ""
	for _, name := range names {
		switch {
		case len(names) == 1:
			chosen = name
		case !nets[name].DefaultFor("dns"):
		case chosen == "":
			chosen = name
		default:
			warnings = append(
				warnings,
				fmt.Sprintf("network %q: network %q is already the default for dns; these servers are not used",
					name, chosen),
			)
		}
	}
	for _, text := range nets[chosen].DNS {
		server, err := netip.ParseAddr(text)
		if err != nil {
			warnings = append(warnings, fmt.Sprintf("network %q: DNS server %q is not an IP address", chosen, text))
			continue
		}
		servers = append(servers, server)
	}
	return servers, warnings
}
