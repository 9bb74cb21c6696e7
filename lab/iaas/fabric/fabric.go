package fabric

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"sync"

	"cambium/lab/iaas/value"
	"cambium/lab/netns"
)

// Fabric is the network of one IaaS.
type Fabric struct {
	Net  netns.Namespace
	name string
	dir  string // for the logs of DHCP servers

	mu      sync.Mutex // guards the fields below
	bridges map[value.Name]*bridge
	access  Access         // access of the link to the host
	routed  []netip.Prefix // networks to which the host has a route
}

// bridge is a segment in the kernel. It exists as long as a VM has a card on it.
type bridge struct {
	name      string
	plugs     []plug
	addresses []netip.Prefix // addresses of gateways
	leases    []lease        // leases of its DHCP server
	server    *exec.Cmd      // DHCP server; nil if no card needs it
}

// plug is a card of a VM on a bridge.
type plug struct {
	vm        string
	mac       net.HardwareAddr
	addresses []netip.Prefix // that the card may use, most of them single addresses
	gateways  []netip.Prefix
	leases    []lease // if the card needs DHCP
}

// Make creates the namespace of an empty fabric. It removes what an earlier one with the name has left on the host.
func Make(name, dir string) (*Fabric, error) {
	if err := errors.Join(Disconnect(name), os.RemoveAll(dir)); err != nil {
		return nil, err
	}
	space, err := netns.Create(name)
	if err != nil {
		return nil, err
	}
	return &Fabric{Net: space, name: name, dir: dir, bridges: map[value.Name]*bridge{}}, nil
}

// Close stops the DHCP servers and removes the link to the host. The namespace is removed with everything in it.
func (f *Fabric) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, b := range f.bridges {
		b.stopDHCP()
	}
	return errors.Join(f.unlink(), f.Net.Delete())
}

// bridgeName returns a name that is valid for a link, whatever the segment is called.
func bridgeName(segment value.Name) string {
	h := sha256.Sum256([]byte(segment.String()))
	return "br-" + hex.EncodeToString(h[:])[:10]
}

// Plug creates the segment of a card, adds the gateways' addresses to the host there and, if needed, the card's address
// to the DHCP server. It returns the name of the segment's bridge. Unplug undoes it, even if Plug has failed.
func (f *Fabric) Plug(vm string, c Card, nets Networks, needsDHCP bool) (string, error) {
	p := plug{vm: vm, mac: c.MAC}
	for _, name := range c.Networks {
		n := nets[name]
		own, err := n.own()
		if err != nil {
			return "", err
		}
		p.addresses = append(p.addresses, own...)
		if n.Gateway == (value.Addr{}) {
			continue
		}
		bits, err := n.bits()
		if err != nil {
			return "", err
		}
		p.gateways = append(p.gateways, netip.PrefixFrom(n.Gateway.IP(), bits))
		if needsDHCP && n.IP.IP().Is4() && n.Gateway.IP().Is4() {
			p.leases = append(p.leases, lease{mac: c.MAC.String(), ip: n.IP.String(),
				gateway: n.Gateway.String(), netmask: n.Netmask.String()})
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	b := f.bridges[c.Segment]
	if b == nil {
		b = &bridge{name: bridgeName(c.Segment)}
		if err := f.Net.Bridge(b.name); err != nil {
			return "", err
		}
		f.bridges[c.Segment] = b
	}
	b.plugs = append(b.plugs, p)
	return b.name, f.adjust(b)
}

// Unplug removes the cards of a VM from their segments. A segment is removed with its last card, together with its
// gateways and routes. The VM must be off. It is not an error if the VM has no card.
func (f *Fabric) Unplug(vm string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var failed error
	for segment, b := range f.bridges {
		if !slices.ContainsFunc(b.plugs, func(p plug) bool { return p.vm == vm }) {
			continue
		}
		b.plugs = slices.DeleteFunc(b.plugs, func(p plug) bool { return p.vm == vm })
		err := f.adjust(b)
		if err == nil && len(b.plugs) == 0 {
			if err = f.Net.RemoveLink(b.name); err == nil {
				delete(f.bridges, segment)
			}
		}
		failed = errors.Join(failed, err)
	}
	return failed
}

// adjust sets the addresses, routes, DHCP server and filter of a bridge to those that its cards need. The caller holds
// mu.
func (f *Fabric) adjust(b *bridge) error {
	var gateways []netip.Prefix
	var leases []lease
	for _, p := range b.plugs {
		gateways, leases = append(gateways, p.gateways...), append(leases, p.leases...)
	}
	for _, address := range slices.Clone(b.addresses) {
		if slices.Contains(gateways, address) {
			continue
		}
		if err := errors.Join(f.unroute(address.Masked()), f.Net.RemoveAddress(b.name, address.String())); err != nil {
			return err
		}
		b.addresses = slices.DeleteFunc(b.addresses, func(a netip.Prefix) bool { return a == address })
	}
	for _, address := range gateways {
		if !slices.Contains(b.addresses, address) {
			if err := f.Net.AddAddress(b.name, address.String()); err != nil {
				return err
			}
			b.addresses = append(b.addresses, address)
		}
		if err := f.route(address.Masked()); err != nil {
			return err
		}
	}
	if !slices.Equal(leases, b.leases) {
		if err := f.serveDHCP(b, leases); err != nil {
			return err
		}
	}
	return f.guard()
}
