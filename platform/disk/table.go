// Package disk reads and writes partition tables. Reading never writes, whatever is found. Writing
// happens under the lock that udev honors, is verified by reading back, and each partition is
// announced to the kernel separately (BLKPG), which also works on a disk in use. Whether a disk may
// be written is the caller's decision and proof.
package disk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
	"sort"
	"time"

	"github.com/diskfs/go-diskfs/partition/gpt"
	"github.com/diskfs/go-diskfs/partition/mbr"
	"golang.org/x/sys/unix"

	"cambium/internal/blkdev"
	"cambium/platform/filesystem"
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
	// Recovered is set when the first copy of a GPT is broken and the second was used.
	Recovered bool
	// Moved is set when the disk is larger than the GPT says: the second copy is not at its end.
	Moved bool
	// Fixed says why a table must not be rewritten, though it can be read.
	Fixed string
}

// Partition is one entry of a table.
type Partition struct {
	Number int
	Start  int64
	Size   int64
	Name   string // GPT only
	Type   string // GUID in GPT, two hexadecimal digits in MBR
	GUID   string // GPT only
}

// End is the first byte behind the partition.
func (p Partition) End() int64 { return p.Start + p.Size }

// State is a disk as it was found.
type State struct {
	Path   string
	Number blkdev.Number
	Bytes  int64
	Sector int
	// Content is what the disk as a whole carries: a table, a file system, nothing.
	Content filesystem.Content
	Table   Table
	// Trailer is what has metadata at the end of a disk that carries a table; a partition must not be grown over it.
	Trailer filesystem.Kind
	// Beneath are older signatures of the whole disk, which its table outlived: sfdisk does not wipe them. They do not
	// count. They are looked for beneath a DOS table only; a GPT leaves them no room.
	Beneath []filesystem.Kind
}

// Inspect reads what is on a disk or image. The content is probed only where there is no partition table.
func Inspect(path string) (State, error) {
	return look(path, func(t Table) bool { return t.Label == None })
}

// look probes the content only if it is wanted.
func look(path string, wanted func(Table) bool) (State, error) {
	s := State{Path: path}
	f, err := os.Open(path)
	if err != nil {
		return s, fmt.Errorf("read disk: %w", err)
	}
	defer f.Close()
	// A disk's pages are cached apart from those of its partitions: without this, a table or
	// file system written through a partition could be seen as it was before.
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	if s.Bytes, err = blkdev.Size(f); err != nil {
		return s, fmt.Errorf("read disk: %w", err)
	}
	if s.Sector, err = blkdev.SectorSize(f); err != nil {
		return s, fmt.Errorf("read disk: %w", err)
	}
	if n, err := blkdev.NumberOf(path); err == nil {
		s.Number = n
	}
	var damaged error
	if s.Table, damaged = read(f, s.Bytes, s.Sector); damaged != nil && !errors.Is(damaged, ErrDamaged) {
		return s, fmt.Errorf("read disk %s: %w", path, damaged)
	}
	cached := blkdev.NewCached(f, s.Bytes)
	if s.Table.Label != None {
		if s.Trailer, err = filesystem.Trailer(cached, s.Bytes); err != nil {
			return s, fmt.Errorf("read disk %s: %w", path, err)
		}
	}
	if s.Table.Label == MBR {
		s.Beneath = beneath(cached, s.Bytes, s.Trailer)
	}
	if wanted(s.Table) {
		blkdev.Prefetch(f, s.Bytes)
		if s.Content, err = filesystem.Identify(cached, s.Bytes); err != nil {
			return s, fmt.Errorf("read disk %s: %w", path, err)
		}
	}
	if damaged != nil {
		return s, fmt.Errorf("read disk %s: %w", path, damaged)
	}
	return s, nil
}

// beneath are the signatures of a whole disk besides its table and its trailer. They only explain: what cannot be read
// is left out.
func beneath(r io.ReaderAt, size int64, trailer filesystem.Kind) []filesystem.Kind {
	content, err := filesystem.Identify(r, size)
	if err != nil || content.Blank() {
		return nil
	}
	return slices.DeleteFunc(append([]filesystem.Kind{content.Kind}, content.Also...), func(k filesystem.Kind) bool {
		return k == filesystem.DOS || k == trailer
	})
}

