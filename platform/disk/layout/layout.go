// Package layout describes how a disk is partitioned: labels, partition tables, partitions and their paths, and the
// observed state of a disk. It contains only values; package disk reads and writes them.
package layout

import (
	"errors"

	"cambium/platform/filesystem/probe"
)

// MiB is the alignment of partitions.
const MiB = 1 << 20

// ErrDamaged is returned for a table, or the remains of one, that cannot be trusted. Such a disk is neither blank nor
// ours.
var ErrDamaged = errors.New("damaged partition table")

// Table is a partition table. Offsets and sizes are in bytes.
type Table struct {
	Label      Label
	GUID       string
	Partitions []Partition // by number
	// Lost is the part of a GPT that is missing or damaged, or "".
	Lost Part
	// Moved is set if the disk is larger than the GPT says, so that the second copy is not at its end.
	Moved bool
	// Fixed is the reason why the table cannot be rewritten, or "".
	Fixed string
}

// Part names a part of a GPT.
type Part string

// Parts of a GPT. The kernel ignores a GPT without the protective entry in the first sector.
const (
	ProtectiveEntry Part = "protective entry"
	FirstCopy       Part = "first copy"
	SecondCopy      Part = "second copy"
)

// Partition is an entry of a table.
type Partition struct {
	Number int
	Start  int64
	Size   int64
	// Name can be stored in a DOS table only if there is no other partition; see NamedMBR.
	Name string
	Type string // a GUID for GPT, two hexadecimal digits for MBR
	GUID string // GPT only
	// Attributes of a GPT entry are kept when the table is rewritten.
	Attributes uint64
}

// End returns the offset after the last byte of the partition.
func (p Partition) End() int64 { return p.Start + p.Size }

// State describes a disk as observed.
type State struct {
	Path   string
	Bytes  int64
	Sector int
	// Content describes the whole disk if it has no table.
	Content probe.Content
	Table   Table
	// Trailer is the kind of metadata at the end of a disk with a table, over which a partition must not be grown.
	Trailer probe.Kind
}

// Partition returns the entry with number n, if any.
func (t Table) Partition(n int) (Partition, bool) {
	for _, p := range t.Partitions {
		if p.Number == n {
			return p, true
		}
	}
	return Partition{}, false
}
