package iaas

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sort"
	"strings"
	"time"

	"cambium/integration/lab/machine"
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
	manual  = "manual"
	dynamic = "dynamic"
	vip     = "vip"
)

// properties are the cloud_properties of a network.
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

// card is a network card of a VM with the networks that it carries.
type card struct {
	segment  string
	mac      net.HardwareAddr
	networks []string
}

// plan checks the networks of a VM and spreads them over cards: one each, except that a vip has
// none and that those of equal nic_group share one. The order is that of the names, so that it is the same
// for every caller. It fills in the cards' addresses.
func plan(machineName string, given map[string]Network) (map[string]Network, []card, error) {
	filled := map[string]Network{}
	var cards []card
	groups := map[string]int{}
	names := make([]string, 0, len(given))
	for name := range given {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		n := given[name]
		if err := n.check(); err != nil {
			return nil, nil, Failf(CloudError, "network %s: %w", name, err)
		}
		if n.Type == vip {
			filled[name] = n
			continue
		}
		p, err := n.properties()
		if err != nil {
			return nil, nil, Failf(CloudError, "network %s: %w", name, err)
		}
		at, shared := groups[string(n.NICGroup)]
		if len(n.NICGroup) == 0 || string(n.NICGroup) == "null" || !shared {
			at = len(cards)
			c := card{segment: p.Name, mac: machine.MAC(machineName, at)}
			if p.MAC != "" {
				if c.mac, err = net.ParseMAC(p.MAC); err != nil || len(c.mac) != 6 || c.mac[0]&1 != 0 {
					return nil, nil, Failf(CloudError, "network %s: mac %q is no address of a network card", name, p.MAC)
				}
			}
			cards = append(cards, c)
			if len(n.NICGroup) > 0 {
				groups[string(n.NICGroup)] = at
			}
		}
		if cards[at].segment != p.Name {
			return nil, nil, Failf(CloudError, "network %s is on segment %s and shares a card with one on %s", name, p.Name, cards[at].segment)
		}
		cards[at].networks = append(cards[at].networks, name)
		n.MAC = cards[at].mac.String()
		filled[name] = n
	}
	if len(cards) == 0 {
		return nil, nil, Failf(CloudError, "a VM needs a manual or dynamic network")
	}
	return filled, cards, nil
}

func (n Network) check() error {
	switch n.Type {
	case manual, "":
	case dynamic, vip:
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

// conflict names the VM that has one of the addresses already, on the same segment. The caller holds mu.
func (i *IaaS) conflict(wanted map[string]Network) error {
	for name, n := range wanted {
		for cid, vm := range i.vms {
			for _, taken := range vm.Networks {
				if segment(taken) != segment(n) {
					continue
				}
				if n.IP != "" && taken.IP == n.IP {
					return Failf(CloudError, "address %s of network %s belongs to %s", n.IP, name, cid)
				}
				if n.MAC != "" && strings.EqualFold(taken.MAC, n.MAC) {
					return Failf(CloudError, "card %s of network %s belongs to %s", n.MAC, name, cid)
				}
			}
		}
	}
	return nil
}

func segment(n Network) string {
	p, _ := n.properties() // checked when the VM was made
	return p.Name
}

// bridge is a segment in the kernel.
type bridge struct {
	name      string
	addresses []string
}

// bridgeName fits a link, whatever the segment is called.
func bridgeName(segment string) string {
	h := sha256.Sum256([]byte(segment))
	return "br-" + hex.EncodeToString(h[:])[:10]
}

// plug makes the segment of a card and gives the host the gateways' addresses there, and the card its own by DHCP if
// it needs that.
func (i *IaaS) plug(c card, nets map[string]Network, needsDHCP bool) (string, error) {
	defer i.locks.lock("segment " + c.segment)()
	i.mu.Lock()
	b, there := i.bridges[c.segment]
	i.mu.Unlock()
	if !there {
		b.name = bridgeName(c.segment)
		if err := i.Net.Bridge(b.name); err != nil {
			return "", err
		}
	}
	for _, name := range c.networks {
		n := nets[name]
		if n.Gateway == "" {
			continue
		}
		bits, err := n.bits()
		if err != nil {
			return "", err
		}
		address := fmt.Sprintf("%s/%d", n.Gateway, bits)
		if slices.Contains(b.addresses, address) {
			continue
		}
		if err := i.Net.AddAddress(b.name, address); err != nil {
			return "", err
		}
		if err := i.routeHost(address); err != nil {
			return "", err
		}
		b.addresses = append(b.addresses, address)
	}
	i.mu.Lock()
	i.bridges[c.segment] = b
	i.mu.Unlock()
	if needsDHCP {
		if err := i.serveDHCP(c, b, nets); err != nil {
			return "", err
		}
	}
	return b.name, nil
}

// ManagedNetwork is a network that the IaaS was asked for.
type ManagedNetwork struct {
	Base
	Range   string `json:"range"`
	Gateway string `json:"gateway"`
}

// CreateNetwork makes a segment. Its CID is the segment's name.
func (i *IaaS) CreateNetwork(kind, cidr, gateway, director string) (ManagedNetwork, error) {
	if kind != manual {
		return ManagedNetwork{}, Failf(NotSupported, "only manual networks are managed, not %q", kind)
	}
	prefix, err := netip.ParsePrefix(cidr)
	if err != nil {
		return ManagedNetwork{}, Failf(NotSupported, "range %q: the range must be given", cidr)
	}
	at, err := netip.ParseAddr(gateway)
	if err != nil || !prefix.Contains(at) {
		return ManagedNetwork{}, Failf(CloudError, "gateway %q is not in %s", gateway, cidr)
	}
	n := ManagedNetwork{Base: Base{CID: newCID(networks), Phase: Ready, Created: time.Now(), Director: director}, Range: prefix.Masked().String(), Gateway: gateway}
	if err := i.store.put(networks, n.CID, n); err != nil {
		return ManagedNetwork{}, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.networks[n.CID] = &n
	return n, nil
}

// DeleteNetwork removes a segment on which there is no VM. One that is not there is an error that the caller ignores.
func (i *IaaS) DeleteNetwork(cid string) error {
	defer i.locks.lock(cid)()
	i.mu.Lock()
	_, there := i.networks[cid]
	var user string
	for name, vm := range i.vms {
		for _, n := range vm.Networks {
			if segment(n) == cid {
				user = name
			}
		}
	}
	i.mu.Unlock()
	if !there {
		return Failf(NetworkNotFound, "there is no network %s", cid)
	}
	if user != "" {
		return Failf(CloudError, "network %s is in use by %s", cid, user)
	}
	return i.forget(networks, cid, func() { delete(i.networks, cid) })
}
