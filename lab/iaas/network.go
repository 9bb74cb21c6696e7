package iaas

import (
	"net/netip"
	"time"

	"cambium/lab/iaas/fabric"
	"cambium/lab/iaas/value"
)

// allocate sets the addresses of dynamic networks. The caller holds mu.
func (i *IaaS) allocate(wanted fabric.Networks) error {
	for name, n := range wanted {
		if n.Type != fabric.Dynamic {
			continue
		}
		taken := map[netip.Addr]bool{}
		for _, vm := range i.vms {
			for _, other := range vm.Networks {
				if other.Segment() == n.Segment() {
					taken[other.IP.IP()] = true
				}
			}
		}
		for _, other := range wanted {
			taken[other.IP.IP()] = true
		}
		filled, err := n.Allocate(taken)
		if err != nil {
			return Failf(CloudError, "network %s: %w", name, err)
		}
		wanted[name] = filled
	}
	return nil
}

// conflict returns an error that names a VM with one of the addresses, or with one of the ranges on another segment.
// The host has a gateway on each segment, so it would send packets for the range to only one of them. The caller holds
// mu.
func (i *IaaS) conflict(wanted fabric.Networks) error {
	for name, n := range wanted {
		for cid, vm := range i.vms {
			for _, taken := range vm.Networks {
				if err := n.Conflict(taken); err != nil {
					advice := "delete that VM first"
					if vm.Phase != Ready {
						advice = "that VM is being created or deleted: try again"
					}
					return Failf(CloudError, "network %s conflicts with %s: %w; %s, or, if no Director and no state "+
						"file names it, free it with: lab cpi-clean --iaas %s %s", name, cid, err, advice, i.name, cid)
				}
			}
		}
		for otherName, other := range wanted {
			if err := n.Conflict(other); err != nil && n.MAC != other.MAC { // a card may have several networks
				return Failf(CloudError, "network %s conflicts with network %s: %w", name, otherName, err)
			}
		}
	}
	return nil
}

// ManagedNetwork is a network that was created by CreateNetwork.
type ManagedNetwork struct {
	Base
	Range   netip.Prefix `json:"range"`
	Gateway value.Addr   `json:"gateway"`
}

// NetworkOrder specifies a network to be created.
type NetworkOrder struct {
	Type    fabric.Type  `json:"type"`
	Range   netip.Prefix `json:"range"`
	Gateway value.Addr   `json:"gateway"`
}

// CreateNetwork creates a segment. Its CID is the segment's name.
func (i *IaaS) CreateNetwork(o NetworkOrder, director value.Name) (ManagedNetwork, error) {
	if o.Type != fabric.Manual {
		return ManagedNetwork{}, Failf(NotSupported, "only manual networks are managed, not %q", o.Type)
	}
	if !o.Range.IsValid() {
		return ManagedNetwork{}, Failf(NotSupported, "the range of the network must be given")
	}
	if !o.Range.Contains(o.Gateway.IP()) {
		return ManagedNetwork{}, Failf(CloudError, "gateway %s is not in %s", o.Gateway, o.Range)
	}
	n := ManagedNetwork{Base: Base{CID: newCID(Networks), Phase: Ready, Created: time.Now(), Director: director},
		Range: o.Range.Masked(), Gateway: o.Gateway}
	if err := i.store.put(n.CID, n); err != nil {
		return ManagedNetwork{}, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.networks[n.CID] = &n
	return n, nil
}

// DeleteNetwork deletes a segment without VMs. A missing one is an error, which the caller ignores.
func (i *IaaS) DeleteNetwork(cid CID) error {
	defer i.locks.lock(cid.String())()
	i.mu.Lock()
	_, there := i.networks[cid]
	var user CID
	for name, vm := range i.vms {
		for _, n := range vm.Networks {
			if n.Segment().String() == cid.String() {
				user = name
			}
		}
	}
	i.mu.Unlock()
	if !there {
		return Networks.missing(cid.String())
	}
	if user != (CID{}) {
		return Failf(CloudError, "network %s is in use by %s", cid, user)
	}
	return i.forget(cid, func() { delete(i.networks, cid) })
}
