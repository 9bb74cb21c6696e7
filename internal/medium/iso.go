package medium

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"unicode/utf16"
)

const (
	isoSector      = 2048
	isoDescriptors = 16 * isoSector // position of the volume descriptors
	maxDescriptors = 64
	maxExtents     = 16
	maxContinued   = 16 // continuation areas of a Rock Ridge entry
)

type extent struct {
	block uint32
	size  uint32
}

// isoTree is the hierarchy of one volume descriptor.
type isoTree struct {
	in     *guarded
	block  int64 // logical block size
	root   extent
	joliet bool // names are UCS-2
	// rock is set if names may come from Rock Ridge. skip is the offset of its fields.
	rock bool
	skip int
}

func openISO(in *guarded) (*Volume, error) {
	var primary, joliet *isoTree
	v := &Volume{Kind: "iso9660", in: in}
	for i := range maxDescriptors {
		d, err := in.bytes(isoDescriptors+int64(i)*isoSector, isoSector)
		if err != nil || string(d[1:6]) != "CD001" {
			if i > 0 && err != nil {
				return nil, err
			}
			break
		}
		if d[0] == 255 {
			break
		}
		t := &isoTree{in: in, block: int64(binary.LittleEndian.Uint16(d[128:]))}
		root := d[156:190]
		t.root = extent{binary.LittleEndian.Uint32(root[2:]), binary.LittleEndian.Uint32(root[10:])}
		switch {
		case d[0] == 1 && primary == nil:
			primary = t
			v.label(strings.TrimRight(string(d[40:72]), " \x00"))
		case d[0] == 2 && joliet == nil && isJoliet(d[88:91]):
			t.joliet = true
			joliet = t
			v.label(strings.TrimRight(ucs2(d[40:72]), " \x00"))
		}
	}
	_ = in.failure() // probing beyond the end of a small device is not a failure of the volume
	if primary == nil {
		return nil, ErrUnknown
	}
	for _, t := range []*isoTree{primary, joliet} {
		if t != nil && t.block != 512 && t.block != 1024 && t.block != 2048 {
			return nil, fmt.Errorf("%w: block size %d", ErrDamaged, t.block)
		}
	}
	if err := primary.detectRockRidge(); err != nil {
		return nil, err
	}
	switch {
	case joliet == nil:
		v.trees = []tree{primary}
	case primary.rock:
		v.trees = []tree{primary, joliet}
	default: // the primary names are cut and in upper case
		v.trees = []tree{joliet, primary}
	}
	return v, nil
}

func (v *Volume) label(name string) {
	if name != "" && !v.HasLabel(name) {
		v.Labels = append(v.Labels, name)
	}
}

func isJoliet(escape []byte) bool {
	return escape[0] == '%' && escape[1] == '/' && (escape[2] == '@' || escape[2] == 'C' || escape[2] == 'E')
}

func ucs2(b []byte) string {
	units := make([]uint16, len(b)/2)
	for i := range units {
		units[i] = binary.BigEndian.Uint16(b[2*i:])
	}
	return string(utf16.Decode(units))
}

// detectRockRidge looks for the SP field in the first record of the root.
func (t *isoTree) detectRockRidge() error {
	records, err := t.records(t.root)
	if err != nil || len(records) == 0 {
		return err
	}
	fields := systemUse(records[0])
	if len(fields) >= 7 && string(fields[:2]) == "SP" && fields[4] == 0xbe && fields[5] == 0xef {
		t.rock, t.skip = true, int(fields[6])
	}
	return nil
}

// records returns the raw directory records of a directory.
func (t *isoTree) records(dir extent) ([][]byte, error) {
	if dir.size > maxDirectory {
		return nil, fmt.Errorf("%w: directory of %d KiB", ErrDamaged, dir.size>>10)
	}
	data, err := t.in.bytes(int64(dir.block)*t.block, int(dir.size))
	if err != nil {
		return nil, err
	}
	var found [][]byte
	for at := 0; at < len(data); {
		n := int(data[at])
		// Records do not cross sectors; a zero pads to the next one.
		if n == 0 {
			at = (at/isoSector + 1) * isoSector
			continue
		}
		if n < 34 || at+n > len(data) || 33+int(data[at+32]) > n {
			return nil, fmt.Errorf("%w: directory record", ErrDamaged)
		}
		found = append(found, data[at:at+n])
		at += n
	}
	return found, nil
}

