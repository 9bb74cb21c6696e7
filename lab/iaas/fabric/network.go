// Package fabric is the network of the IaaS: what a VM's networks mean, and the kernel's side of it.
// Everything is in one network namespace: a bridge for each segment, on which the host has the gateways'
// addresses, and a DHCP server where one is needed. On request a link lets the host's own network reach it.
package fabric

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sort"

	"cambium/lab/machine"
)

// Network is one of a VM's networks as the caller describes it, with what the IaaS has filled in.
type Network struct {
	Type       string          `json:"type"`
	IP         string          `json:"ip,omitempty"`
	Prefix     string          `json:"prefix,omitempty"`
	Netmask    string          `json:"netmask,omitempty"`
	Gateway    string          `json:"gateway,omitempty"`
	DNS        []string        `json:"dns,omitempty"`
	Default    []string        `json:"default,omitempty"`
	NICGroup   json.RawMessage `json:"nic_group,omitempty"`
	Properties json.RawMessage `json:"cloud_properties,omitempty"`
	MAC        string          `json:"mac,omitempty"`
}

// The types of networks.
const (
	Manual  = "manual"
	Dynamic = "dynamic"
	VIP     = "vip"
)

// networkProperties are the cloud_properties of a network.
type networkProperties struct {
	Name  string `json:"name"` // networks of the same name are one segment
	MAC   string `json:"mac"`
	Range string `json:"range"` // of a dynamic network
}

const defaultSegment = "default"

func (n Network) properties() (p networkProperties, err error) {
	if len(n.Properties) > 0 {
		if err := json.Unmarshal(n.Properties, &p); err != nil {
			return p, fmt.Errorf("cloud_properties of the network: %w", err)
		}
	}
	if p.Name == "" {
		p.Name = defaultSegment
	}
	if p.Range == "" {
		p.Range = defaultRange
	}
	return p, nil
}

// Card is a network card of a VM with the networks that it carries.
type Card struct {
	Segment  string
	MAC      net.HardwareAddr
	Networks []string
}

// Plan checks the networks of a VM and spreads them over cards: one each, except that a vip has
// none and that those of equal nic_group share one. The order is that of the names, so that it is the same
// for every caller. It fills in the cards' addresses.
func Plan(machineName string, given map[string]Network) (map[string]Network, []Card, error) {
	filled := map[string]Network{}
	var cards []Card
	groups := map[string]int{}
	names := make([]string, 0, len(given))
	for name := range given {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		n := given[name]
		if err := n.check(); err != nil {
			return nil, nil, fmt.Errorf("network %s: %w", name, err)
		}
		if n.Type == VIP {
			filled[name] = n
			continue
		}
		p, err := n.properties()
		if err != nil {
			return nil, nil, fmt.Errorf("network %s: %w", name, err)
		}
		at, shared := groups[string(n.NICGroup)]
		if len(n.NICGroup) == 0 || string(n.NICGroup) == "null" || !shared {
			at = len(cards)
			c := Card{Segment: p.Name, MAC: machine.MAC(machineName, at)}
			if p.MAC != "" {
				if c.MAC, err = net.ParseMAC(p.MAC); err != nil || len(c.MAC) != 6 || c.MAC[0]&1 != 0 {
					return nil, nil, fmt.Errorf("network %s: mac %q is no address of a network card", name, p.MAC)
				}
			}
			cards = append(cards, c)
			if len(n.NICGroup) > 0 {
				groups[string(n.NICGroup)] = at
			}
		}
		if cards[at].Segment != p.Name {
			return nil, nil, fmt.Errorf("network %s is on segment %s and shares a card with one on %s", name, p.Name, cards[at].Segment)
		}
		cards[at].Networks = append(cards[at].Networks, name)
		n.MAC = cards[at].MAC.String()
		filled[name] = n
	}
	if len(cards) == 0 {
		return nil, nil, errors.New("a VM needs a manual or dynamic network")
	}
	return filled, cards, nil
}

func (n Network) check() error {
	switch n.Type {
	case Manual, "":
	case Dynamic, VIP:
		return nil
	default:
		return fmt.Errorf("type %q is none of manual, dynamic, vip", n.Type)
	}
	ip, err := netip.ParseAddr(n.IP)
	if err != nil {
		return fmt.Errorf("ip %q is no address", n.IP)
	}
	if _, err := n.bits(); err != nil {
		return err
	}
	if n.Gateway == "" {
		return nil
	}
	gateway, err := netip.ParseAddr(n.Gateway)
	if err != nil {
		return fmt.Errorf("gateway %q is no address", n.Gateway)
	}
	if gateway == ip {
		return fmt.Errorf("ip %s is the gateway's", n.IP)
	}
	return nil
}

// bits is the length of the network's prefix, from its netmask.
func (n Network) bits() (int, error) {
	ip, err := netip.ParseAddr(n.IP)
	if err != nil {
		return 0, err
	}
	mask, err := netip.ParseAddr(n.Netmask)
	if err != nil || mask.BitLen() != ip.BitLen() {
		return 0, fmt.Errorf("netmask %q does not fit the address %s", n.Netmask, n.IP)
	}
	ones, total := net.IPMask(mask.AsSlice()).Size()
	if total == 0 {
		return 0, fmt.Errorf("netmask %q is none", n.Netmask)
	}
	return ones, nil
}

// Segment is the name of the segment that a network is on.
func (n Network) Segment() string {
	p, err := n.properties()
	if err != nil {
		return "" // refused by Plan
	}
	return p.Name
}
