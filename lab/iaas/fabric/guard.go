package fabric

import (
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"strings"

	"cambium/lab/machine"
)

// A bridge passes what comes from a card if it has the card's own hardware and IP addresses, also where it tells others
// about them (ARP, neighbor discovery): VMs are known by their addresses, such as to the metadata service, and one
// cannot take over those of another.

// guard installs a packet filter for the ports of all bridges, which replaces the previous one atomically. A port
// without a rule passes nothing. The caller holds mu.
func (f *Fabric) guard() error {
	chains, ports := "", []string{}
	seen := map[string]bool{}
	for _, b := range f.bridges {
		for _, p := range b.plugs {
			port := machine.Port(p.mac)
			if seen[port] { // plugged again after a failed start
				continue
			}
			seen[port] = true
			chains += fmt.Sprintf("\tchain %s {\n%s\t}\n", chain(p.mac), p.rules())
			ports = append(ports, fmt.Sprintf("%q : goto %s", port, chain(p.mac)))
		}
	}
	jump := ""
	if len(ports) > 0 {
		jump = "iifname vmap { " + strings.Join(ports, ", ") + " }"
	}
	rules := fmt.Sprintf(`table bridge guard
delete table bridge guard
table bridge guard {
%s	chain ports {
		type filter hook prerouting priority filter; policy drop;
		%s
	}
}
`, chains, jump)
	if err := nft(rules, "nsenter", "--net="+f.Net.Path()); err != nil {
		return fmt.Errorf("filter of the bridges' ports: %w", err)
	}
	return nil
}

// chain returns the name of the chain with a card's rules.
func chain(mac net.HardwareAddr) string { return fmt.Sprintf("card_%x", []byte(mac)) }

// rules returns the rules for what a card may send. Everything else is dropped.
func (p plug) rules() string {
	var four, six, targets []string
	for _, a := range append([]netip.Prefix{netip.PrefixFrom(linkLocal(p.mac), 128)}, p.addresses...) {
		if a.Addr().Is4() {
			four = append(four, a.String())
			continue
		}
		six = append(six, a.String())
		// The target of solicitations and advertisements, as far as the prefix goes. This nft has no name for it.
		number := new(big.Int).SetBytes(a.Masked().Addr().AsSlice())
		targets = append(targets, fmt.Sprintf("@th,64,%d 0x%x", a.Bits(), number.Rsh(number, uint(128-a.Bits()))))
	}
	rules := fmt.Sprintf("\t\tether saddr != %s drop\n", p.mac)
	if len(four) > 0 {
		// 0.0.0.0 asks whether an address is in use.
		rules += fmt.Sprintf(`		ether type arp arp saddr ether %s arp saddr ip { 0.0.0.0, %[2]s } accept
		ip saddr { %[2]s } accept
`, p.mac, strings.Join(four, ", "))
	}
	own := "{ " + strings.Join(six, ", ") + " }"
	rules += "\t\tip saddr 0.0.0.0 udp sport 68 udp dport 67 accept\n"
	for _, target := range targets {
		rules += "\t\tip6 saddr :: icmpv6 type nd-neighbor-solicit " + target + " accept\n" +
			"\t\tip6 saddr " + own + " icmpv6 type nd-neighbor-advert " + target + " accept\n"
	}
	return rules + "\t\ticmpv6 type { nd-neighbor-advert, nd-router-advert, nd-redirect } drop\n" +
		"\t\tip6 saddr :: icmpv6 type mld2-listener-report accept\n\t\tip6 saddr " + own + " accept\n"
}

// linkLocal returns the IPv6 address that a kernel derives from a hardware address.
func linkLocal(mac net.HardwareAddr) netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 8: mac[0] ^ 2, 9: mac[1], 10: mac[2], 11: 0xff,
		12: 0xfe, 13: mac[3], 14: mac[4], 15: mac[5]})
}
