// Package probe identifies the content of a device from its bytes: signatures, superblocks and their consistency, or
// that it is blank. It opens no devices or files; callers pass readers, and a writer to Wipe.
//
// Format, consistency checks and backup superblocks are one package because none can be judged without the others.
package probe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"slices"
	"strings"
)

// Kind names the content of a device.
type Kind string

// Kinds that the agent handles.
const (
	Blank   Kind = "blank"   // no known signature at any of its offsets
	Unknown Kind = "unknown" // a signature with an invalid superblock
	Ext2    Kind = "ext2"
	Ext3    Kind = "ext3"
	Ext4    Kind = "ext4"
	XFS     Kind = "xfs"
	Swap    Kind = "swap"
	GPT     Kind = "gpt"
	DOS     Kind = "dos"
)

// Kinds that refusals name, or that are mounted if disks come formatted. Anything else counts as data of unknown kind.
const (
	Btrfs    Kind = "btrfs"
	LVM      Kind = "LVM physical volume"
	LUKS     Kind = "LUKS"
	MD       Kind = "md RAID member"
	RAID     Kind = "firmware RAID member"
	DRBD     Kind = "DRBD"
	NTFS     Kind = "NTFS"
	ExFAT    Kind = "exFAT"
	FAT      Kind = "FAT"
	ISO9660  Kind = "ISO 9660"
	Bcache   Kind = "bcache"
	F2FS     Kind = "f2fs"
	ReiserFS Kind = "reiserfs"
	JFS      Kind = "jfs"
	OCFS2    Kind = "ocfs2"
	GFS2     Kind = "gfs2"
	JBD      Kind = "ext journal device"

	extFamily Kind = "ext"
)

// Content describes the signatures found on a device.
type Content struct {
	Kind  Kind
	Also  []Kind // further signatures, of lower precedence than Kind
	Label string
	UUID  string
	// Bytes is the size of the file system according to its superblock, if known.
	Bytes int64
	// Errors is set if the file system has recorded errors.
	Errors bool
	// NeverMounted is set if the superblock shows that the file system was never mounted.
	NeverMounted bool
	// Incomplete is set if the superblock shows that the file system was not created completely.
	Incomplete bool
}

// Blank reports whether no known signature was found.
func (c Content) Blank() bool { return c.Kind == Blank }

// Data reports whether there is a managed file system and no other signature that may be the real owner of the device.
func (c Content) Data() bool {
	if !c.Kind.Managed() {
		return false
	}
	for _, k := range c.Also {
		// A boot sector may end like a partition table. Any other signature makes the result ambiguous.
		if k != DOS {
			return false
		}
	}
	return true
}

func (c Content) String() string {
	var b strings.Builder
	b.WriteString(string(c.Kind))
	if c.Label != "" {
		fmt.Fprintf(&b, " %q", c.Label)
	}
	for _, k := range c.Also {
		fmt.Fprintf(&b, " and %s", k)
	}
	return b.String()
}

// Identify searches all offsets of known signatures. A read error is returned, and never counts as blank.
func Identify(r io.ReaderAt, size int64) (Content, error) {
	matches, err := find(r, size)
	if err != nil {
		return Content{}, err
	}
	return describe(matches, r)
}

// match is a signature found on a device.
type match struct {
	kind   Kind
	offset int64
	// strong is set if the signature is too long to be accidental in random data.
	strong bool
}

// describe returns the content of a device from its signatures.
func describe(matches []match, r io.ReaderAt) (Content, error) {
	if len(matches) == 0 {
		return Content{Kind: Blank}, nil
	}
	c := Content{Kind: matches[0].kind}
	for _, m := range matches[1:] {
		if m.kind != c.Kind && !slices.Contains(c.Also, m.kind) {
			c.Also = append(c.Also, m.kind)
		}
	}
	if read, ok := readers[c.Kind]; ok {
		return c, read(&c, r)
	}
	return c, nil
}

