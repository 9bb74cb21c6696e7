package desired

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"strings"

	"cambium/platform/network"
	"cambium/settings"
)

func wantRoute(r settings.Route) (network.WantRoute, error) {
	to, err := prefixOf(r.Destination, r.Netmask)
	if err != nil {
		return network.WantRoute{}, err
	}
	gw, err := parseIP(r.Gateway)
	if err != nil {
		return network.WantRoute{}, fmt.Errorf("gateway %w", err)
	}
	if gw.Is4() != to.Addr().Is4() {
		return network.WantRoute{}, fmt.Errorf("gateway %s and destination %s have different address families", gw, to)
	}
	return network.WantRoute{To: to.Masked(), Gateway: gw}, nil
}

// staticPrefix returns the address of a network with the prefix length of its subnet.
func staticPrefix(net settings.Network) (netip.Prefix, error) {
	if net.IP == "" {
		return netip.Prefix{}, errors.New("has no ip")
	}
	prefix, err := prefixOf(net.IP, net.Netmask)
	if err != nil {
		return prefix, err
	}
	if ip := prefix.Addr(); ip.IsUnspecified() || ip.IsMulticast() || ip.IsLoopback() {
		return prefix, fmt.Errorf("%s is not usable as the address of a NIC", ip)
	}
	return prefix, nil
}

// prefixOf combines an address and a netmask. The mask may be dotted, in IPv6 notation, or a prefix length; without a
// mask, the address may end in one.
func prefixOf(address, mask string) (netip.Prefix, error) {
	if p, err := netip.ParsePrefix(address); err == nil && mask == "" && !p.Addr().Is4In6() {
		return p, nil
	}
	ip, err := parseIP(address)
	if err != nil {
		return netip.Prefix{}, err
	}
	bits, err := maskBits(mask, ip.BitLen())
	if err != nil {
		return netip.Prefix{}, err
	}
	return netip.PrefixFrom(ip, bits), nil
}

// parseIP parses an address without a zone and converts an IPv4-mapped IPv6 address to IPv4.
func parseIP(text string) (netip.Addr, error) {
	ip, err := netip.ParseAddr(text)
	if err != nil || ip.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%q is not an IP address", text)
	}
	return ip.Unmap(), nil
}

func maskBits(mask string, size int) (int, error) {
	if mask == "" {
		return 0, errors.New("has no netmask")
	}
	if bits, ok := strings.CutPrefix(mask, "/"); ok || !strings.ContainsAny(mask, ".:") {
		p, err := netip.ParsePrefix(netip.IPv6Unspecified().String() + "/" + bits)
		if err != nil || p.Bits() > size {
			return 0, fmt.Errorf("netmask %q is not a length between 0 and %d", mask, size)
		}
		return p.Bits(), nil
	}
	parsed, err := netip.ParseAddr(mask)
	if err != nil || parsed.BitLen() != size {
		return 0, fmt.Errorf("netmask %q does not match the address family", mask)
	}
	bits, of := net.IPMask(parsed.AsSlice()).Size()
	if of == 0 {
		return 0, fmt.Errorf("netmask %q is not contiguous", mask)
	}
	return bits, nil
}

// FillAddresses returns a copy of nets in which the addresses obtained by DHCP are filled in.
func FillAddresses(nets map[string]settings.Network, found map[string]network.Resolved) map[string]settings.Network {
	all := maps.Clone(nets)
	for name, r := range found {
		net := all[name]
		net.IP, net.Netmask, net.Gateway, net.Resolved = r.IP, r.Netmask, r.Gateway, true
		all[name] = net
	}
	return all
}
