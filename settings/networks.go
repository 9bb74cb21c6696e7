package settings

import (
	"net/netip"
	"strings"

	"cambium/internal/jsontree"
	"cambium/internal/report"
)

// DecodeNetworks reads a "networks" object that stands on its own: user data that points to a registry holds one
// beside the pointer, for a machine that needs an address to fetch its settings. name is for the report.
func DecodeNetworks(name string, raw []byte) (map[string]Network, report.Report) {
	var rep report.Report
	networks := decodeNetworks(jsontree.Parse(name, raw, &rep))
	rep.Sort()
	return networks, rep
}

func decodeNetworks(v jsontree.Value) map[string]Network {
	if !v.Present() {
		return nil
	}
	defaults := map[string]int{}
	networks := map[string]Network{}
	for name, value := range v.Fields().All() {
		n := decodeNetwork(value)
		networks[name] = n
		for _, category := range n.Default {
			defaults[category]++
		}
	}
	for _, category := range []string{"dns", "gateway"} {
		if defaults[category] > 1 {
			v.Warnf("%d networks are the default for %q; the first by name is used", defaults[category], category)
		}
	}
	return networks
}

func decodeNetwork(v jsontree.Value) (n Network) {
	f := v.Fields()
	f.Get("type").Text(&n.Type)
	ip, netmask, gateway := f.Get("ip"), f.Get("netmask"), f.Get("gateway")
	ip.Text(&n.IP)
	netmask.Text(&n.Netmask)
	gateway.Text(&n.Gateway)
	scalar(f.Get("prefix"), &n.Prefix)
	dns := f.Get("dns")
	dns.Strings(&n.DNS)
	f.Get("default").Strings(&n.Default)
	mac := f.Get("mac")
	mac.Text(&n.MAC)
	// The kernel reports lower case, and upstream compares byte for byte.
	n.MAC = strings.ToLower(n.MAC)
	f.Get("use_dhcp").Bool(&n.UseDHCP)
	f.Get("resolved").Bool(&n.Resolved)
	f.Get("preconfigured").Bool(&n.Preconfigured)
	alias := f.Get("alias")
	alias.Text(&n.Alias)
	for _, item := range f.Get("routes").Items() {
		n.Routes = append(n.Routes, decodeRoute(item))
	}
	f.Done(jsontree.Tolerate)

	if n.Alias == "." || n.Alias == ".." || strings.ContainsAny(n.Alias, "/ \t\r\n") {
		alias.Errorf("not usable as the name of an interface")
	}
	if !n.VIP() && !n.DHCP() && !n.Preconfigured {
		mustBeAddress(ip, n.IP)
		mustBeAddress(netmask, n.Netmask)
		mustBeAddress(gateway, n.Gateway)
	}
	for i, item := range dns.Items() {
		if i < len(n.DNS) && !isAddress(n.DNS[i]) {
			item.Warnf("expected an IP address")
		}
	}
	if n.MAC != "" && !isMAC(n.MAC) {
		mac.Warnf("expected a MAC address such as \"02:00:00:00:00:09\"; no interface will match")
	}
	return n
}

func decodeRoute(v jsontree.Value) (r Route) {
	f := v.Fields()
	f.Get("destination").Text(&r.Destination)
	f.Get("gateway").Text(&r.Gateway)
	f.Get("netmask").Text(&r.Netmask)
	f.Done(jsontree.Tolerate)
	return r
}

func mustBeAddress(v jsontree.Value, got string) {
	if got != "" && !isAddress(got) {
		v.Errorf("expected an IP address")
	}
}

func isAddress(s string) bool {
	_, err := netip.ParseAddr(s)
	return err == nil
}

// isMAC accepts Ethernet and InfiniBand addresses with colons, as the kernel writes them.
func isMAC(s string) bool {
	parts := strings.Split(s, ":")
	if len(parts) != 6 && len(parts) != 8 && len(parts) != 20 {
		return false
	}
	for _, p := range parts {
		if len(p) != 2 || strings.Trim(p, "0123456789abcdef") != "" {
			return false
		}
	}
	return true
}
