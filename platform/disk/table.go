// Package disk reads and writes partition tables. It writes while it holds the lock that udev honors, and verifies the
// result by reading it back. It announces each partition to the kernel separately (BLKPG), which works on a disk in
// use. The caller must have proven that the disk may be changed.
package disk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"sort"
	"strings"

	"github.com/diskfs/go-diskfs/partition/gpt"
	"github.com/diskfs/go-diskfs/partition/mbr"
	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"cambium/internal/blkdev"
	"cambium/platform/disk/layout"
	"cambium/platform/filesystem/probe"
)

// format reads and writes one type of partition table.
type format struct {
	label layout.Label
	// detect examines the first two sectors.
	detect func(head []byte, sector int) bool
	// remains is the kind that package probe reports if only the second copy of the table exists.
	remains probe.Kind
	read    func(r io.ReaderAt, size int64, sector int) (layout.Table, error)
	write   func(t layout.Table, f *os.File, size int64, sector int) error
	newID   func() string
}

// formats lists the supported tables in the order of detection: a GPT also contains a protective DOS table.
var formats = []format{
	{label: layout.GPT, detect: isGPT, remains: probe.GPT, read: readGPT, write: writeGPT,
		newID: func() string { return strings.ToUpper(uuid.NewString()) }},
	{label: layout.MBR, detect: isMBR, read: readMBR, write: writeMBR,
		newID: func() string { return uuid.NewString()[:8] }},
}

func formatOf(l layout.Label) (format, error) {
	for _, f := range formats {
		if f.label == l {
			return f, nil
		}
	}
	return format{}, fmt.Errorf("label %q is not supported", l)
}

// NewID returns an identifier for a new table.
func NewID(l layout.Label) (string, error) {
	f, err := formatOf(l)
	if err != nil {
		return "", err
	}
	return f.newID(), nil
}

// Inspect reads the partition table of a disk or image. If there is none, it probes the content.
func Inspect(path string) (layout.State, error) {
	return inspectDisk(path, func(t layout.Table) bool { return t.Label == layout.None })
}

// inspectDisk reads the table, and probes the content if wanted returns true.
func inspectDisk(path string, wanted func(layout.Table) bool) (layout.State, error) {
	s := layout.State{Path: path}
	f, err := os.Open(path)
	if err != nil {
		return s, fmt.Errorf("read disk: %w", err)
	}
	defer f.Close()
	// The page cache of a disk is separate from those of its partitions. It may contain outdated data after a write
	// through a partition.
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	if s.Bytes, err = blkdev.Size(f); err != nil {
		return s, fmt.Errorf("read disk: %w", err)
	}
	if s.Sector, err = blkdev.SectorSize(f); err != nil {
		return s, fmt.Errorf("read disk: %w", err)
	}
	blkdev.Prefetch(f, s.Bytes)
	var damaged error
	if s.Table, damaged = read(f, s.Bytes, s.Sector); damaged != nil && !errors.Is(damaged, layout.ErrDamaged) {
		return s, fmt.Errorf("read disk %s: %w", path, damaged)
	}
	if s.Table.Label != layout.None {
		if s.Trailer, err = probe.Trailer(f, s.Bytes); err != nil {
			return s, fmt.Errorf("read disk %s: %w", path, err)
		}
	}
	if wanted(s.Table) {
		if s.Content, err = probe.Identify(f, s.Bytes); err != nil {
			return s, fmt.Errorf("read disk %s: %w", path, err)
		}
	}
	if damaged != nil {
		return s, fmt.Errorf("read disk %s: %w", path, damaged)
	}
	return s, nil
}

