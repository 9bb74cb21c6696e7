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

// FormatEphemeral is the name of the ephemeral disk for 'agent disk format'. Raw disks are named by their paths.
const FormatEphemeral = "ephemeral"

// NoEphemeral begins an error message for which operators and test suites search.
const NoEphemeral = "No ephemeral disk found"

// EphemeralConfig combines the configuration of the ephemeral disk in settings and agent.json.
type EphemeralConfig struct {
	Named bool // the CPI named a disk
	// Missing is set if that disk did not appear.
	Missing bool
	// CreateOnRoot is the option CreatePartitionIfNoEphemeralDisk.
	CreateOnRoot bool
	// FallBack is set if MissingEphemeralDisk is "root".
	FallBack bool
}

const giveDisk = "give the VM an ephemeral disk (vm_types[].cloud_properties of the cloud config)"

// errNoneNamed is the error of a boot without an ephemeral disk.
var errNoneNamed = advice.With(giveDisk+", or set CreatePartitionIfNoEphemeralDisk in agent.json",
	//lint:ignore ST1005 log searches look for these words
	errors.New(NoEphemeral+": the CPI named none, and CreatePartitionIfNoEphemeralDisk is off"))

// NoRootDisk returns the error for a machine that needs its root disk for ephemeral data and has none, such as a
// container.
func NoRootDisk(cause error) error {
	return advice.With(giveDisk, fmt.Errorf("%s: none named, and the root disk cannot be used: %w", NoEphemeral, cause))
}

// UseRootDisk reports whether the ephemeral data goes to the root disk. If a named disk is missing, that needs the
// stemcell's consent (FallBack).
func UseRootDisk(w EphemeralConfig) (bool, error) {
	switch {
	case !w.Named && !w.CreateOnRoot:
		return false, errNoneNamed
	case !w.Named:
		return true, nil
	}
	return w.Missing && w.CreateOnRoot && w.FallBack, nil
}

// Ephemeral describes the disk for the ephemeral data as observed, and the desired layout.
type Ephemeral struct {
	Disk layout.State
	// Replaced describes the rest of the disk's content. It is set unless the layout is Proven.
	Replaced Replaced
	// Pending is set if an unfinished preparation of exactly these partitions is on record.
	Pending bool
	// Volumes holds the partitions of the ExistingLayout, by number.
	Volumes map[int]Volume

	Label   layout.Label // of a new table
	AgentID string
	RAM     int64
	SwapMiB *uint64
	Target  string // where the data is mounted
	// Root is the number of the root partition if the data goes after it, otherwise 0.
	Root int
}

// SetupEphemeral plans the changes for the ephemeral data, on its own disk or after the root partition.
func SetupEphemeral(o Ephemeral) (Plan, error) {
	if o.Root > 0 {
		return appendEphemeral(o)
	}
	return partitionEphemeral(o)
}

// ExistingLayout returns the layout for ephemeral data that the disk may already have. Its partitions have to be
// observed before SetupEphemeral.
func (o Ephemeral) ExistingLayout() (Layout, bool) {
	if o.Root > 0 {
		return Layout{Partitions: partitionsAfterRoot(o.Disk.Table, o.Root)}, true
	}
	return keptEphemeral(o.Disk, o.AgentID, o.Label)
}

// Unfinished reports whether the record has an unfinished preparation of exactly the existing partitions.
func (o Ephemeral) Unfinished(r record.Record) bool {
	if o.Root > 0 {
		return pendingOnRoot(o.Disk.Table, r.Unfinished)
	}
	return r.Pending(o.Disk.Table.GUID)
}

// partitionEphemeral plans the changes to a disk for ephemeral data only.
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

// Proven reports whether the layout is known to be this agent's: its partitions have the names, are recorded as
// unfinished, or are in use. Partitions after the root partition are examined separately.
func (o Ephemeral) Proven(l Layout) bool {
	return o.Root > 0 || l.Label.Named() || o.Pending || o.Volumes[l.Data].InUse
}

// appendEphemeral plans the changes to the space after the root partition.
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

// fill formats unformatted partitions, enables swap and mounts the data. If fresh is set, the partitions contain
// nothing but the remains of an unfinished preparation.
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
		p.add(
			Change{
				Op:          MakeSwap,
				Device:      swapPart,
				Proof:       proof(swap),
				What:        "make swap",
				Destructive: !fresh && !swap.Content.Blank(),
			},
		)
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
	p.SizeCheck = SizeCheck{Disk: o.Disk.Path, Partition: l.Data, Directory: o.Target}
	p.RepairAll = true
	p.use(dataPart, data, size, o.Target, nil)
}

// places identifies appended partitions by number, start and size. The table's own identifier is older than they are.
func places(parts []layout.Partition) string {
	var b strings.Builder
	for _, p := range parts {
		fmt.Fprintf(&b, "%d:%d+%d ", p.Number, p.Start, p.Size)
	}
	return strings.TrimSpace(b.String())
}

// pendingOnRoot reports whether the last partitions of a table are those recorded as unfinished.
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

// PartitionRaw plans a single named partition without a file system on a raw ephemeral disk.
func PartitionRaw(o Raw) (Plan, error) {
	var p Plan
	if IsRawDisk(o.Disk.Table) && !o.Replaced.formatted() {
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