// readers parse the superblocks of kinds for which the signature is not enough.
var readers = map[Kind]func(*Content, io.ReaderAt) error{
	extFamily: (*Content).readExt,
	XFS:       (*Content).readXFS,
	Swap:      (*Content).readSwap,
}

// find returns the signatures on a device, in order of precedence.
func find(r io.ReaderAt, size int64) (matches []match, err error) {
	for _, s := range signatures {
		offset, found, err := s.find(r, size)
		if err != nil {
			return nil, err
		}
		if found {
			matches = append(matches, match{s.kind, offset, len(s.magic) >= strongMagic})
		}
	}
	return ownContent(matches, r, size)
}

// strongMagic is the minimum length of a signature that is not accidental.
const strongMagic = 4

// ownHead is the size of the area at the beginning of ext4 and xfs which contains their own metadata, and in which a
// RAID, LVM or encryption header written later is visible. After it, files may contain any bytes.
const ownHead = 64 << 10

// ownContent removes the signatures that are content of a file system. In a consistent file system, these are all
// signatures, except for metadata in its head that pass their own check. In one with only a valid superblock, they are
// those after its head. RAID metadata at the end of a device is outside the file system.
func ownContent(matches []match, r io.ReaderAt, size int64) ([]match, error) {
	var valid, consistent int64 // sizes in bytes
	proven := map[match]bool{}
	for _, m := range matches {
		var err error
		if check, ok := checks[m.kind]; ok && m.offset < ownHead {
			if proven[m], err = check(r, m.offset, size); err != nil {
				return nil, err
			}
		}
		if m.kind != extFamily && m.kind != XFS {
			continue
		}
		var c Content
		if err := readers[m.kind](&c, r); err != nil {
			return nil, err
		}
		if c.Kind != Unknown && c.Bytes <= size {
			valid = max(valid, c.Bytes)
		}
		if proven[m] {
			consistent = max(consistent, c.Bytes)
		}
	}
	return slices.DeleteFunc(matches, func(m match) bool {
		return m.offset >= ownHead && m.offset < valid || m.offset < consistent && !proven[m]
	}), nil
}

// ReadFull reads all of b at an offset, or returns an error, even if the device ends early.
func ReadFull(r io.ReaderAt, b []byte, offset int64) error {
	n, err := r.ReadAt(b, offset)
	if n == len(b) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read %d bytes at %d: %w", len(b), offset, err)
}

// Feature sets that distinguish the ext generations, as libblkid does.
const (
	extHasJournal    = 0x0004
	extJournalDevice = 0x0008
	ext2Incompatible = 0x0002 | 0x0010          // filetype, meta_bg
	ext3Incompatible = ext2Incompatible | 0x004 // recover
	ext3ReadOnly     = 0x0001 | 0x0002 | 0x0004 // sparse_super, large_file, btree_dir
	extState64Bit    = 0x0080
	extStateErrors   = 0x0002
)

const (
	extMagic = "\x53\xef"
	xfsMagic = "XFSB"
)

// ReadExt reads the superblock of an ext without looking for other signatures, for a mounted file system.
func ReadExt(r io.ReaderAt) (c Content, err error) { return c, c.readExt(r) }

func (c *Content) readExt(r io.ReaderAt) error {
	var sb [1024]byte
	return c.readSuperblock(r, sb[:], 1024, parseExt)
}

func (c *Content) readXFS(r io.ReaderAt) error {
	var sb [512]byte
	return c.readSuperblock(r, sb[:], 0, parseXFS)
}

