package iaas

import (
	"slices"
	"time"

	"cambium/lab/iaas/value"
)

// Listing describes the objects of an IaaS, without secrets.
type Listing struct {
	Name      string            `json:"name"`
	Namespace string            `json:"network_namespace"` // path of its file
	Stemcells []StemcellListing `json:"stemcells"`
	VMs       []VMListing       `json:"vms"`
	Disks     []DiskListing     `json:"disks"`
	Snapshots []SnapshotListing `json:"snapshots"`
	Networks  []NetworkListing  `json:"networks"`
}

// Common has the fields that the listings of all objects share.
type Common struct {
	CID      string            `json:"cid"`
	Created  time.Time         `json:"created"`
	Director string            `json:"director_uuid,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

// StemcellListing is a stemcell in a listing.
type StemcellListing struct {
	Common
	Image string `json:"image"`
}

// VMListing is a VM in a listing.
type VMListing struct {
	Common
	AgentID string   `json:"agent_id"`
	Engine  string   `json:"engine"`
	Running bool     `json:"running"`
	IPs     []string `json:"ips"`
	Disks   []string `json:"disks"`
	Console string   `json:"console"`
	Shell   []string `json:"shell,omitempty"`
}

// DiskListing is a disk in a listing.
type DiskListing struct {
	Common
	Size int    `json:"size"` // MiB
	VM   string `json:"vm,omitempty"`
}

// SnapshotListing is a snapshot in a listing.
type SnapshotListing struct {
	Common
	Disk string `json:"disk"`
	Size int    `json:"size"` // MiB
}

// NetworkListing is a managed network in a listing.
type NetworkListing struct {
	Common
	Range   string `json:"range"`
	Gateway string `json:"gateway"`
}

func (b Base) common() Common {
	return Common{b.CID.String(), b.Created, b.Director.String(), b.Metadata}
}

// List returns all objects in the order of their creation.
func (i *IaaS) List() Listing {
	l := Listing{Name: i.name, Namespace: i.Net.Path(), Stemcells: []StemcellListing{}, VMs: []VMListing{},
		Disks: []DiskListing{}, Snapshots: []SnapshotListing{}, Networks: []NetworkListing{}}
	i.mu.Lock()
	for _, s := range i.stemcells {
		l.Stemcells = append(l.Stemcells, StemcellListing{s.common(), s.Image.String()})
	}
	for _, d := range i.disks {
		l.Disks = append(l.Disks, DiskListing{d.common(), int(d.Size), d.VM.String()})
	}
	for _, s := range i.snapshots {
		l.Snapshots = append(l.Snapshots, SnapshotListing{s.common(), s.Disk.String(), int(s.Size)})
	}
	for _, n := range i.networks {
		l.Networks = append(l.Networks, NetworkListing{n.common(), n.Range.String(), n.Gateway.String()})
	}
	for _, vm := range i.vms {
		l.VMs = append(l.VMs, i.listVM(vm))
	}
	i.mu.Unlock()
	slices.SortFunc(l.Stemcells, func(a, b StemcellListing) int { return a.Created.Compare(b.Created) })
	slices.SortFunc(l.VMs, func(a, b VMListing) int { return a.Created.Compare(b.Created) })
	slices.SortFunc(l.Disks, func(a, b DiskListing) int { return a.Created.Compare(b.Created) })
	slices.SortFunc(l.Snapshots, func(a, b SnapshotListing) int { return a.Created.Compare(b.Created) })
	slices.SortFunc(l.Networks, func(a, b NetworkListing) int { return a.Created.Compare(b.Created) })
	return l
}

// listVM describes a VM. The caller holds mu.
func (i *IaaS) listVM(vm *VM) VMListing {
	l := VMListing{Common: vm.common(), AgentID: vm.AgentID.String(), Engine: vm.Shape.Engine,
		IPs: []string{}, Disks: []string{}}
	for _, n := range vm.Networks {
		if n.IP != (value.Addr{}) {
			l.IPs = append(l.IPs, n.IP.String())
		}
	}
	slices.Sort(l.IPs)
	for cid, d := range i.disks {
		if d.VM == vm.CID {
			l.Disks = append(l.Disks, cid.String())
		}
	}
	slices.Sort(l.Disks)
	if m := i.machines[vm.CID]; m != nil {
		l.Console = m.Console()
		running := m.Running()
		// A VM of a stemcell has no program in it that could be asked for a shell.
		if running && vm.Shape.Engine == Container {
			l.Shell, _ = m.Shell()
		}
		// A VM is listed as off only if it would also be off after a crash of the holder.
		l.Running = running || m.PoweredOff() && i.endUnrecorded(vm.CID)
	}
	return l
}

// endUnrecorded reports whether a VM's machine has ended by itself and its record does not show that yet. The caller
// holds mu.
func (i *IaaS) endUnrecorded(cid CID) bool {
	select {
	case <-i.followed[cid]:
		return true
	default:
		return false
	}
}
