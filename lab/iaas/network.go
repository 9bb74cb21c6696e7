package iaas

import (
	"net/netip"
	"strings"
	"time"

	"cambium/lab/iaas/fabric"
)

// allocate fills in the addresses of dynamic networks, which the caller leaves to the IaaS. The
// caller holds mu.
func (i *IaaS) allocate(wanted map[string]fabric.Network) error {
	for name, n := range wanted {
		if n.Type != fabric.Dynamic {
			continue
		}
		taken := map[string]bool{}
		for _, vm := range i.vms {
			for _, other := range vm.Networks {
				if other.Segment() == n.Segment() {
					taken[other.IP] = true
				}
			}
		}
		for _, other := range wanted {
			taken[other.IP] = true
		}
		filled, err := n.Allocate(taken)
		if err != nil {
			return Failf(CloudError, "network %s: %w", name, err)
		}
		wanted[name] = filled
	}
	return nil
}

// conflict names the VM that has one of the addresses already, on the same segment. The caller holds mu.
func (i *IaaS) conflict(wanted map[string]fabric.Network) error {
	for name, n := range wanted {
		for cid, vm := range i.vms {
			for _, taken := range vm.Networks {
				if taken.Segment() != n.Segment() {
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

// ManagedNetwork is a network that the IaaS was asked for.
type ManagedNetwork struct {
	Base
	Range   string `json:"range"`
	Gateway string `json:"gateway"`
}

// CreateNetwork makes a segment. Its CID is the segment's name.
func (i *IaaS) CreateNetwork(kind, cidr, gateway, director string) (ManagedNetwork, error) {
	if kind != fabric.Manual {
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
			if n.Segment() == cid {
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
