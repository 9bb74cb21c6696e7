// Package fabric is the network of the IaaS. It interprets the networks of VMs, and configures the kernel. Everything
// is in one network namespace: a bridge for each segment, on which the host has the gateways' addresses, and a DHCP
// server if a card needs one. On request, a link connects it with the host's own network.
package fabric

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"

	"cambium/lab/iaas/value"
	"cambium/lab/machine"
)

// Type is the type of a network.
type Type string

// The types of networks.
const (
	Manual  Type = "manual"
	Dynamic Type = "dynamic"
	VIP     Type = "vip"
)

// UnmarshalText parses a type. If it is empty, the network is manual.
func (t *Type) UnmarshalText(text []byte) error {
	*t = Type(text)
	if !slices.Contains([]Type{Manual, Dynamic, VIP, ""}, *t) {
		return fmt.Errorf("type %.50q is not one of manual, dynamic, vip", text)
	}
	return nil
}

// Network is a network of a VM: the caller's description, completed by the IaaS.
type Network struct {
	Type       Type         `json:"type"`
	IP         value.Addr   `json:"ip,omitzero"`
	Prefix     value.Bits   `json:"prefix,omitzero"`
	Netmask    value.Addr   `json:"netmask,omitzero"`
	Gateway    value.Addr   `json:"gateway,omitzero"`
	DNS        []value.Addr `json:"dns,omitempty"`
	Default    []value.Name `json:"default,omitempty"`
	NICGroup   value.Group  `json:"nic_group,omitzero"`
	Properties Properties   `json:"cloud_properties"`
	MAC        value.MAC    `json:"mac,omitzero"`
}

// Networks maps names to the networks of a VM.
type Networks map[value.Name]Network

// Properties has the cloud_properties of a network.
type Properties struct {
	Name  value.Name   `json:"name,omitzero"` // networks with the same name are on one segment
	MAC   value.MAC    `json:"mac,omitzero"`
	Range netip.Prefix `json:"range,omitzero"` // of a dynamic network
	// Allowed lists additional addresses that the card may use, such as one that moves between VMs.
	Allowed []value.Addr `json:"allowed_addresses,omitempty"`
}

// maxAllowed bounds the additional addresses of a card.
const maxAllowed = 100

var defaultSegment = value.MustName("default")

// Card is a network card of a VM with its networks.
type Card struct {
	Segment  value.Name
	MAC      net.HardwareAddr
	Networks []value.Name
}

// Plan checks the networks of a VM and assigns them to cards: one each, except that a vip has none, and that networks
// with the same nic_group share one. It sorts them by name, so that the order is the same for all callers. It sets the
// cards' addresses, which are derived from the VM's name.
func Plan(vm string, given Networks) (Networks, []Card, error) {
	filled := Networks{}
	var cards []Card
	groups := map[value.Group]int{}
	byText := func(a, b value.Name) int { return cmp.Compare(a.String(), b.String()) }
	for _, name := range slices.SortedFunc(maps.Keys(given), byText) {
		n := given[name]
		if err := n.check(); err != nil {
			return nil, nil, fmt.Errorf("network %s: %w", name, err)
		}
		if n.Type == VIP {
			filled[name] = n
			continue
		}
		at, shared := groups[n.NICGroup]
		if !shared {
			at = len(cards)
			c := Card{Segment: n.Segment(), MAC: machine.MAC(vm, at)}
			if !n.Properties.MAC.IsZero() {
				c.MAC = n.Properties.MAC.Hardware()
			}
			same := func(other Card) bool { return slices.Equal(other.MAC, c.MAC) }
			if slices.ContainsFunc(cards, same) {
				return nil, nil, fmt.Errorf("network %s: another card also has the address %s", name, c.MAC)
			}
			cards = append(cards, c)
			if n.NICGroup != (value.Group{}) {
				groups[n.NICGroup] = at
			}
		}
		if cards[at].Segment != n.Segment() {
			return nil, nil, fmt.Errorf("network %s is on segment %s, but shares a card with one on %s",
				name, n.Segment(), cards[at].Segment)
		}
		cards[at].Networks = append(cards[at].Networks, name)
		n.MAC = value.MACOf(cards[at].MAC)
		filled[name] = n
	}
	if len(cards) == 0 {
		return nil, nil, errors.New("a VM needs a manual or dynamic network")
	}
	return filled, cards, nil
}