// read reads the partition table of a disk. Label is None if there is no table, or if other content outweighs it. If in
// doubt, it returns ErrDamaged.
func read(r io.ReaderAt, size int64, sector int) (layout.Table, error) {
	if sector < 512 || sector > 64<<10 || sector&(sector-1) != 0 {
		return layout.Table{}, fmt.Errorf("sector size %d is not supported", sector)
	}
	if size < 4*int64(sector) {
		return layout.Table{}, nil
	}
	head := make([]byte, 2*sector)
	if err := probe.ReadFull(r, head, 0); err != nil {
		return layout.Table{}, err
	}
	for _, t := range formats {
		if !t.detect(head, sector) {
			continue
		}
		table, err := t.read(r, size, sector)
		if err != nil && !errors.Is(err, layout.ErrDamaged) {
			return layout.Table{}, err
		}
		none, outweighedErr := outweighed(table, t.label, r, size)
		if none || outweighedErr != nil {
			return layout.Table{}, outweighedErr
		}
		return table, err
	}
	// Tables are written from the end, after the disk was wiped. A crash may leave only the second copy.
	content, err := probe.Identify(r, size)
	if err != nil || len(content.Also) > 0 {
		return layout.Table{}, err
	}
	if begun, err := interrupted(r, size, sector); err != nil || !begun {
		return layout.Table{}, err
	}
	for _, t := range formats {
		if t.remains != "" && t.remains == content.Kind {
			return t.read(r, size, sector)
		}
	}
	return layout.Table{}, nil
}

// interrupted reports whether the location of the first copy of a GPT contains only zeros and those sectors of the
// entries that match the second copy, so that a write was interrupted.
func interrupted(r io.ReaderAt, size int64, sector int) (bool, error) {
	const entries = 128 * 128
	first, second := make([]byte, 2*sector+entries), make([]byte, entries)
	err := probe.ReadFull(r, first, 0)
	if err == nil {
		err = probe.ReadFull(r, second, size/int64(sector)*int64(sector)-int64(sector)-entries)
	}
	if err != nil {
		return false, err
	}
	same := append(make([]byte, 2*sector), second...)
	for at := 0; at < len(first); at += sector {
		if s := first[at : at+sector]; !bytes.Equal(s, same[at:at+sector]) && !bytes.Equal(s, make([]byte, sector)) {
			return false, nil
		}
	}
	return true, nil
}

// outweighed reports whether other content of a disk takes precedence over its table. The table counts if there is
// content in its partitions, whatever older signatures remain. Otherwise a consistent file system on the whole disk
// counts, and then a boot sector, which ends like a DOS table. An intact first copy of a GPT always counts, since it
// would have overwritten these.
func outweighed(t layout.Table, label layout.Label, r io.ReaderAt, size int64) (bool, error) {
	if t.Label == layout.GPT && (t.Lost == "" || t.Lost == layout.SecondCopy) {
		return false, nil
	}
	for _, p := range t.Partitions {
		held, err := probe.HasContent(io.NewSectionReader(r, p.Start, p.Size), p.Size)
		if held || err != nil {
			return false, err
		}
	}
	bare, err := probe.Consistent(r, size)
	if err != nil || !bare && label != layout.MBR {
		return false, err
	}
	if !bare {
		content, err := probe.Identify(r, size)
		return content.Kind.HasBootSector(), err
	}
	for _, p := range t.Partitions { // a partition's first superblock may be lost
		lost, err := probe.FirstSuperblockLost(io.NewSectionReader(r, p.Start, p.Size), p.Size)
		if lost || err != nil {
			return false, err
		}
	}
	return true, nil
}

// isGPT follows the kernel, which requires the protective entry. It also accepts a GPT header if the first sector has
// no table: that sector may be lost, or the table was never completed.
func isGPT(head []byte, sector int) bool {
	return protected(head) || !isMBR(head, sector) && string(head[sector:sector+8]) == gptMagic
}

const gptMagic = "EFI PART"

// protected reports whether the first sector contains the protective entry of a GPT.
func protected(sector0 []byte) bool { return isMBR(sector0, 512) && hasType(sector0, 0xee) }

func isMBR(head []byte, _ int) bool { return head[510] == 0x55 && head[511] == 0xaa }

