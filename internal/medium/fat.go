package medium

import (
	"encoding/binary"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem"
	"github.com/diskfs/go-diskfs/filesystem/fat12"
	"github.com/diskfs/go-diskfs/filesystem/fat16"
	"github.com/diskfs/go-diskfs/filesystem/fat32"
)

// Limits of a FAT volume. go-diskfs holds several copies of the whole table in memory, and a directory may claim to
// fill the volume.
const (
	maxFATVolume = 256 << 20
	maxFATTable  = 4 << 20
)

// geometry has checked values of the boot sector.
type geometry struct {
	bits       int // 12, 16 or 32
	tableStart int64
	tableSize  int64
	label      string
}

func openFAT(in *guarded) (*Volume, error) {
	g, err := readGeometry(in)
	if err != nil {
		return nil, err
	}
	if err := checkChains(in, g); err != nil {
		return nil, err
	}
	// go-diskfs expects a file, but only calls ReadAt.
	storage := file.New(struct {
		fs.File
		io.ReaderAt
	}{ReaderAt: in}, true)
	var fat filesystem.FileSystem
	switch g.bits {
	case 12:
		fat, err = fat12.Read(storage, in.size, 0, 512)
	case 16:
		fat, err = fat16.Read(storage, in.size, 0, 512)
	default:
		fat, err = fat32.Read(storage, in.size, 0, 512)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	label := strings.TrimSpace(fat.Label())
	if label == "" && g.label != "NO NAME" {
		label = g.label
	}
	if failed := in.failure(); failed != nil {
		return nil, failed
	}
	v := &Volume{Kind: "vfat", in: in, trees: []tree{&fatTree{fs: fat}}}
	v.label(label)
	return v, nil
}

// readGeometry reads the boot sector. It checks every number that go-diskfs computes with: it assumes two tables and a
// root directory in cluster 2.
func readGeometry(in *guarded) (geometry, error) {
	b, err := in.bytes(0, 512)
	if err != nil {
		_ = in.failure() // a device too small for a FAT is not a failure
		return geometry{}, ErrUnknown
	}
	u16 := func(at int) int64 { return int64(binary.LittleEndian.Uint16(b[at:])) }
	u32 := func(at int) int64 { return int64(binary.LittleEndian.Uint32(b[at:])) }
	sector, perCluster, reserved, tables, rootEntries := u16(11), int64(b[13]), u16(14), int64(b[16]), u16(17)
	// The same bytes begin a partition table and many boot loaders; only all of this together
	// makes a FAT.
	if b[510] != 0x55 || b[511] != 0xaa || b[0] != 0xeb && b[0] != 0xe9 ||
		sector != 512 && sector != 1024 && sector != 2048 && sector != 4096 ||
		perCluster == 0 || perCluster&(perCluster-1) != 0 || reserved == 0 || tables == 0 || b[21] < 0xf0 && b[21] != 0 {
		return geometry{}, ErrUnknown
	}
	sectors, tableSectors := u16(19), u16(22)
	if sectors == 0 {
		sectors = u32(32)
	}
	labelAt := 43
	if tableSectors == 0 {
		tableSectors = u32(36)
		labelAt = 71
	}
	rootSectors := (rootEntries*32 + sector - 1) / sector
	data := sectors - reserved - tables*tableSectors - rootSectors
	if tableSectors == 0 || data <= 0 {
		return geometry{}, ErrUnknown
	}
	clusters := data / perCluster
	g := geometry{bits: 32, tableStart: reserved * sector, tableSize: tableSectors * sector}
	switch {
	case clusters < 4085 && rootEntries > 0:
		g.bits = 12
	case clusters < 65525 && rootEntries > 0:
		g.bits = 16
	case rootEntries > 0:
		return geometry{}, fmt.Errorf("%w: neither FAT16 nor FAT32", ErrDamaged)
	}
	switch {
	case sectors*sector > in.size:
		return geometry{}, fmt.Errorf("%w: %d bytes on a device of %d", ErrDamaged, sectors*sector, in.size)
	case sectors*sector > maxFATVolume || g.tableSize > maxFATTable:
		return geometry{}, fmt.Errorf("%w of at most %d MiB", ErrUnknown, maxFATVolume>>20)
	case tables != 2, g.bits == 32 && u32(44) != 2:
		return geometry{}, fmt.Errorf("%w of the usual layout", ErrUnknown)
	case (clusters+2)*int64(g.bits)/8 > g.tableSize:
		return geometry{}, fmt.Errorf("%w: allocation table too small", ErrDamaged)
	}
	if b[labelAt-5] == 0x29 {
		g.label = strings.TrimRight(string(b[labelAt:labelAt+11]), " \x00")
	}
	return g, nil
}

// checkChains fails if a cluster chain is circular. go-diskfs would follow it until memory is exhausted.
func checkChains(in *guarded, g geometry) error {
	table, err := in.bytes(g.tableStart, int(g.tableSize))
	if err != nil {
		return err
	}
	count := uint32(len(table) * 8 / g.bits)
	next := func(i uint32) uint32 {
		switch g.bits {
		case 12:
			at := int(i) * 3 / 2
			if at+1 >= len(table) {
				return 0
			}
			word := uint32(table[at]) | uint32(table[at+1])<<8
			if i%2 == 1 {
				return word >> 4
			}
			return word & 0xfff
		case 16:
			return uint32(binary.LittleEndian.Uint16(table[i*2:]))
		}
		return binary.LittleEndian.Uint32(table[i*4:])
	}
	const open, done = 1, 2
	seen := make([]byte, count)
	for start := uint32(2); start < count; start++ {
		i := start
		for i >= 2 && i < count && seen[i] == 0 {
			seen[i] = open
			i = next(i)
		}
		if i >= 2 && i < count && seen[i] == open {
			return fmt.Errorf("%w: cluster chain has a loop", ErrDamaged)
		}
		for i = start; i >= 2 && i < count && seen[i] == open; i = next(i) {
			seen[i] = done
		}
	}
	return nil
}

type fatTree struct{ fs filesystem.FileSystem }

func (t *fatTree) list(dir *entry) ([]entry, error) {
	at := "."
	if dir != nil {
		at = dir.path
	}
	found, err := t.fs.ReadDir(at)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	entries := make([]entry, 0, len(found))
	for _, f := range found {
		info, err := f.Info()
		if err != nil {
			return nil, err
		}
		e := entry{name: f.Name(), dir: f.IsDir(), size: info.Size(), path: f.Name()}
		if dir != nil {
			e.path = dir.path + "/" + f.Name()
		}
		entries = append(entries, e)
	}
	return entries, nil
}

func (t *fatTree) read(file entry, limit int64) ([]byte, error) {
	if file.size == 0 {
		return nil, nil // go-diskfs looks for a first cluster, and an empty file has none
	}
	f, err := t.fs.OpenFile(file.path, os.O_RDONLY)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	defer f.Close()
	content := make([]byte, file.size)
	for at := 0; at < len(content); {
		n, err := f.Read(content[at:])
		at += n
		if at == len(content) {
			break
		}
		if err != nil || n == 0 {
			return nil, fmt.Errorf("%w: file ends early", ErrDamaged)
		}
	}
	return content, nil
}
