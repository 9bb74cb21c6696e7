// Package decide is the pure core of storage: from what was observed about disks, mounts and records it decides what to
// do, as values that can be printed before they are done. It reads no device, no file and no clock. Packages
// ephemeral, persistent and migration observe, ask here, and act.
package decide

import (
	"fmt"
	"strings"

	"cambium/platform/disk/layout"
	"cambium/platform/filesystem/probe"
)

// Op is the kind of a change.
type Op string

// The changes, in the order in which they are made to one disk.
const (
	CreateTable      Op = "create-table"
	AppendPartitions Op = "append-partitions"
	RepairTable      Op = "repair-table"
	MakeSwap         Op = "make-swap"
	MakeFileSystem   Op = "make-file-system"
	NamePartition    Op = "name-partition"
	GrowPartition    Op = "grow-partition"
	UseSwap          Op = "use-swap"
	CheckFileSystem  Op = "check-file-system"
	Mount            Op = "mount"
	GrowFileSystem   Op = "grow-file-system"
	BindMount        Op = "bind-mount"
	Link             Op = "link"
	// Await is only planned: the disk is not there yet, and what follows depends on what it holds.
	Await Op = "await"
	// Reject is only planned: the disk is refused, or stays as it is.
	Reject Op = "reject"
)

// Change is one change to a disk: what `agent plan` prints, what is done, and what is reported as done.
type Change struct {
	Op     Op     `json:"op"`
	Device string `json:"device"`
	// Proof says why the change may or must be made.
	Proof       string `json:"proof"`
	What        string `json:"what"`
	Destructive bool   `json:"destructive,omitempty"`

	// What doing it takes, according to Op.
	Label        layout.Label       `json:"-"`
	Partitions   []layout.Partition `json:"-"`
	Partition    int                `json:"-"`
	Name         string             `json:"-"`
	End          int64              `json:"-"`
	FileSystem   probe.Kind         `json:"-"`
	Target       string             `json:"-"`
	MountOptions []string           `json:"-"`
	RepairAll    bool               `json:"-"`
}

// Runs is false: no program or service is started.
func (Change) Runs() bool { return false }

func (c Change) String() string { return fmt.Sprintf("%s: %s: %s", c.Device, c.Proof, c.What) }

// Plan describes all work on one disk.
type Plan struct {
	Changes []Change
	// Begin, unless empty, is put on record as unfinished before the first change. A new table gets an identifier of
	// its own, which is put on record as well.
	Begin string
	// Finish ends that record when everything is made, before the disk is used. Without it nothing is put on record.
	Finish bool
	// Fills names the partition that should fill its disk afterwards.
	Fills Fills
	// RepairAll also repairs the errors about which e2fsck would ask an operator: a VM does not start without its
	// ephemeral disk, and a Director would replace both.
	RepairAll bool
	// Asked is set when an operator has asked for it: the request is answered when everything is made.
	Asked bool
	// NotGrown says why a partition stays smaller than its disk.
	NotGrown string

	// The fields below are for persistent disks. The disk is first unmounted from Leave, unless empty, and then mounted
	// on Directory.
	Leave, Directory string
	// MakeWritable ends the read-only phase of an interrupted migration.
	MakeWritable bool
	Placed       Placed
	// Stale are the other disks whose hint leads to the device, which is not theirs.
	Stale []string
}

// Placed says what to put on record once a persistent disk is mounted at its destination.
type Placed struct {
	CID string
	// Store is set when the disk is the store now. One that is only the target of a migration must never come back as
	// the store after a reboot.
	Store bool
}

func (p *Plan) add(c Change) { p.Changes = append(p.Changes, c) }

// Volume is a partition, or a whole device that carries a file system, as it was found.
type Volume struct {
	// Content has only a kind, which the kernel reports, while the volume is mounted: the device is not read then.
	Content probe.Content
	// Residue describes data found on a volume that shows no signature, where the volume was surveyed.
	Residue probe.Residue
	// MountedOn is the mount point of the file system as a whole; empty if there is none.
	MountedOn string
	// InUse is set when at least a part of it is mounted.
	InUse bool
	// ActiveSwap is set when it is in use as swap.
	ActiveSwap bool
	// Growable is set when the mounted file system is smaller than its device.
	Growable bool
	// HalfGrown is set when the power was cut while the file system was grown, which a mount completes.
	HalfGrown bool
}

// use mounts a file system that is ours: checked first when it has recorded errors, grown afterwards when its
// device is larger than itself. One that is mounted is in use: it is not checked.
func (p *Plan) use(device string, v Volume, size int64, target string, options []string) {
	if v.Content.Errors && v.MountedOn == "" {
		p.add(Change{Op: CheckFileSystem, Device: device, Proof: "errors are on record",
			What: fmt.Sprintf("check %s", v.Content.Kind), FileSystem: v.Content.Kind, RepairAll: p.RepairAll})
	}
	if v.MountedOn != target {
		p.add(Change{Op: Mount, Device: device, Proof: string(v.Content.Kind), What: "mount on " + target,
			FileSystem: v.Content.Kind, Target: target, MountOptions: options})
	}
	if v.Growable || v.HalfGrown || probe.WorthGrowing(v.Content.Bytes, size) {
		p.growFileSystem(device, v.Content.Kind, target, options)
	}
}

// growFileSystem extends a file system of the managed kinds. The mount options are for where it has to be taken off for that.
func (p *Plan) growFileSystem(device string, kind probe.Kind, target string, options []string) {
	if kind.Managed() {
		p.add(Change{Op: GrowFileSystem, Device: device, Proof: "smaller than its device", What: fmt.Sprintf("grow %s", kind),
			FileSystem: kind, Target: target, MountOptions: options})
	}
}

func (p *Plan) repair(s layout.State) {
	if s.Table.Lost != "" {
		p.add(Change{Op: RepairTable, Device: s.Path, Proof: fmt.Sprintf("the %s of its table is lost", s.Table.Lost),
			What: "rewrite the table"})
	}
}

// found describes for a proof what a disk carries.
func found(s layout.State, serial string) string {
	text := s.Content.String()
	if s.Table.Label != layout.None {
		text = fmt.Sprintf("%s table with %d partitions%s", s.Table.Label, len(s.Table.Partitions), beneath(s))
	}
	text += ", " + size(s.Bytes)
	if serial != "" {
		text += ", serial " + serial // tells disks of one size apart
	}
	return text
}

// beneath names older signatures of a whole disk, which do not count.
func beneath(s layout.State) string {
	if len(s.Beneath) == 0 {
		return ""
	}
	var kinds []string
	for _, k := range s.Beneath {
		kinds = append(kinds, string(k))
	}
	return fmt.Sprintf(" (an older %s under the table is ignored)", strings.Join(kinds, " and "))
}

// size writes a number of bytes for people.
func size(bytes int64) string {
	if bytes >= 1<<30 {
		return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30))
	}
	return fmt.Sprintf("%.1f MiB", float64(bytes)/layout.MiB)
}