func hasType(sector0 []byte, kind byte) bool {
	for i := range 4 {
		if sector0[446+16*i+4] == kind {
			return true
		}
	}
	return false
}

// maxEntries bounds the number of entries to read. All tools write 128.
const maxEntries = 4096

func readGPT(r io.ReaderAt, size int64, sector int) (layout.Table, error) {
	first, second := place(sector), extent{size/int64(sector)*int64(sector) - int64(sector), size}
	t := layout.Table{Label: layout.GPT}
	for _, header := range []extent{first, second} {
		h := make([]byte, sector)
		if err := probe.ReadFull(r, h, header.start); err != nil {
			return layout.Table{}, err
		}
		if string(h[:8]) != gptMagic {
			continue
		}
		entries := binary.LittleEndian.Uint64(h[72:])
		count, length := binary.LittleEndian.Uint32(h[80:]), binary.LittleEndian.Uint32(h[84:])
		if count == 0 || count > maxEntries || length != gpt.PartitionEntrySize ||
			entries > uint64(size)/uint64(sector) {
			return layout.Table{}, fmt.Errorf("%w: GPT with %d entries of %d bytes at sector %d",
				layout.ErrDamaged, count, length, entries)
		}
		if count*length%uint32(sector) != 0 {
			t.Fixed = "its entries do not fill whole sectors"
		}
		if header == first && entries != 2 {
			t.Fixed = "its entries are not at the usual location"
		}
	}
	read, err := gpt.Read(newFile(r, size), sector, sector)
	if err != nil {
		// If the disk has grown, the second copy is at its former end, to which the protective entry extends.
		before, sizeErr := protectedSize(r, sector)
		if sizeErr != nil {
			return layout.Table{}, sizeErr
		}
		if before > 0 && before < size {
			return readGrown(r, size, before, sector)
		}
		return layout.Table{}, fmt.Errorf("%w: %w", layout.ErrDamaged, err)
	}
	t.GUID = read.GUID
	if t.Lost, err = missingPart(read, r, sector); err != nil {
		return layout.Table{}, err
	}
	t.Moved = read.TotalSize() != uint64(size/int64(sector)*int64(sector))
	sectors := uint64(size) / uint64(sector)
	for _, p := range read.Partitions {
		if p.Start > p.End || p.End >= sectors {
			return layout.Table{}, fmt.Errorf("%w: partition %d lies outside the disk", layout.ErrDamaged, p.Index)
		}
		t.Partitions = append(t.Partitions, layout.Partition{Number: p.Index, Start: int64(p.Start) * int64(sector),
			Size: int64(p.End-p.Start+1) * int64(sector), Name: p.Name, Type: string(p.Type), GUID: p.GUID,
			Attributes: p.Attributes})
	}
	return t, check(&t)
}

// place returns the extent of the first copy's header.
func place(sector int) extent { return extent{int64(sector), 2 * int64(sector)} }

// missingPart returns the part of a GPT that is missing or damaged, or "".
func missingPart(t *gpt.Table, r io.ReaderAt, sector int) (layout.Part, error) {
	head := make([]byte, 512)
	if err := probe.ReadFull(r, head, 0); err != nil {
		return "", err
	}
	if !protected(head) {
		return layout.ProtectiveEntry, nil
	}
	if t.RecoveredFromBackup {
		return layout.FirstCopy, nil
	}
	// With the first header hidden, the library reads the second one, at the former end of the disk.
	length := int64(t.TotalSize())
	second, err := gpt.Read(newFile(masked{r, []extent{place(sector)}}, length), sector, sector)
	if err != nil || !second.Equal(t) {
		return layout.SecondCopy, nil
	}
	return "", nil
}

// readGrown reads the table of a disk that has grown. before is its former size.
func readGrown(r io.ReaderAt, size, before int64, sector int) (layout.Table, error) {
	t, err := readGPT(io.NewSectionReader(r, 0, before), before, sector)
	t.Moved = before != size
	return t, err
}

