package disk

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"

	"github.com/diskfs/go-diskfs/partition/gpt"
	"github.com/diskfs/go-diskfs/partition/mbr"
	"golang.org/x/sys/unix"

	"cambium/internal/blkdev"
	"cambium/platform/disk/layout"
	"cambium/platform/filesystem/probe"
)

// open locks a disk for writing. udev and systemd-repart honor the lock, so that they do not read an incomplete table.
func open(ctx context.Context, path string, exclusive bool) (*os.File, error) {
	flags := os.O_RDWR
	if exclusive {
		// The open fails while the disk or a partition is mounted or held.
		flags |= unix.O_EXCL
	}
	f, err := os.OpenFile(path, flags, 0)
	if errors.Is(err, unix.EBUSY) {
		return nil, fmt.Errorf("%w: the disk is in use", err)
	}
	if err != nil {
		return nil, err
	}
	if blkdev.ReadOnly(f) {
		return nil, errors.Join(errors.New("the disk is read-only: attach it read-write"), f.Close())
	}
	if holds.has(path) {
		return f, nil // already locked by this process
	}
	return f, lock(ctx, f)
}

// Create replaces the content of a disk with a new table. It wipes old signatures on the disk and at both ends of each
// partition. guid identifies the new table; if it is empty, a random one is used.
func Create(ctx context.Context, path string, label layout.Label, guid string, parts []layout.Partition) error {
	f, err := open(ctx, path, true)
	if err != nil {
		return fmt.Errorf("create partition table on %s: %w", path, err)
	}
	err = create(f, label, guid, parts)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("create partition table on %s: %w", path, err)
	}
	return nil
}

func create(f *os.File, label layout.Label, guid string, parts []layout.Partition) error {
	size, sector, err := geometry(f)
	if err != nil {
		return err
	}
	want := layout.Table{Label: label, GUID: guid, Partitions: parts}
	if err := fits(want, size, sector); err != nil {
		return err
	}
	if err := probe.Wipe(f, 0, size); err != nil {
		return err
	}
	for _, p := range parts {
		if err := probe.Wipe(f, p.Start, p.Size); err != nil {
			return err
		}
	}
	// Erase the old table durably before writing: old content at the offset of a new partition would look like ours.
	if err := f.Sync(); err != nil {
		return err
	}
	return write(want, f, size, sector)
}

// Append adds partitions after the existing ones, which are unchanged and may be in use.
func Append(ctx context.Context, path string, parts []layout.Partition) error {
	return change(ctx, path, "append partitions to", func(f *os.File, t *layout.Table) error {
		for _, p := range parts {
			if err := probe.Wipe(f, p.Start, p.Size); err != nil {
				return err
			}
		}
		t.Partitions = append(t.Partitions, parts...)
		return f.Sync()
	})
}

// Grow moves the end of partition n, and the second copy of a GPT to the end of the disk. A partition that already ends
// there is unchanged; shrinking is an error.
func Grow(ctx context.Context, path string, n int, end int64) error {
	return change(ctx, path, "grow a partition of", func(_ *os.File, t *layout.Table) error {
		for i := range t.Partitions {
			p := &t.Partitions[i]
			if p.Number != n {
				continue
			}
			if end < p.End() {
				return fmt.Errorf("partition %d would shrink from %d to %d bytes", n, p.Size, end-p.Start)
			}
			p.Size = end - p.Start
			return nil
		}
		return fmt.Errorf("partition %d does not exist", n)
	})
}

// Repair rewrites a GPT of which a part is lost.
func Repair(ctx context.Context, path string) error {
	return change(ctx, path, "repair the partition table of", func(*os.File, *layout.Table) error { return nil })
}

// Rename changes the name of partition n. In a DOS table, only a single partition can have a name.
func Rename(ctx context.Context, path string, n int, name string) error {
	return change(ctx, path, "rename a partition of", func(_ *os.File, t *layout.Table) error {
		for i := range t.Partitions {
			if t.Partitions[i].Number == n {
				t.Partitions[i].Name = name
				return nil
			}
		}
		return fmt.Errorf("partition %d does not exist", n)
	})
}

func change(ctx context.Context, path, what string, edit func(*os.File, *layout.Table) error) error {
	f, err := open(ctx, path, false)
	if err != nil {
		return fmt.Errorf("%s %s: %w", what, path, err)
	}
	err = func() error {
		size, sector, err := geometry(f)
		if err != nil {
			return err
		}
		t, err := read(f, size, sector)
		if err != nil {
			return err
		}
		if t.Label == layout.None {
			return errors.New("there is no partition table")
		}
		if t.Fixed != "" {
			return fmt.Errorf("the table cannot be changed: %s", t.Fixed)
		}
		if err := edit(f, &t); err != nil {
			return err
		}
		if err := fits(t, size, sector); err != nil {
			return err
		}
		return write(t, f, size, sector)
	}()
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("%s %s: %w", what, path, err)
	}
	return nil
}