// systemUse returns the bytes after the name in a directory record.
func systemUse(record []byte) []byte {
	at := 33 + int(record[32])
	at += at % 2 // a pad byte after a name of even length
	if at > len(record) {
		return nil
	}
	return record[at:]
}

func (t *isoTree) list(dir *entry) ([]entry, error) {
	at := t.root
	if dir != nil {
		at = dir.extents[0]
	}
	records, err := t.records(at)
	if err != nil {
		return nil, err
	}
	var entries []entry
	continued := false
	for _, r := range records {
		name := r[33 : 33+int(r[32])]
		if len(name) == 1 && name[0] < 2 {
			continue // itself and its parent
		}
		// The extended attributes, if any, lie in front of the data.
		fragment := extent{binary.LittleEndian.Uint32(r[2:]) + uint32(r[1]), binary.LittleEndian.Uint32(r[10:])}
		if r[26] != 0 || r[27] != 0 {
			return nil, errors.New("interleaved files are not supported")
		}
		if continued && len(entries) > 0 {
			last := &entries[len(entries)-1]
			if len(last.extents) == maxExtents {
				return nil, fmt.Errorf("%w: file has too many fragments", ErrDamaged)
			}
			last.extents = append(last.extents, fragment)
			last.size += int64(fragment.size)
			continued = r[25]&0x80 != 0
			continue
		}
		e := entry{name: string(name), dir: r[25]&2 != 0, size: int64(fragment.size), extents: []extent{fragment}}
		hidden := false
		switch {
		case t.joliet:
			e.name = ucs2(name)
		case t.rock:
			if hidden, err = t.rockRidge(r, &e); err != nil {
				return nil, err
			}
		}
		if !hidden {
			entries = append(entries, e)
		}
		continued = !hidden && r[25]&0x80 != 0
	}
	return entries, nil
}

// rockRidge replaces the name with that of the NM fields, follows a relocated directory, and marks symbolic links.
// hidden is true for the directory that contains relocated directories.
func (t *isoTree) rockRidge(record []byte, e *entry) (hidden bool, err error) {
	area := systemUse(record)
	if len(area) < t.skip {
		return false, nil
	}
	area = area[t.skip:]
	var name strings.Builder
	for pass := 0; area != nil; pass++ {
		if pass == maxContinued {
			return false, fmt.Errorf("%w: loop in rock ridge continuations", ErrDamaged)
		}
		var next []byte
		for len(area) >= 4 && area[2] >= 4 && int(area[2]) <= len(area) {
			field := area[:area[2]]
			area = area[area[2]:]
			switch kind := string(field[:2]); {
			case kind == "NM" && len(field) >= 5 && field[4]&6 == 0:
				name.Write(field[5:])
			case kind == "SL":
				e.link = true
			case kind == "RE":
				hidden = true
			case kind == "CL" && len(field) >= 12:
				if err := t.relocated(e, binary.LittleEndian.Uint32(field[4:])); err != nil {
					return false, err
				}
			case kind == "CE" && len(field) >= 28:
				block, offset, size := binary.LittleEndian.Uint32(field[4:]), binary.LittleEndian.Uint32(
					field[12:],
				), binary.LittleEndian.Uint32(field[20:])
				if size > isoSector {
					return false, fmt.Errorf("%w: rock ridge continuation of %d bytes", ErrDamaged, size)
				}
				if next, err = t.in.bytes(int64(block)*t.block+int64(offset), int(size)); err != nil {
					return false, err
				}
			case kind == "ST":
				area = nil
			}
		}
		area = next
	}
	if name.Len() > 0 {
		e.name = name.String()
	}
	return hidden, nil
}

func (t *isoTree) relocated(e *entry, block uint32) error {
	// The directory's own first record knows its size.
	self, err := t.in.bytes(int64(block)*t.block, 34)
	if err != nil {
		return err
	}
	e.dir = true
	e.extents = []extent{{block, binary.LittleEndian.Uint32(self[10:])}}
	return nil
}

func (t *isoTree) read(file entry, limit int64) ([]byte, error) {
	content := make([]byte, 0, min(file.size, limit))
	for _, fragment := range file.extents {
		data, err := t.in.bytes(int64(fragment.block)*t.block, int(fragment.size))
		if err != nil {
			return nil, err
		}
		content = append(content, data...)
	}
	return content, nil
}
