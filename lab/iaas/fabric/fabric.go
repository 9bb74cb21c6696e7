package fabric

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"cambium/lab/iaas/value"
	"cambium/lab/netns"
)

// Fabric is the network of one IaaS.
type Fabric struct {
	Net  netns.Namespace
	name string
	dir  string // what DHCP servers read

	mu      sync.Mutex // guards what follows
	bridges map[value.Name]*bridge
	servers map[value.Name]*dhcp
	access  Access         // of the link to the host
	routed  []netip.Prefix // networks to which the host has a route
}

// bridge is a segment in the kernel.
type bridge struct {
	name      string
	addresses []string
}

// Make makes the namespace of an empty fabric. What a former one of that name has left on the host
// is removed.
func Make(name, dir string) (*Fabric, error) {
	if err := hostLinkOf(name).remove(); err != nil {
		return nil, err
	}
	space, err := netns.Create(name)
	if err != nil {
		return nil, err
	}
	return &Fabric{Net: space, name: name, dir: dir,
		bridges: map[value.Name]*bridge{}, servers: map[value.Name]*dhcp{}}, nil
}

// Close ends the servers and removes the host's link; the namespace goes with what is in it.
func (f *Fabric) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, d := range f.servers {
		d.stop()
	}
	return errors.Join(f.unlink(), f.Net.Delete())
}

// bridgeName fits a link, whatever the segment is called.
func bridgeName(segment value.Name) string {
	h := sha256.Sum256([]byte(segment.String()))
	return "br-" + hex.EncodeToString(h[:])[:10]
}

// Plug makes the segment of a card, gives the host the gateways' addresses there, and the card its own by DHCP if it
// needs that. It returns the segment's bridge.
func (f *Fabric) Plug(c Card, nets Networks, needsDHCP bool) (string, error) {
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
	for _, name := range c.Networks {
		n := nets[name]
		if n.Gateway == (value.Addr{}) {
			continue
		}
		bits, err := n.bits()
		if err != nil {
			return "", err
		}
		address := fmt.Sprintf("%s/%d", n.Gateway, bits)
		if !slices.Contains(b.addresses, address) {
			if err := f.Net.AddAddress(b.name, address); err != nil {
				return "", err
			}
			b.addresses = append(b.addresses, address)
		}
		if err := f.route(address); err != nil {
			return "", err
		}
	}
	if needsDHCP {
		if err := f.serveDHCP(c, b, nets); err != nil {
			return "", err
		}
	}
	return b.name, nil
}