func geometry(f *os.File) (int64, int, error) {
	size, err := blkdev.Size(f)
	if err != nil {
		return 0, 0, err
	}
	sector, err := blkdev.SectorSize(f)
	return size, sector, err
}

func fits(t layout.Table, size int64, sector int) error {
	if err := check(&t); err != nil {
		return err
	}
	for _, p := range t.Partitions {
		switch {
		case p.Start%int64(sector) != 0 || p.Size%int64(sector) != 0 || p.Size <= 0:
			return fmt.Errorf("partition %d: %d bytes at %d are not whole sectors", p.Number, p.Size, p.Start)
		case p.Number < 1 || p.Number > t.Label.Slots():
			return fmt.Errorf("partition %d: a %s table holds at most %d", p.Number, t.Label, t.Label.Slots())
		case !t.Label.Named() && p.Name != "" &&
			(len(t.Partitions) > 1 || p.Number > 1 || !printable(p.Name) || len(p.Name) > bootCode):
			return fmt.Errorf("partition %d cannot be named %q in a %s table", p.Number, p.Name, t.Label)
		case !t.Label.CanAddress(p.End(), sector):
			return fmt.Errorf("partition %d would end beyond 2 TiB, which a DOS partition table cannot address: "+
				"attach a new disk, which gets a GPT, and migrate to it", p.Number)
		case p.End() > layout.UsableEnd(t.Label, size, sector):
			return fmt.Errorf("partition %d: ends at %d, beyond the last usable byte %d", p.Number, p.End(),
				layout.UsableEnd(t.Label, size, sector))
		}
	}
	return nil
}

func write(t layout.Table, f *os.File, size int64, sector int) error {
	format, err := formatOf(t.Label)
	if err != nil {
		return err
	}
	if err := format.write(t, f, size, sector); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return verify(t, f, size, sector)
}

func writeGPT(t layout.Table, f *os.File, size int64, sector int) error {
	g := &gpt.Table{LogicalSectorSize: sector, PhysicalSectorSize: sector, GUID: t.GUID}
	for _, p := range t.Partitions {
		entry := &gpt.Partition{
			Index: p.Number,
			Start: uint64(p.Start / int64(sector)),
			End:   uint64(p.End()/int64(sector)) - 1,
			Type:  gpt.Type(p.Type),
			Name:  p.Name,
			GUID:  p.GUID,
			// such as LegacyBIOSBootable, of an existing entry
			Attributes: p.Attributes,
		}
		if p.Type == "" {
			entry.Type = layout.LinuxGPT
		}
		g.Partitions = append(g.Partitions, entry)
	}
	sector0 := make([]byte, 512)
	if err := probe.ReadFull(f, sector0, 0); err != nil {
		return err
	}
	protect(sector0, size/int64(sector))
	// go-diskfs writes the second copy first, which makes a power cut harmless. The first sector is written here, since
	// the library's is wrong beyond 2 TiB and clears hybrid entries and boot flags.
	if err := g.Write(f, size); err != nil {
		return err
	}
	_, err := f.WriteAt(sector0[tableOffset:], tableOffset)
	return err
}

// tableOffset is the offset of the first entry of a DOS table in its sector.
const tableOffset = 446

// protect sets the protective entry in the first sector. An existing one keeps its boot flag and the other entries of a
// hybrid table, and is extended to the end of the disk if no entry follows it.
func protect(sector0 []byte, sectors int64) {
	const size = 16
	length := uint32(min(sectors-1, math.MaxUint32))
	var own []byte
	after := false // another entry begins after the protective one
	for i := range 4 {
		if entry := sector0[tableOffset+size*i:][:size]; isMBR(sector0, 512) && entry[4] == 0xee {
			own = entry
		}
	}
	if own == nil {
		clear(sector0[tableOffset:])
		own = sector0[tableOffset:][:size]
		copy(own[1:], "\x00\x02\x00\xee\xff\xff\xff\x01\x00\x00\x00")
		copy(sector0[510:], "\x55\xaa")
	}
	start := binary.LittleEndian.Uint32(own[8:])
	for i := range 4 {
		entry := sector0[tableOffset+size*i:][:size]
		after = after || entry[4] != 0 && binary.LittleEndian.Uint32(entry[8:]) > start
	}
	if !after {
		binary.LittleEndian.PutUint32(own[12:], length)
	}
}

