package decide

import (
	"fmt"

	"cambium/platform/disk/layout"
)

// growSlack is the minimum free space after a partition for which it is grown. Older agents left room at the end of a
// disk.
const growSlack = 100 * layout.MiB

// growTo returns the largest possible end of partition n, or 0 if it cannot grow by at least 1 MiB. obstacle is what
// prevents it from growing, or "".
func growTo(s layout.State, n int) (end int64, obstacle string) {
	p, ok := s.Table.Partition(n)
	if !ok {
		return 0, "not in the table"
	}
	limit := layout.UsableEnd(s.Table.Label, s.Bytes, s.Sector) / layout.MiB * layout.MiB
	for _, other := range s.Table.Partitions {
		if other.Start > p.Start {
			limit = min(limit, other.Start)
		}
	}
	switch {
	case limit-p.End() < layout.MiB:
		return 0, ""
	case !s.Table.Label.CanAddress(limit, s.Sector):
		return 0, "it would cross 2 TiB, which a DOS partition table cannot address"
	case s.Trailer != "":
		return 0, fmt.Sprintf("its end contains the metadata of a %s", s.Trailer)
	case s.Table.Fixed != "":
		return 0, s.Table.Fixed
	}
	return limit, ""
}

// growPartition grows the only partition of a disk, unless it would gain less than slack. It returns what prevents
// that.
func (p *Plan) growPartition(s layout.State, slack int64) (obstacle string) {
	part := s.Table.Partitions[0]
	end, obstacle := growTo(s, part.Number)
	if obstacle == "" && end-part.End() >= slack {
		p.add(growChange(s.Path, part.Number, end))
	}
	return obstacle
}

func growChange(path string, n int, end int64) Change {
	return Change{Op: GrowPartition, Device: path, Proof: "the disk is larger than its partition",
		What: fmt.Sprintf("grow partition %d to end at %s", n, size(end)), Partition: n, End: end}
}

// GrowMounted plans to grow a mounted persistent disk to the size of its device.
func GrowMounted(o Persistent, target string) (p Plan) {
	p.SizeCheck = o.sizeCheck(target)
	if !o.Preformatted {
		if len(o.Disk.Table.Partitions) != 1 {
			return p
		}
		p.repair(o.Disk)
		p.NotGrown = p.growPartition(o.Disk, growSlack)
	}
	if p.has(GrowPartition) || o.Volume.Growable {
		p.growFileSystem(o.Part(), o.Volume.Content.Kind, target, o.MountOptions)
	}
	return p
}

// RootGrowth reports whether the root partition may be grown. It must not be if the space after it is reserved for
// ephemeral data.
func RootGrowth(skipDiskSetup, createOnRoot, ephemeralNamed bool) bool {
	return !skipDiskSetup && (!createOnRoot || ephemeralNamed)
}

// Root describes the root disk as observed.
type Root struct {
	Disk      layout.State
	Partition int
	Volume    Volume
}

// GrowRoot plans to grow the root partition and its file system to the end of the disk.
func GrowRoot(o Root) Plan {
	p := Plan{SizeCheck: SizeCheck{Disk: o.Disk.Path, Partition: o.Partition, Directory: o.Volume.MountedOn}}
	if end, _ := growTo(o.Disk, o.Partition); end > 0 {
		p.add(growChange(o.Disk.Path, o.Partition, end))
	}
	if p.has(GrowPartition) || o.Volume.Growable {
		p.growFileSystem(layout.PartitionPath(o.Disk.Path, o.Partition), o.Volume.Content.Kind, o.Volume.MountedOn, nil)
	}
	return p
}
