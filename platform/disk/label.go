package disk

import (
	"io"
	"math"
	"os"
	"strings"

	"github.com/diskfs/go-diskfs/partition/gpt"
	"github.com/google/uuid"

	"cambium/platform/filesystem"
)

// Label is the kind of a partition table.
type Label string

// The labels that can be read and written. Each has a row in tableTypes.
const (
	None Label = ""
	GPT  Label = "gpt"
	MBR  Label = "dos"
)

// Types of partitions. In a GPT swap and data share one, as cloudfoundry/bosh-agent makes them.
const (
	LinuxGPT = "0FC63DAF-8483-4772-8E79-3D69D8477DE4"
	LinuxMBR = "83"
	SwapMBR  = "82"
	swapGPT  = "0657FD6D-A4AB-43C4-84E5-0933C84B4F4F"
)

// mbrLimit is the first byte that a DOS table with 512-byte sectors cannot address.
const mbrLimit = 2 << 40

const gptEntries = 128

// tableType is everything that is specific to one kind of partition table.
type tableType struct {
	label Label
	// detect looks at the first two sectors.
	detect func(head []byte, sector int) bool
	// remains is what a disk holds of which only the second copy of such a table is left.
	remains filesystem.Kind
	read    func(r io.ReaderAt, size int64, sector int) (Table, error)
	write   func(t Table, f *os.File, size int64, sector int) error
	newID   func() string
	// named says that partitions have names.
	named              bool
	dataType, swapType string
	// slots is how many partitions fit without an extended one.
	slots int
	// tail is what the table needs at the end of the disk, in sectors.
	tail func(sector int64) int64
	// sectors is how many sectors can be addressed.
	sectors int64
}

// tableTypes are the kinds of partition tables. A new one is a row here, and its functions. The order is that of
// detection: a GPT protects itself with a DOS table.
var tableTypes = []tableType{
	{label: GPT, detect: isGPT, remains: filesystem.GPT, read: readGPT, write: Table.writeGPT,
		newID: func() string { return strings.ToUpper(uuid.NewString()) },
		named: true, dataType: LinuxGPT, swapType: LinuxGPT, slots: gptEntries,
		tail:    func(sector int64) int64 { return (gptEntries*gpt.PartitionEntrySize+sector-1)/sector + 1 },
		sectors: math.MaxInt64},
	{label: MBR, detect: isMBR, read: readMBR, write: Table.writeMBR,
		newID:    func() string { return uuid.NewString()[:8] },
		dataType: LinuxMBR, swapType: SwapMBR, slots: 4,
		tail:    func(int64) int64 { return 0 },
		sectors: mbrLimit / 512},
}

// of returns the row of a label; the row of None has no functions.
func of(l Label) tableType {
	for _, t := range tableTypes {
		if t.label == l {
			return t
		}
	}
	return tableType{tail: func(int64) int64 { return 0 }, sectors: math.MaxInt64}
}

// NewID is an identifier for a new table.
func (l Label) NewID() string { return of(l).newID() }

// Named says whether partitions have names.
func (l Label) Named() bool { return of(l).named }

// DataType is the type of a partition for data.
func (l Label) DataType() string { return of(l).dataType }

// SwapType is the type of a partition for swap.
func (l Label) SwapType() string { return of(l).swapType }

// HoldsData says whether partitions of this type are for swap or data.
func (l Label) HoldsData(kind string) bool {
	return kind == "" || strings.EqualFold(kind, l.DataType()) || strings.EqualFold(kind, l.SwapType()) || l == GPT && strings.EqualFold(kind, swapGPT)
}

// Slots is how many partitions a table can have.
func (l Label) Slots() int { return of(l).slots }

// Addresses says whether a partition may end at this byte.
func (l Label) Addresses(end int64, sector int) bool { return end/int64(sector) <= of(l).sectors }

// Usable is the first byte behind the last one that a partition may have.
func Usable(label Label, size int64, sector int) int64 {
	return (size/int64(sector) - of(label).tail(int64(sector))) * int64(sector)
}