func (n Network) check() error {
	if len(n.Properties.Allowed) > maxAllowed {
		return fmt.Errorf("%d allowed_addresses: want at most %d", len(n.Properties.Allowed), maxAllowed)
	}
	if n.Type == Dynamic || n.Type == VIP {
		return nil
	}
	if n.IP == (value.Addr{}) {
		return errors.New("a manual network has no ip")
	}
	if _, err := n.bits(); err != nil {
		return err
	}
	if _, err := n.Prefix.Of(n.IP); err != nil {
		return err
	}
	if n.Gateway == n.IP {
		return fmt.Errorf("ip %s is also the gateway", n.IP)
	}
	return nil
}

// own returns the addresses that the card may use: the network's, or the prefix delegated to it, and additional ones.
func (n Network) own() (all []netip.Prefix, err error) {
	if n.IP != (value.Addr{}) {
		p, err := n.Prefix.Of(n.IP)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	for _, a := range n.Properties.Allowed {
		if a != (value.Addr{}) {
			all = append(all, netip.PrefixFrom(a.IP(), a.IP().BitLen()))
		}
	}
	return all, nil
}

// bits returns the length of the network's prefix, from the netmask.
func (n Network) bits() (int, error) {
	mask := n.Netmask.IP()
	if mask.BitLen() != n.IP.IP().BitLen() {
		return 0, fmt.Errorf("netmask %q does not match the family of address %s", n.Netmask, n.IP)
	}
	ones, total := net.IPMask(mask.AsSlice()).Size()
	if total == 0 {
		return 0, fmt.Errorf("netmask %q is not contiguous", n.Netmask)
	}
	return ones, nil
}

// Segment returns the name of the network's segment.
func (n Network) Segment() value.Name {
	if n.Properties.Name == (value.Name{}) {
		return defaultSegment
	}
	return n.Properties.Name
}

// Conflict returns an error if this network uses an address or a range that is used by the other one, of another card
// or VM.
func (n Network) Conflict(other Network) error {
	if !n.MAC.IsZero() && n.MAC == other.MAC {
		return fmt.Errorf("card %s is in use", n.MAC)
	}
	if n.Segment() == other.Segment() {
		if n.IP == (value.Addr{}) || other.IP == (value.Addr{}) {
			return nil
		}
		mine, err1 := n.Prefix.Of(n.IP)
		theirs, err2 := other.Prefix.Of(other.IP)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		if mine.Overlaps(theirs) {
			if mine.IsSingleIP() && theirs.IsSingleIP() {
				return fmt.Errorf("address %s is in use", n.IP)
			}
			return fmt.Errorf("prefix %s overlaps %s, which is in use", mine, theirs)
		}
		return nil
	}
	for _, a := range n.ranges() {
		for _, b := range other.ranges() {
			if a.Overlaps(b) {
				return fmt.Errorf("range %s overlaps %s on segment %s", a, b, other.Segment())
			}
		}
	}
	return nil
}

// ranges returns the subnets that contain the addresses of the card and of the gateway.
func (n Network) ranges() (all []netip.Prefix) {
	bits, err := n.bits()
	if err != nil || n.Type == VIP {
		return nil // it is not in the kernel, or has no address yet
	}
	for _, a := range []value.Addr{n.IP, n.Gateway} {
		if prefix := netip.PrefixFrom(a.IP(), bits).Masked(); prefix.IsValid() && !slices.Contains(all, prefix) {
			all = append(all, prefix)
		}
	}
	return all
}