// protectedSize returns the size of the disk according to a GPT's protective entry, or 0 if unknown.
func protectedSize(r io.ReaderAt, sector int) (int64, error) {
	head := make([]byte, 512)
	if err := probe.ReadFull(r, head, 0); err != nil {
		return 0, err
	}
	entry := head[446:462]
	start, count := binary.LittleEndian.Uint32(entry[8:]), binary.LittleEndian.Uint32(entry[12:])
	if !isMBR(head, sector) || entry[4] != 0xee || start != 1 || count == math.MaxUint32 {
		return 0, nil
	}
	return (int64(count) + 1) * int64(sector), nil
}

func readMBR(r io.ReaderAt, size int64, sector int) (layout.Table, error) {
	read, err := mbr.Read(newFile(r, size), sector, sector)
	if err != nil {
		return layout.Table{}, fmt.Errorf("%w: %w", layout.ErrDamaged, err)
	}
	t := layout.Table{Label: layout.MBR, GUID: read.UUID()}
	for _, p := range read.Partitions {
		if p.Type == mbr.Empty || p.Size == 0 {
			continue
		}
		part := layout.Partition{Number: p.Index, Start: int64(p.Start) * int64(sector),
			Size: int64(p.Size) * int64(sector), Type: fmt.Sprintf("%02x", byte(p.Type))}
		if p.Start == 0 || part.End() > size {
			return layout.Table{}, fmt.Errorf("%w: partition %d lies outside the disk", layout.ErrDamaged, p.Index)
		}
		if p.Type == mbr.ExtendedCHS || p.Type == mbr.ExtendedLBA || p.Type == 0x85 {
			t.Fixed = "it has an extended partition"
		}
		t.Partitions = append(t.Partitions, part)
	}
	sector0 := make([]byte, 512)
	if err := probe.ReadFull(r, sector0, 0); err != nil {
		return layout.Table{}, err
	}
	if name := nameMBR(sector0); name != "" && len(t.Partitions) == 1 {
		t.Partitions[0].Name, t.Partitions[0].Type = name, layout.LinuxMBR
	}
	return t, check(&t)
}

// bootCode is the size of the boot code in the first sector. The disk signature follows it.
const bootCode = 440

// nameMBR returns the name of the single partition in a DOS table, or "". DOS tables have no names, so it is stored in
// the boot code, which is empty otherwise, and the partition has the type NamedMBR. Other programs set another type
// when they write a table, and other raw data of that type has no name.
func nameMBR(sector0 []byte) string {
	for i := range 4 {
		kind := sector0[tableOffset+16*i+4]
		if i == 0 && fmt.Sprintf("%02x", kind) != layout.NamedMBR || i > 0 && kind != 0 {
			return ""
		}
	}
	name := strings.TrimRight(string(sector0[:bootCode]), "\x00")
	if !printable(name) {
		return ""
	}
	return name
}

func printable(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' })
}

func check(t *layout.Table) error {
	sort.Slice(t.Partitions, func(i, j int) bool { return t.Partitions[i].Number < t.Partitions[j].Number })
	ordered := append([]layout.Partition(nil), t.Partitions...)
	sort.Slice(ordered, func(i, j int) bool { return ordered[i].Start < ordered[j].Start })
	for i := 1; i < len(ordered); i++ {
		if ordered[i].Start < ordered[i-1].End() {
			return fmt.Errorf("%w: partitions %d and %d overlap", layout.ErrDamaged,
				ordered[i-1].Number, ordered[i].Number)
		}
	}
	return nil
}

// file adapts a reader to the file interface of go-diskfs, which uses ReadAt and Seek.
type file struct{ *io.SectionReader }

func newFile(r io.ReaderAt, size int64) file { return file{io.NewSectionReader(r, 0, size)} }

func (file) Close() error               { return nil }
func (file) Stat() (fs.FileInfo, error) { return nil, errors.ErrUnsupported }
