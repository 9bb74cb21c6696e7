package probe

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"hash/crc64"
	"io"
	"math/bits"
)

// checks distinguish valid metadata from bytes that only look like it. at is the offset of the signature. Kinds without
// a row cannot be verified.
var checks = map[Kind]func(r io.ReaderAt, at, size int64) (bool, error){
	extFamily: func(r io.ReaderAt, _, size int64) (bool, error) { return consistentExt(r, size) },
	XFS:       func(r io.ReaderAt, _, size int64) (bool, error) { return consistentXFS(r, size) },
	MD:        checkMD,
	LVM:       checkLVM,
	LUKS:      checkLUKS,
	Bcache:    checkBcache,
}

// Consistent reports whether the device starts with an ext or xfs whose superblock and first group are consistent, and
// which fits the device.
func Consistent(r io.ReaderAt, size int64) (bool, error) {
	if ext, err := consistentExt(r, size); ext || err != nil {
		return ext, err
	}
	return consistentXFS(r, size)
}

// HasContent reports whether a device contains metadata that pass their own check, or a signature too long to be
// accidental.
func HasContent(r io.ReaderAt, size int64) (bool, error) {
	matches, err := find(r, size)
	if err != nil {
		return false, err
	}
	for _, m := range matches {
		proven := m.strong
		if check, ok := checks[m.kind]; ok {
			if proven, err = check(r, m.offset, size); err != nil {
				return false, err
			}
		}
		if proven {
			return true, nil
		}
	}
	return false, nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Feature flags and fields of ext.
const (
	extMetadataChecksum = 0x0400 // read-only compatible
	extChecksumOffset   = 0x3fc
)

// consistentExt reports whether there is an ext that the kernel would mount, judging by its superblock and first group
// descriptor, and that fits the device.
func consistentExt(r io.ReaderAt, size int64) (bool, error) {
	sb, err := readAll(r, 1024, 1024)
	if sb == nil {
		return false, err
	}
	c, ok := parseExt(sb)
	if !ok || c.Kind == JBD || c.Bytes == 0 || c.Bytes > size || !extGeometry(sb) {
		return false, nil
	}
	u32 := func(b []byte, o int) uint32 { return binary.LittleEndian.Uint32(b[o:]) }
	sum := ^crc32.Checksum(sb[:extChecksumOffset], castagnoli)
	if u32(sb, 0x64)&extMetadataChecksum != 0 && sum != u32(sb, extChecksumOffset) {
		return false, nil
	}
	block := int64(1024) << u32(sb, 0x18)
	wide := u32(sb, 0x60)&extState64Bit != 0 && binary.LittleEndian.Uint16(sb[0xfe:]) >= 64
	group, err := readAll(r, 64, (1024/block+1)*block) // in the block after the superblock
	if group == nil {
		return false, err
	}
	for _, o := range []int{0, 4, 8} { // block bitmap, inode bitmap, inode table
		at := uint64(u32(group, o))
		if wide {
			at |= uint64(u32(group, 0x20+o)) << 32
		}
		if at == 0 || at >= uint64(c.Bytes/block) {
			return false, nil
		}
	}
	return true, nil
}

// extGeometry reports whether the fields of a superblock are consistent. It does not check the magic.
func extGeometry(sb []byte) bool {
	u32 := func(o int) uint64 { return uint64(binary.LittleEndian.Uint32(sb[o:])) }
	blocks, first, shift := u32(0x4), u32(0x14), u32(0x18)
	if u32(0x60)&extState64Bit != 0 {
		blocks |= u32(0x150) << 32
	}
	clusterShift, perGroup, inodes := u32(0x1c), u32(0x20), u32(0x28)
	if shift > 6 || clusterShift < shift || clusterShift > 20 || first > 1 || blocks <= first || blocks > 1<<46 {
		return false
	}
	bitmap := uint64(8<<10) << shift // the bits of one block
	if perGroup == 0 || perGroup > bitmap<<(clusterShift-shift) || inodes == 0 || inodes > bitmap {
		return false
	}
	return u32(0) == (blocks-first+perGroup-1)/perGroup*inodes
}

// consistentXFS reports whether there is an xfs that the kernel would mount, judging by its superblock and the headers
// of its first allocation group, and that fits the device.
func consistentXFS(r io.ReaderAt, size int64) (bool, error) {
	sb, err := readAll(r, 512, 0)
	if sb == nil {
		return false, err
	}
	c, ok := parseXFS(sb)
	if !ok || c.Incomplete || c.Bytes > size || !xfsGeometry(sb) {
		return false, nil
	}
	sector := int64(binary.BigEndian.Uint16(sb[102:]))
	head, err := readAll(r, int(3*sector), 0)
	if head == nil {
		return false, err
	}
	const checksum = 224
	if sb[101]&0xf == 5 {
		want := binary.LittleEndian.Uint32(head[checksum:])
		clear(head[checksum : checksum+4])
		if crc32.Checksum(head[:sector], castagnoli) != want {
			return false, nil
		}
	}
	for i, magic := range []string{"XAGF", "XAGI"} {
		header := head[int64(i+1)*sector:]
		if string(header[:4]) != magic || binary.BigEndian.Uint32(header[8:]) != 0 {
			return false, nil
		}
	}
	return true, nil
}

// xfsGeometry reports whether the fields of a superblock are consistent. It does not check the magic.
func xfsGeometry(sb []byte) bool {
	u16 := func(o int) uint32 { return uint32(binary.BigEndian.Uint16(sb[o:])) }
	u32 := func(o int) uint32 { return binary.BigEndian.Uint32(sb[o:]) }
	power := func(n uint32, log byte, least, most byte) bool { return log >= least && log <= most && n == 1<<log }
	// The sizes of blocks, sectors and inodes, and their logarithms.
	if !power(u32(4), sb[120], 9, 16) || !power(u16(102), sb[121], 9, 15) || !power(u16(104), sb[122], 8, 11) {
		return false
	}
	blocks, perGroup, groups := binary.BigEndian.Uint64(sb[8:]), uint64(u32(84)), uint64(u32(88))
	return groups > 0 && perGroup > 0 && blocks <= groups*perGroup && blocks > (groups-1)*perGroup
}

// checkMD checks a version 1 superblock like the kernel: its own location and its checksum.
func checkMD(r io.ReaderAt, at, _ int64) (bool, error) {
	const fixed, sum = 256, 216
	sb, err := readAll(r, 4096, at)
	if sb == nil {
		return false, err
	}
	u32 := func(o int) uint32 { return binary.LittleEndian.Uint32(sb[o:]) }
	length := fixed + 2*int(min(u32(220), (4096-fixed)/2))
	if u32(4) != 1 || binary.LittleEndian.Uint64(sb[144:]) != uint64(at/512) {
		return false, nil
	}
	want, total := u32(sum), uint64(0)
	clear(sb[sum : sum+4])
	clear(sb[length:])
	for o := 0; o < length; o += 4 {
		total += uint64(u32(o))
	}
	return uint32(total)+uint32(total>>32) == want, nil
}

// checkLVM checks a label like LVM: its own sector and its checksum.
func checkLVM(r io.ReaderAt, at, _ int64) (bool, error) {
	const sum, summed, initial = 16, 20, 0xf597a6cf
	label, err := readAll(r, 512, at)
	if label == nil {
		return false, err
	}
	return binary.LittleEndian.Uint64(label[8:]) == uint64(at/512) &&
		^crc32.Update(^uint32(initial), crc32.IEEETable, label[summed:]) == binary.LittleEndian.Uint32(label[sum:]), nil
}

// checkLUKS checks the digest of a version 2 header. Version 1 has no digest, so it checks the fields.
func checkLUKS(r io.ReaderAt, at, size int64) (bool, error) {
	const length, most, sum = 4096, 4 << 20, 448
	header, err := readAll(r, length, at)
	if header == nil {
		return false, err
	}
	u32 := func(o int) int64 { return int64(binary.BigEndian.Uint32(header[o:])) }
	switch version, bytes64 := binary.BigEndian.Uint16(header[6:]), binary.BigEndian.Uint64(header[8:]); {
	case version == 1:
		return at == 0 && u32(104) > 0 && u32(104)*512 < size && u32(108) > 0 && u32(108) <= 512, nil
	case version != 2 || bytes64 < length || bytes64 > most || binary.BigEndian.Uint64(header[256:]) != uint64(at):
		return false, nil
	case cString(header[72:104]) != "sha256":
		return true, nil // no released cryptsetup writes another digest
	default:
		if header, err = readAll(r, int(bytes64), at); header == nil {
			return false, err
		}
	}
	want := bytes.Clone(header[sum : sum+sha256.Size])
	clear(header[sum : sum+64])
	got := sha256.Sum256(header)
	return bytes.Equal(got[:], want), nil
}

// checkBcache checks a superblock like the kernel: its own location and its checksum.
func checkBcache(r io.ReaderAt, at, _ int64) (bool, error) {
	const magicOffset, summed, keys, fixed = 24, 8, 206, 208
	at -= magicOffset
	sb, err := readAll(r, 4096, at)
	if sb == nil {
		return false, err
	}
	length := fixed + 8*int(binary.LittleEndian.Uint16(sb[keys:]))
	if length > len(sb) || binary.LittleEndian.Uint64(sb[8:]) != uint64(at/512) {
		return false, nil
	}
	// CRC-64/WE: the polynomial of crc64.ECMA, with the most significant bit first.
	for i := range sb {
		sb[i] = bits.Reverse8(sb[i])
	}
	want := bits.Reverse64(crc64.Checksum(sb[summed:length], crc64.MakeTable(crc64.ECMA)))
	stored := make([]byte, 8)
	for i := range stored {
		stored[i] = bits.Reverse8(sb[i])
	}
	return want == binary.LittleEndian.Uint64(stored), nil
}

// readAll reads n bytes at an offset. It returns nil without an error if the device is too small.
func readAll(r io.ReaderAt, n int, at int64) ([]byte, error) {
	b := make([]byte, n)
	err := ReadFull(r, b, at)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return b, nil
}
