package layout

import "strings"

// Label is the type of a partition table.
type Label string

// Supported labels. Each has a row in tableTypes.
const (
	None Label = ""
	GPT  Label = "gpt"
	MBR  Label = "dos"
)

// Partition types. In a GPT, swap and data have the same one, as with cloudfoundry/bosh-agent.
const (
	LinuxGPT = "0FC63DAF-8483-4772-8E79-3D69D8477DE4"
	LinuxMBR = "83"
	SwapMBR  = "82"
	NamedMBR = "da" // on the disk; read as LinuxMBR with a name
	swapGPT  = "0657FD6D-A4AB-43C4-84E5-0933C84B4F4F"
)

// mbrLimit is the first byte that a DOS table with 512-byte sectors cannot address.
const mbrLimit = 2 << 40

// GPTEntrySize is the size of a GPT entry, and gptEntries their usual number.
const (
	GPTEntrySize = 128
	gptEntries   = 128
)

// tableType holds the properties of a label. Package disk reads and writes such tables.
type tableType struct {
	// named is set if partitions have names.
	named              bool
	dataType, swapType string
	// slots is the number of partitions without an extended one.
	slots int
	// entries is the size of the second copy of the entries, which is followed by the last sector; 0 if there is none.
	entries int64
	// sectors is the number of addressable sectors; 0 means no limit.
	sectors int64
}

// tableTypes lists the supported tables. A new one needs a row here and one in formats of package disk.
var tableTypes = map[Label]tableType{
	GPT: {named: true, dataType: LinuxGPT, swapType: LinuxGPT, slots: gptEntries, entries: gptEntries * GPTEntrySize},
	MBR: {dataType: LinuxMBR, swapType: SwapMBR, slots: 4, sectors: mbrLimit / 512},
}

// Named reports whether partitions have names.
func (l Label) Named() bool { return tableTypes[l].named }

// DataType returns the partition type for data.
func (l Label) DataType() string { return tableTypes[l].dataType }

// SwapType returns the partition type for swap.
func (l Label) SwapType() string { return tableTypes[l].swapType }

// HoldsData reports whether partitions of this type are for swap or data.
func (l Label) HoldsData(kind string) bool {
	return kind == "" || strings.EqualFold(kind, l.DataType()) || strings.EqualFold(kind, l.SwapType()) ||
		l == GPT && strings.EqualFold(kind, swapGPT)
}

// Slots returns the maximum number of partitions in a table.
func (l Label) Slots() int { return tableTypes[l].slots }

// CanAddress reports whether a partition may end at this byte.
func (l Label) CanAddress(end int64, sector int) bool {
	most := tableTypes[l].sectors
	return most == 0 || end/int64(sector) <= most
}

// UsableEnd returns the offset after the last byte that a partition may use.
func UsableEnd(label Label, size int64, sector int) int64 {
	end, unit := size/int64(sector), int64(sector)
	if entries := tableTypes[label].entries; entries > 0 {
		end -= (entries+unit-1)/unit + 1
	}
	return end * unit
}