// read finds the partition table of a disk; a disk without one, or with one that does not count, gives Label None. It
// returns ErrDamaged rather than guess.
func read(r io.ReaderAt, size int64, sector int) (Table, error) {
	if sector < 512 || sector > 64<<10 || sector&(sector-1) != 0 {
		return Table{}, fmt.Errorf("sector size %d is not supported", sector)
	}
	if size < 4*int64(sector) {
		return Table{}, nil
	}
	head := make([]byte, 2*sector)
	if err := filesystem.ReadFull(r, head, 0); err != nil {
		return Table{}, err
	}
	for _, t := range tableTypes {
		if !t.detect(head, sector) {
			continue
		}
		table, err := t.read(r, size, sector)
		if err != nil && !errors.Is(err, ErrDamaged) {
			return Table{}, err
		}
		none, outweighedErr := outweighed(table, t.label, r, size)
		if none || outweighedErr != nil {
			return Table{}, outweighedErr
		}
		return table, err
	}
	// Tables are written from the end: what a crash left may be the second copy alone. It
	// counts only where the disk carries nothing else.
	content, err := filesystem.Identify(r, size)
	if err != nil || len(content.Also) > 0 {
		return Table{}, err
	}
	for _, t := range tableTypes {
		if t.remains != "" && t.remains == content.Kind {
			return t.read(r, size, sector)
		}
	}
	return Table{}, nil
}

// outweighed says whether something else on a disk counts, and not its table. A table counts whose entries hold
// something, whatever older signature is beneath it. Otherwise a consistent file system over the whole disk counts, and
// then the boot sector of one, which ends like a DOS table. An intact first copy of a GPT lies where these would be.
func outweighed(t Table, label Label, r io.ReaderAt, size int64) (bool, error) {
	if t.Label == GPT && !t.Recovered {
		return false, nil
	}
	for _, p := range t.Partitions {
		held, err := filesystem.Holds(io.NewSectionReader(r, p.Start, p.Size), p.Size)
		if held || err != nil {
			return false, err
		}
	}
	bare, err := filesystem.Consistent(r, size)
	if err != nil || !bare && label != MBR {
		return false, err
	}
	if !bare {
		content, err := filesystem.Identify(r, size)
		return content.Kind.BootSector(), err
	}
	for _, p := range t.Partitions { // of what an entry holds, the first superblock may be lost
		found, err := filesystem.Survey(io.NewSectionReader(r, p.Start, p.Size), p.Size, nil)
		if err != nil || slices.ContainsFunc(found.Found, func(s filesystem.Superblock) bool {
			return s.Start == 0 && s.Kind.Managed()
		}) {
			return false, err
		}
	}
	return true, nil
}

func isGPT(head []byte, sector int) bool {
	return string(head[sector:sector+8]) == "EFI PART" || isMBR(head, sector) && hasType(head, 0xee)
}

func isMBR(head []byte, _ int) bool { return head[510] == 0x55 && head[511] == 0xaa }

func hasType(sector0 []byte, kind byte) bool {
	for i := range 4 {
		if sector0[446+16*i+4] == kind {
			return true
		}
	}
	return false
}

// maxEntries bounds what a header can make us read; 128 is what every tool writes.
const maxEntries = 4096

