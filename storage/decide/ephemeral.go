package decide

import (
	"errors"
	"fmt"
	"strings"

	"cambium/internal/advice"
	"cambium/platform/disk/layout"
	"cambium/platform/filesystem/probe"
	"cambium/storage/record"
)

// FormatEphemeral names the ephemeral disk to 'agent disk format'; a raw disk is named by its path.
const FormatEphemeral = "ephemeral"

// NoEphemeral begins the message that operators and test suites look for.
const NoEphemeral = "No ephemeral disk found"

// EphemeralConfig combines what settings and agent.json say about the ephemeral disk.
type EphemeralConfig struct {
	Named bool // by the CPI
	// Missing says that the named disk did not appear.
	Missing bool
	// CreateOnRoot is CreatePartitionIfNoEphemeralDisk.
	CreateOnRoot bool
	// FallBack is MissingEphemeralDisk: root.
	FallBack bool
}

const giveDisk = "give the VM an ephemeral disk (vm_types[].cloud_properties of the cloud config)"

// errNoneNamed is the end of a boot without an ephemeral disk.
var errNoneNamed = advice.With(giveDisk+", or set CreatePartitionIfNoEphemeralDisk in agent.json",
	//lint:ignore ST1005 log searches look for these words
	errors.New(NoEphemeral+": the CPI named none, and CreatePartitionIfNoEphemeralDisk is off"))

// NoRootDisk is the error of a VM whose data would go to a root disk that it does not have, as in a container.
func NoRootDisk(cause error) error {
	return advice.With(giveDisk, fmt.Errorf("%s: none named, and the root disk cannot be used: %w", NoEphemeral, cause))
}

// UseRootDisk reports whether the ephemeral data goes to the root disk. The absence of a named disk is not a reason for
// that, unless the stemcell says so.
func UseRootDisk(w EphemeralConfig) (bool, error) {
	switch {
	case !w.Named && !w.CreateOnRoot:
		return false, errNoneNamed
	case !w.Named:
		return true, nil
	}
	return w.Missing && w.CreateOnRoot && w.FallBack, nil
}

// Ephemeral describes the disk for the ephemeral data as observed, and the layout wanted on it.
type Ephemeral struct {
	Disk layout.State
	// Replaced describes any other content of the disk. It is filled in where the layout is not Proven.
	Replaced Replaced
	// Pending says that an unfinished preparation of exactly these partitions is on record.
	Pending bool
	// Volumes are the partitions of the layout that is Kept, by number.
	Volumes map[int]Volume

	Label   layout.Label // of a new table
	AgentID string
	RAM     int64
	SwapMiB *uint64
	Target  string // where the data is mounted
	// Root is the number of the root partition when the data goes after it, or 0.
	Root int
}

// SetupEphemeral decides what is done for the ephemeral data: on a disk of its own, or after the root partition.
func SetupEphemeral(o Ephemeral) (Plan, error) {
	if o.Root > 0 {
		return appendEphemeral(o)
	}
	return partitionEphemeral(o)
}

// Kept is the layout for the ephemeral data that the disk may have already: its Partitions have to be observed.
func (o Ephemeral) Kept() (Layout, bool) {
	if o.Root > 0 {
		return Layout{Partitions: afterRoot(o.Disk.Table, o.Root)}, true
	}
	return keptEphemeral(o.Disk, o.AgentID, o.Label)
}

// Unfinished says whether a preparation of exactly the partitions that are there is on record.
func (o Ephemeral) Unfinished(r record.Record) bool {
	if o.Root > 0 {
		return pendingOnRoot(o.Disk.Table, r.Unfinished)
	}
	return r.Pending(o.Disk.Table.GUID)
}

// partitionEphemeral decides about a disk of its own.
func partitionEphemeral(o Ephemeral) (Plan, error) {
	var p Plan
	l, kept := keptEphemeral(o.Disk, o.AgentID, o.Label)
	if kept && (o.Proven(l) && !o.Replaced.formatted() || o.Replaced.ephemeral()) {
		p.repair(o.Disk)
		p.fill(o, l, o.Pending)
		return p, nil
	}
	l, err := newEphemeral(o.Disk, o.AgentID, o.RAM, o.SwapMiB, o.Label)
	if err != nil {
		return Plan{}, err
	}
	if err := o.Replaced.refuse(o.Disk, FormatEphemeral); err != nil {
		return Plan{}, err
	}
	p.add(Change{Op: CreateTable, Device: o.Disk.Path, Proof: o.Replaced.proof(o.Disk),
		What: "create " + l.describe(l.Partitions), Destructive: true, Label: l.Label, Partitions: l.Partitions})
	o.Volumes, p.Asked = nil, o.Replaced.Asked
	p.fill(o, l, true)
	return p, nil
}

