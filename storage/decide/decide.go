// Package decide makes all decisions about disks: it compares the observed disks, mounts and records with the desired
// state and returns changes, which can be printed before they are made. It is pure: it reads no device, file or clock.
// Packages ephemeral, persistent and migration observe, call it, and make the changes.
package decide

import (
	"fmt"

	"cambium/platform/disk/layout"
	"cambium/platform/filesystem/probe"
)

// Op is the kind of a change.
type Op string

// The kinds of changes, in the order in which they are made to one disk.
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
	// Await appears only in plans: the disk has not appeared yet, and further changes depend on its content.
	Await Op = "await"
	// Reject appears only in plans: the disk is refused, or left as it is.
	Reject Op = "reject"
)

// Change is a change to a disk. `agent plan` prints it; a boot or an action makes it and reports it.
type Change struct {
	Op     Op     `json:"op"`
	Device string `json:"device"`
	// Proof is the reason why the change is safe or necessary.
	Proof       string `json:"proof"`
	What        string `json:"what"`
	Destructive bool   `json:"destructive,omitempty"`

	// Parameters of the change. Op determines which are used.
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

// Runs returns false: a change to a disk starts no program or service.
func (Change) Runs() bool { return false }

func (c Change) String() string { return fmt.Sprintf("%s: %s: %s", c.Device, c.Proof, c.What) }

// Plan lists the changes to one disk.
type Plan struct {
	Changes []Change
	// Begin, unless empty, is recorded as unfinished before the first change. A new partition table is recorded under
	// its own identifier, too.
	Begin string
	// Finish removes that record after all changes, before the disk is used. If it is not set, nothing is recorded.
	Finish bool
	// SizeCheck names the partition that should fill its disk afterwards.
	SizeCheck SizeCheck
	// RepairAll lets e2fsck repair errors that need an operator's consent: a VM does not start without its ephemeral
	// disk, and a Director would replace both.
	RepairAll bool
	// Asked is set if an operator requested the changes. The request ends once they are made.
	Asked bool
	// NotGrown is the reason why a partition remains smaller than its disk.
	NotGrown string

	// The fields below are for persistent disks. The disk is unmounted from Leave, unless that is empty, and then
	// mounted on Directory.
	Leave, Directory string
	// MakeWritable is set if an interrupted migration has left the store read-only.
	MakeWritable bool
	Placed       Placed
	// Stale lists the other disks whose hints wrongly lead to this device.
	Stale []string
}

// Placed lists what to record once a persistent disk is mounted at its destination.
type Placed struct {
	CID string
	// Store is set if the disk becomes the store. The target of a migration must never be mounted as the store after a
	// reboot.
	Store bool
}

func (p *Plan) add(c Change) { p.Changes = append(p.Changes, c) }

// Volume is a partition, or a whole device with a file system, as observed.
type Volume struct {
	// Content was read from the device. For a mounted volume it has only the kind of file system that the kernel
	// reports.
	Content probe.Content
	// Residue describes data found on a volume that shows no signature, where the volume was surveyed.
	Residue probe.Residue
	// MountedOn is the mount point of the whole file system, or "".
	MountedOn string
	// InUse is set if any part of the volume is mounted.
	InUse bool
	// ActiveSwap is set if the volume is in use as swap.
	ActiveSwap bool
	// Growable is set if the mounted file system is smaller than its device.
	Growable bool
	// HalfGrown is set if growing the file system was interrupted by a power cut. A mount completes it.
	HalfGrown bool
}

// use mounts a file system of ours. If it has recorded errors and is not mounted, it is checked first; if it is smaller
// than its device, it is grown afterwards.
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

// growFileSystem grows a managed file system. The options are for kinds that must be unmounted for that and mounted
// again.
func (p *Plan) growFileSystem(device string, kind probe.Kind, target string, options []string) {
	if kind.Managed() {
		p.add(
			Change{
				Op:           GrowFileSystem,
				Device:       device,
				Proof:        "smaller than its device",
				What:         fmt.Sprintf("grow %s", kind),
				FileSystem:   kind,
				Target:       target,
				MountOptions: options,
			},
		)
	}
}

func (p *Plan) repair(s layout.State) {
	if s.Table.Lost != "" {
		p.add(Change{Op: RepairTable, Device: s.Path, Proof: fmt.Sprintf("the %s of its table is lost", s.Table.Lost),
			What: "rewrite the table"})
	}
}

// found describes a disk's content for a proof.
func found(s layout.State, serial string) string {
	text := s.Content.String()
	if s.Table.Label != layout.None {
		text = fmt.Sprintf("%s table with %d partitions", s.Table.Label, len(s.Table.Partitions))
	}
	text += ", " + size(s.Bytes)
	if serial != "" {
		text += ", serial " + serial // tells disks of one size apart
	}
	return text
}

// size formats a number of bytes for people.
func size(bytes int64) string {
	if bytes >= 1<<30 {
		return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30))
	}
	return fmt.Sprintf("%.1f MiB", float64(bytes)/layout.MiB)
}