func readGPT(r io.ReaderAt, size int64, sector int) (Table, error) {
	first, last := make([]byte, sector), make([]byte, sector)
	if err := filesystem.ReadFull(r, first, int64(sector)); err != nil {
		return Table{}, err
	}
	if err := filesystem.ReadFull(r, last, size/int64(sector)*int64(sector)-int64(sector)); err != nil {
		return Table{}, err
	}
	t := Table{Label: GPT}
	for i, h := range [][]byte{first, last} {
		if string(h[:8]) != "EFI PART" {
			continue
		}
		entries := binary.LittleEndian.Uint64(h[72:])
		count, length := binary.LittleEndian.Uint32(h[80:]), binary.LittleEndian.Uint32(h[84:])
		if count == 0 || count > maxEntries || length != gpt.PartitionEntrySize || entries > uint64(size)/uint64(sector) {
			return Table{}, fmt.Errorf("%w: GPT with %d entries of %d bytes at sector %d", ErrDamaged, count, length, entries)
		}
		if count*length%uint32(sector) != 0 {
			t.Fixed = "its entries do not fill whole sectors"
		}
		if i == 0 && entries != 2 {
			t.Fixed = "its entries are not at the usual place"
		}
	}
	read, err := gpt.Read(file{r: r, size: size}, sector, sector)
	if err != nil {
		// Of a disk that has grown, the second copy is where the disk ended before; the protective table tells.
		before, sizeErr := protectedSize(r, sector)
		if sizeErr != nil {
			return Table{}, sizeErr
		}
		if before > 0 && before < size {
			return readGrown(r, size, before, sector)
		}
		return Table{}, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	t.GUID, t.Recovered = read.GUID, read.RecoveredFromBackup
	t.Moved = read.TotalSize() != uint64(size/int64(sector)*int64(sector))
	sectors := uint64(size) / uint64(sector)
	for _, p := range read.Partitions {
		if p.Start > p.End || p.End >= sectors {
			return Table{}, fmt.Errorf("%w: partition %d lies outside the disk", ErrDamaged, p.Index)
		}
		t.Partitions = append(t.Partitions, Partition{Number: p.Index, Start: int64(p.Start) * int64(sector),
			Size: int64(p.End-p.Start+1) * int64(sector), Name: p.Name, Type: string(p.Type), GUID: p.GUID})
	}
	return t, t.check()
}

// readGrown reads the table of a disk as it was before it grew.
func readGrown(r io.ReaderAt, size, before int64, sector int) (Table, error) {
	t, err := readGPT(io.NewSectionReader(r, 0, before), before, sector)
	t.Moved = before != size
	return t, err
}

// protectedSize is the length of the disk that a GPT's protective DOS table was written for; 0 if it does not tell.
func protectedSize(r io.ReaderAt, sector int) (int64, error) {
	head := make([]byte, 512)
	if err := filesystem.ReadFull(r, head, 0); err != nil {
		return 0, err
	}
	entry := head[446:462]
	start, count := binary.LittleEndian.Uint32(entry[8:]), binary.LittleEndian.Uint32(entry[12:])
	if !isMBR(head, sector) || entry[4] != 0xee || start != 1 || count == math.MaxUint32 {
		return 0, nil
	}
	return (int64(count) + 1) * int64(sector), nil
}

func readMBR(r io.ReaderAt, size int64, sector int) (Table, error) {
	read, err := mbr.Read(file{r: r, size: size}, sector, sector)
	if err != nil {
		return Table{}, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	t := Table{Label: MBR, GUID: read.UUID()}
	for _, p := range read.Partitions {
		if p.Type == mbr.Empty || p.Size == 0 {
			continue
		}
		part := Partition{Number: p.Index, Start: int64(p.Start) * int64(sector), Size: int64(p.Size) * int64(sector), Type: fmt.Sprintf("%02x", byte(p.Type))}
		if p.Start == 0 || part.End() > size {
			return Table{}, fmt.Errorf("%w: partition %d lies outside the disk", ErrDamaged, p.Index)
		}
		if p.Type == mbr.ExtendedCHS || p.Type == mbr.ExtendedLBA || p.Type == 0x85 {
			t.Fixed = "it has an extended partition"
		}
		t.Partitions = append(t.Partitions, part)
	}
	return t, t.check()
}

func (t *Table) check() error {
	sort.Slice(t.Partitions, func(i, j int) bool { return t.Partitions[i].Number < t.Partitions[j].Number })
	ordered := append([]Partition(nil), t.Partitions...)
	sort.Slice(ordered, func(i, j int) bool { return ordered[i].Start < ordered[j].Start })
	for i := 1; i < len(ordered); i++ {
		if ordered[i].Start < ordered[i-1].End() {
			return fmt.Errorf("%w: partitions %d and %d overlap", ErrDamaged, ordered[i-1].Number, ordered[i].Number)
		}
	}
	return nil
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

// file is a read-only file for go-diskfs.
type file struct {
	r    io.ReaderAt
	size int64
}

func (f file) ReadAt(b []byte, o int64) (int, error) { return f.r.ReadAt(b, o) }
func (f file) Read([]byte) (int, error)              { return 0, errors.ErrUnsupported }
func (f file) Close() error                          { return nil }
func (f file) Stat() (fs.FileInfo, error)            { return f, nil }
func (f file) Seek(o int64, whence int) (int64, error) {
	if whence == io.SeekEnd {
		return f.size + o, nil
	}
	return o, nil
}

func (f file) Name() string       { return "disk" }
func (f file) Size() int64        { return f.size }
func (f file) Mode() fs.FileMode  { return 0 }
func (f file) ModTime() time.Time { return time.Time{} }
func (f file) IsDir() bool        { return false }
func (f file) Sys() any           { return nil }