// Proven says that a layout needs no further proof that it is this agent's: it has its names, is on record as
// unfinished, or is in use. What is after the root partition is judged by itself.
func (o Ephemeral) Proven(l Layout) bool {
	return o.Root > 0 || l.Label.Named() || o.Pending || o.Volumes[l.Data].InUse
}

// appendEphemeral decides about the space after the root partition.
func appendEphemeral(o Ephemeral) (Plan, error) {
	var p Plan
	l, made, err := onRoot(o)
	if err != nil {
		return p, err
	}
	if len(made) > 0 {
		p.Begin = places(made)
		p.add(Change{Op: AppendPartitions, Device: o.Disk.Path, Proof: fmt.Sprintf("nothing after root partition %d",
			o.Root),
			What: "append " + l.describe(made), Label: l.Label, Partitions: made})
	}
	p.fill(o, l, o.Pending || len(made) > 0)
	return p, nil
}

// fill formats what is not formatted, switches swap on and mounts the data. With fresh set, whatever the partitions
// hold is left from a preparation that was not finished.
func (p *Plan) fill(o Ephemeral, l Layout, fresh bool) {
	p.Finish = fresh
	proof := func(v Volume) string {
		if fresh {
			return "new partition"
		}
		return "holds " + v.Content.String()
	}
	swap, data := o.Volumes[l.Swap], o.Volumes[l.Data]
	swapPart, dataPart := layout.PartitionPath(o.Disk.Path, l.Swap), layout.PartitionPath(o.Disk.Path, l.Data)
	if l.Swap > 0 && !swap.ActiveSwap && (fresh || swap.Content.Kind != probe.Swap) {
		p.add(Change{Op: MakeSwap, Device: swapPart, Proof: proof(swap), What: "make swap", Destructive: !fresh && !swap.Content.Blank()})
	}
	if used := data.MountedOn != "" || data.InUse; !used && (fresh || !data.Content.Data()) {
		p.add(Change{Op: MakeFileSystem, Device: dataPart, Proof: proof(data), What: "make ext4",
			FileSystem:  probe.Ext4,
			Destructive: !fresh && !data.Content.Blank()})
		data = Volume{Content: probe.Content{Kind: probe.Ext4}}
	}
	if l.Swap > 0 && !swap.ActiveSwap && (o.SwapMiB == nil || *o.SwapMiB > 0) {
		p.add(Change{Op: UseSwap, Device: swapPart, Proof: "swap", What: "enable swap"})
	}
	var size int64
	for _, part := range l.Partitions {
		if part.Number == l.Data {
			size = part.Size
		}
	}
	p.Fills = Fills{Disk: o.Disk.Path, Partition: l.Data, Directory: o.Target}
	p.RepairAll = true
	p.use(dataPart, data, size, o.Target, nil)
}

// places names appended partitions by where they are, since the table's own identifier was there before and says
// nothing about them.
func places(parts []layout.Partition) string {
	var b strings.Builder
	for _, p := range parts {
		fmt.Fprintf(&b, "%d:%d+%d ", p.Number, p.Start, p.Size)
	}
	return strings.TrimSpace(b.String())
}

// pendingOnRoot says whether the last partitions of a table are those on record.
func pendingOnRoot(t layout.Table, recorded string) bool {
	for i := range t.Partitions {
		if recorded != "" && places(t.Partitions[i:]) == recorded {
			return true
		}
	}
	return false
}

// Raw describes a raw ephemeral disk as observed.
type Raw struct {
	Disk     layout.State
	Replaced Replaced
	Index    int
	AgentID  string
}

// PartitionRaw gives a raw ephemeral disk one named partition and no file system.
func PartitionRaw(o Raw) (Plan, error) {
	var p Plan
	if KeptRaw(o.Disk.Table) && !o.Replaced.formatted() {
		p.repair(o.Disk)
		return p, nil
	}
	if err := o.Replaced.refuse(o.Disk, o.Disk.Path); err != nil {
		return p, err
	}
	if carriesEphemeral(o.Disk.Table, o.AgentID) {
		return p, fmt.Errorf("not touched: %s has the partitions of this agent's ephemeral disk: "+
			"device names may have been swapped", o.Disk.Path)
	}
	p.add(Change{Op: CreateTable, Device: o.Disk.Path, Proof: o.Replaced.proof(o.Disk), Destructive: true,
		What: "create GPT with partition " + RawName(o.Index), Label: layout.GPT, Partitions: newRaw(o.Disk, o.Index)})
	p.Asked = o.Replaced.Asked
	return p, nil
}
