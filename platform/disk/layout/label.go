package layout

import "strings"

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
	NamedMBR = "da" // on the disk; Table has LinuxMBR and the name
	swapGPT  = "0657FD6D-A4AB-43C4-84E5-0933C84B4F4F"
)

// mbrLimit is the first byte that a DOS table with 512-byte sectors cannot address.
const mbrLimit = 2 << 40

// GPTEntrySize is the length of an entry of a GPT, and gptEntries how many every tool makes room for.
const (
	GPTEntrySize = 128
	gptEntries   = 128
)

// tableType holds the properties of one kind of partition table. Package disk reads and writes it.
type tableType struct {
	// named says that partitions have names.
	named              bool
	dataType, swapType string
	// slots is the number of partitions that fit without an extended one.
	slots int
	// entries is the length of the second copy of the entries, which the last sector follows; 0 where there is none.
	entries int64
	// sectors is the number of sectors that can be addressed; 0 is any number.
	sectors int64
}

// tableTypes are the kinds of partition tables. A new one is a row here, and one of formats in package disk.
var tableTypes = map[Label]tableType{
	GPT: {named: true, dataType: LinuxGPT, swapType: LinuxGPT, slots: gptEntries, entries: gptEntries * GPTEntrySize},
	MBR: {dataType: LinuxMBR, swapType: SwapMBR, slots: 4, sectors: mbrLimit / 512},
}

// Named says whether partitions have names.
func (l Label) Named() bool { return tableTypes[l].named }

// DataType is the type of a partition for data.
func (l Label) DataType() string { return tableTypes[l].dataType }

// SwapType is the type of a partition for swap.
func (l Label) SwapType() string { return tableTypes[l].swapType }

// HoldsData says whether partitions of this type are for swap or data.
func (l Label) HoldsData(kind string) bool {
	return kind == "" || strings.EqualFold(kind, l.DataType()) || strings.EqualFold(kind, l.SwapType()) ||
		l == GPT && strings.EqualFold(kind, swapGPT)
}

// Slots returns the largest number of partitions that a table can have.
func (l Label) Slots() int { return tableTypes[l].slots }

// Addresses says whether a partition may end at this byte.
func (l Label) Addresses(end int64, sector int) bool {
	most := tableTypes[l].sectors
	return most == 0 || end/int64(sector) <= most
}

// Usable is the first byte after the last one that a partition may have.
func Usable(label Label, size int64, sector int) int64 {
	end, unit := size/int64(sector), int64(sector)
	if entries := tableTypes[label].entries; entries > 0 {
		end -= (entries+unit-1)/unit + 1
	}
	return end * unit
}
