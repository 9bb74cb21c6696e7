package decide

import (
	"fmt"

	"cambium/platform/disk/layout"
)

// Fills names a mounted file system that should be as large as its disk.
type Fills struct {
	Disk      string
	Partition int    // 0 where the file system has no partition
	Directory string // where it is mounted; empty if nothing is to be compared
}

// Device returns the path of the device that carries the file system.
func (f Fills) Device() string {
	if f.Partition == 0 {
		return f.Disk
	}
	return layout.PartitionPath(f.Disk, f.Partition)
}

// fills returns what is compared with its disk when a persistent disk is mounted on target.
func (o Persistent) fills(target string) Fills {
	f := Fills{Disk: o.Disk.Path, Partition: 1, Directory: target}
	if o.Preformatted {
		f.Partition = 0
	}
	return f
}

// Filled describes a mounted file system and its disk after both were grown as far as possible.
type Filled struct {
	Disk      layout.State
	Partition int // 0 where the file system has no partition
	// FileSystem and Device are the lengths of the file system, 0 if it is not known, and of its device.
	FileSystem, Device int64
	// Failed is the error of growing one of them.
	Failed error
	// Persistent is set for a persistent disk, to which another one is the remedy.
	Persistent bool
}

// Shortfall says how much of its disk a file system uses, why it does not use the rest, and what to do; empty if it uses
// the disk.
func Shortfall(o Filled) string {
	used, disk, reason := o.Device, o.Device, ""
	if o.Partition > 0 {
		disk = o.Disk.Bytes
		reason = partitionShortfall(o)
	}
	if o.FileSystem > 0 && o.Device-o.FileSystem >= growSlack {
		used, reason = o.FileSystem, "the kernel did not grow the file system"
		if o.Failed != nil {
			reason = o.Failed.Error()
		}
	}
	if reason == "" {
		return ""
	}
	remedy := "recreate the VM, or restart the agent to retry"
	if o.Persistent {
		remedy = "attach a new disk and migrate to it, or repeat mount_disk to retry"
	}
	return fmt.Sprintf("%s of %s are used: %s: %s", size(used), size(disk), reason, remedy)
}

// partitionShortfall says why a partition is smaller than its disk; empty if it is not.
func partitionShortfall(o Filled) string {
	p, ok := o.Disk.Table.Partition(o.Partition)
	if !ok {
		return ""
	}
	end, obstacle := growTo(o.Disk, o.Partition)
	last := p
	for _, other := range o.Disk.Table.Partitions {
		if other.End() > last.End() {
			last = other
		}
	}
	switch {
	case obstacle != "":
		return "the partition cannot be grown: " + obstacle
	case end-p.End() >= growSlack && o.Failed != nil:
		return o.Failed.Error()
	case end-p.End() >= growSlack:
		return "the agent does not grow this partition"
	case last.Number != p.Number && layout.Usable(o.Disk.Table.Label, o.Disk.Bytes, o.Disk.Sector)-last.End() >= growSlack:
		return fmt.Sprintf("the partition cannot be grown: partition %d follows it", last.Number)
	}
	return ""
}
