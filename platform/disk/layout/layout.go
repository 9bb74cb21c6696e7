// Package layout describes how a disk is divided: partition tables and their kinds, the partitions and their paths, and
// a disk as it was found. It holds values alone; package disk reads and writes them.
package layout

import (
	"errors"

	"cambium/platform/filesystem/probe"
)

// MiB is the unit partitions are aligned to.
const MiB = 1 << 20

// ErrDamaged means that there is a table, or the remains of one, that cannot be trusted. Such
// a disk is neither blank nor ours.
var ErrDamaged = errors.New("damaged partition table")

// Table is a partition table as read, in bytes.
type Table struct {
	Label      Label
	GUID       string
	Partitions []Partition // by number
	// Lost is the part of a GPT that is missing or damaged; empty if it is whole.
	Lost Part
	// Moved is set when the disk is larger than the GPT says: the second copy is not at its end.
	Moved bool
	// Fixed says why a table must not be rewritten, though it can be read.
	Fixed string
}

// Part is a part of a GPT.
type Part string

// The parts. The kernel does not believe a GPT without its protective entry in the first sector.
const (
	ProtectiveEntry Part = "protective entry"
	FirstCopy       Part = "first copy"
	SecondCopy      Part = "second copy"
)

// Partition is one entry of a table.
type Partition struct {
	Number int
	Start  int64
	Size   int64
	// Name is kept in a DOS table only if the partition is the single one: see NamedMBR.
	Name string
	Type string // GUID in GPT, two hexadecimal digits in MBR
	GUID string // GPT only
}

// End is the first byte after the partition.
func (p Partition) End() int64 { return p.Start + p.Size }

// State is a disk as it was found.
type State struct {
	Path   string
	Bytes  int64
	Sector int
	// Content describes the disk as a whole: a table, a file system, or nothing.
	Content probe.Content
	Table   Table
	// Trailer is the kind of metadata at the end of a disk that carries a table; a partition must not be grown over it.
	Trailer probe.Kind
	// Beneath are older signatures of the whole disk, which its table outlived: sfdisk does not wipe them. They do not
	// count. They are looked for beneath a DOS table only; a GPT leaves them no room.
	Beneath []probe.Kind
}

// Partition returns the entry with number n.
func (t Table) Partition(n int) (Partition, bool) {
	for _, p := range t.Partitions {
		if p.Number == n {
			return p, true
		}
	}
	return Partition{}, false
}