// HalfGrown reports whether an xfs has superblocks with different sizes: a power cut has interrupted its growth, and
// xfs_repair would believe the copies. It reads one sector of each allocation group.
func HalfGrown(r io.ReaderAt) (bool, error) {
	var sb, other [512]byte
	if err := ReadFull(r, sb[:], 0); err != nil {
		return false, err
	}
	c, ok := parseXFS(sb[:])
	if !ok || !xfsGeometry(sb[:]) {
		return false, nil
	}
	u32 := func(o int) int64 { return int64(binary.BigEndian.Uint32(sb[o:])) }
	group, groups := u32(4)*u32(84), u32(88)
	for n := int64(1); n < groups && group >= smallestXFSGroup; n++ {
		if err := ReadFull(r, other[:], n*group); errors.Is(err, io.ErrUnexpectedEOF) {
			return false, nil // the file system exceeds its device
		} else if err != nil {
			return false, err
		}
		if found, ok := parseXFS(other[:]); ok && found.UUID == c.UUID && found.Bytes != c.Bytes {
			return true, nil
		}
	}
	return false, nil
}

// smallestXFSGroup is the kernel's minimum. It bounds the number of superblocks to read.
const smallestXFSGroup = 16 << 20

// readSuperblock parses a superblock. The kind is Unknown if it is invalid or the device too small.
func (c *Content) readSuperblock(r io.ReaderAt, sb []byte, offset int64, parse func([]byte) (Content, bool)) error {
	err := ReadFull(r, sb, offset)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	also := c.Also
	ok := false
	if err == nil {
		*c, ok = parse(sb)
	}
	if !ok {
		*c = Content{Kind: Unknown}
	}
	c.Also = also
	return nil
}

// parseExt parses a superblock of ext2, ext3 or ext4, or a backup.
func parseExt(sb []byte) (c Content, ok bool) {
	u16 := func(o int) uint16 { return binary.LittleEndian.Uint16(sb[o:]) }
	u32 := func(o int) uint32 { return binary.LittleEndian.Uint32(sb[o:]) }
	shift := u32(0x18)
	if string(sb[56:58]) != extMagic || shift > 6 || u32(0x4) == 0 {
		return c, false
	}
	compatible, incompatible, readOnly := u32(0x5c), u32(0x60), u32(0x64)
	switch {
	case incompatible&extJournalDevice != 0:
		c.Kind = JBD
	case incompatible&^uint32(ext3Incompatible) != 0 || readOnly&^uint32(ext3ReadOnly) != 0:
		c.Kind = Ext4
	case compatible&extHasJournal != 0:
		c.Kind = Ext3
	default:
		c.Kind = Ext2
	}
	blocks := uint64(u32(0x4))
	if incompatible&extState64Bit != 0 {
		blocks |= uint64(u32(0x150)) << 32
	}
	if blocks < 1<<46 {
		c.Bytes = int64(blocks << (10 + shift))
	}
	c.Label = cString(sb[0x78:0x88])
	c.UUID = formatUUID(sb[0x68:0x78])
	c.Errors = u16(0x3a)&extStateErrors != 0 || u32(0x194) != 0
	c.NeverMounted = sb[0x274] == 0 && u32(0x2c) == 0 && u16(0x34) == 0 // time of the last mount, number of mounts
	return c, true
}

// parseXFS parses a superblock of xfs, of any allocation group.
func parseXFS(sb []byte) (c Content, ok bool) {
	block, blocks := binary.BigEndian.Uint32(sb[4:]), binary.BigEndian.Uint64(sb[8:])
	if string(sb[:4]) != xfsMagic || block < 512 || block > 64<<10 || bits.OnesCount32(block) != 1 || blocks == 0 ||
		blocks > 1<<46 {
		return c, false
	}
	return Content{Kind: XFS, Bytes: int64(blocks) * int64(block), Label: cString(sb[108:120]),
		UUID: formatUUID(sb[32:48]), Incomplete: sb[126] != 0}, true
}

func (c *Content) readSwap(r io.ReaderAt) error {
	var h [512]byte
	if err := ReadFull(r, h[:], 1024); err != nil {
		return err
	}
	c.UUID = formatUUID(h[12:28])
	c.Label = cString(h[28:44])
	return nil
}

func cString(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	return strings.ToValidUTF8(s, "?")
}

func formatUUID(b []byte) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:16])
}