func writeMBR(t layout.Table, f *os.File, size int64, sector int) error {
	sector0 := make([]byte, 512)
	if err := probe.ReadFull(f, sector0, 0); err != nil {
		return err
	}
	// Keep the boot code, disk signature and boot flags of an existing table.
	old, err := mbr.Read(newFile(f, size), sector, sector)
	if fresh := err != nil; fresh {
		old = nil
		_, _ = rand.Read(sector0[bootCode:][:4]) // never fails on supported systems
		if n, err := strconv.ParseUint(t.GUID, 16, 32); err == nil && t.GUID != "" {
			binary.LittleEndian.PutUint32(sector0[bootCode:], uint32(n))
		}
	}
	m := &mbr.Table{LogicalSectorSize: sector, PhysicalSectorSize: sector}
	for i := range 4 {
		entry, err := entryMBR(t, i, old, sector)
		if err != nil {
			return err
		}
		m.Partitions = append(m.Partitions, entry)
	}
	if err := writeName(t, sector0); err != nil {
		return err
	}
	if err := m.Write(memory{sector: sector0}, 0); err != nil {
		return err
	}
	_, err = f.WriteAt(sector0, 0) // in one write: half a sector would be neither blank nor ours
	return err
}

// entryMBR returns entry i of a DOS table. It copies the other fields from old, unless that is nil.
func entryMBR(t layout.Table, i int, old *mbr.Table, sector int) (*mbr.Partition, error) {
	entry := &mbr.Partition{Index: i + 1}
	p, ok := t.Partition(i + 1)
	if !ok {
		return entry, nil
	}
	kind := cmp.Or(p.Type, layout.LinuxMBR)
	if p.Name != "" {
		kind = layout.NamedMBR
	}
	n, err := strconv.ParseUint(kind, 16, 8)
	if err != nil {
		return nil, fmt.Errorf("partition type %q: %w", kind, err)
	}
	entry.Type, entry.Start, entry.Size = mbr.Type(n), uint32(p.Start/int64(sector)), uint32(p.Size/int64(sector))
	// CHS addressing is obsolete; these values mean "beyond what CHS can express".
	entry.StartHead, entry.StartSector, entry.StartCylinder = 0xfe, 0xff, 0xff
	entry.EndHead, entry.EndSector, entry.EndCylinder = 0xfe, 0xff, 0xff
	if old == nil || old.Partitions[i].Start != entry.Start {
		return entry, nil
	}
	o := old.Partitions[i]
	entry.Bootable = o.Bootable
	entry.StartHead, entry.StartSector, entry.StartCylinder = o.StartHead, o.StartSector, o.StartCylinder
	if o.Size == entry.Size {
		entry.EndHead, entry.EndSector, entry.EndCylinder = o.EndHead, o.EndSector, o.EndCylinder
	}
	return entry, nil
}

// writeName stores the name of a DOS table's partition in the boot code, or removes it. Other boot code is left
// unchanged.
func writeName(t layout.Table, sector0 []byte) error {
	boot := sector0[:bootCode]
	if nameMBR(sector0) != "" {
		clear(boot)
	}
	if len(t.Partitions) == 0 || t.Partitions[0].Name == "" {
		return nil
	}
	if !bytes.Equal(boot, make([]byte, bootCode)) {
		return errors.New("the partition cannot be named: there is boot code")
	}
	copy(boot, t.Partitions[0].Name)
	return nil
}

// memory is a sector in memory to which go-diskfs writes.
type memory struct {
	file
	sector []byte
}

func (m memory) WriteAt(b []byte, offset int64) (int, error) { return copy(m.sector[offset:], b), nil }

// verify reads the table back and compares it with the one written.
func verify(t layout.Table, f *os.File, size int64, sector int) error {
	have, err := read(f, size, sector)
	if err != nil {
		return fmt.Errorf("read back: %w", err)
	}
	if have.Label != t.Label || have.Lost != "" || have.Moved || len(have.Partitions) != len(t.Partitions) {
		return fmt.Errorf("read back: table is %s with %d partitions, want %s with %d", have.Label,
			len(have.Partitions), t.Label, len(t.Partitions))
	}
	for _, want := range t.Partitions {
		got, ok := have.Partition(want.Number)
		if !ok || got.Start != want.Start || got.Size != want.Size || got.Name != want.Name {
			return fmt.Errorf("read back: partition %d is %+v, want %+v", want.Number, got, want)
		}
	}
	return nil
}
