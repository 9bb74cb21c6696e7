package decide

import (
	"fmt"

	"cambium/platform/disk/layout"
)

// SizeCheck names a mounted file system whose size is compared with that of its disk.
type SizeCheck struct {
	Disk      string
	Partition int    // 0 where the file system has no partition
	Directory string // mount point; empty to compare nothing
}

// Device returns the path of the device with the file system.
func (f SizeCheck) Device() string {
	if f.Partition == 0 {
		return f.Disk
	}
	return layout.PartitionPath(f.Disk, f.Partition)
}

// sizeCheck returns the comparison to make after a persistent disk was mounted on target.
func (o Persistent) sizeCheck(target string) SizeCheck {
	f := SizeCheck{Disk: o.Disk.Path, Partition: 1, Directory: target}
	if o.Preformatted {
		f.Partition = 0
	}
	return f
}

// Sizes describes a mounted file system and its disk after both were grown as far as possible.
type Sizes struct {
	Disk      layout.State
	Partition int // 0 where the file system has no partition
	// FileSystem and Device are the sizes of the file system, 0 if unknown, and of its device.
	FileSystem, Device int64
	// Failed is the error of growing either.
	Failed error
	// Persistent is set for a persistent disk, which can be replaced by another one.
	Persistent bool
}

// Shortfall describes how much of its disk a file system uses, why it does not use the rest, and what to do. It returns
// "" if nothing is missing.
func Shortfall(o Sizes) string {
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

// partitionShortfall returns the reason why a partition is smaller than its disk, or "".
func partitionShortfall(o Sizes) string {
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
	case last.Number != p.Number && layout.UsableEnd(o.Disk.Table.Label, o.Disk.Bytes,
		o.Disk.Sector)-last.End() >= growSlack:
		return fmt.Sprintf("the partition cannot be grown: partition %d follows it", last.Number)
	}
	return ""
}
