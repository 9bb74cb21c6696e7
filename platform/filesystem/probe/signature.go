package probe

import (
	"io"
	"slices"
)

// signature is a magic string at an offset of a device. A negative offset counts from the end, which is first rounded
// down to a multiple of align.
type signature struct {
	kind   Kind
	offset int64
	align  int64
	magic  string
}

// find looks for the signature on a device, and returns its offset.
func (s signature) find(r io.ReaderAt, size int64) (offset int64, found bool, err error) {
	offset = s.offset
	if offset < 0 {
		offset += size / s.align * s.align
	}
	if offset < 0 || offset+int64(len(s.magic)) > size {
		return offset, false, nil
	}
	b := make([]byte, len(s.magic))
	err = ReadFull(r, b, offset)
	return offset, string(b) == s.magic, err
}

// signatures lists the known signatures in order of precedence: layers on a disk (RAID, LVM, encryption), then file
// systems, then partition tables, since a boot sector ends like a table. These are the kinds that the agent handles,
// that can be verified, or that Linux mounts. Anything else makes a disk not blank, too, but has no name.
var signatures = slices.Concat(layerSignatures(), fileSystemSignatures(), tableSignatures())

// places collects signatures.
type places []signature

func (p *places) addAt(kind Kind, magic string, offsets ...int64) {
	for _, o := range offsets {
		*p = append(*p, signature{kind: kind, offset: o, align: 1, magic: magic})
	}
}

func (p *places) addFromEnd(kind Kind, magic string, align, offset int64) {
	*p = append(*p, signature{kind: kind, offset: -offset, align: align, magic: magic})
}

// layerSignatures returns those of RAID, LVM, encryption and other layers.
func layerSignatures() (s places) {
	s.addAt(MD, "\xfc\x4e\x2b\xa9", 0, 4096)
	s.addFromEnd(MD, "\xfc\x4e\x2b\xa9", 4096, 8192)
	s.addFromEnd(MD, "\xfc\x4e\x2b\xa9", 64<<10, 64<<10)
	s.addFromEnd(MD, "\xa9\x2b\x4e\xfc", 64<<10, 64<<10)
	s.addFromEnd(RAID, "Intel Raid ISM Cfg Sig. ", 512, 1024)
	s.addFromEnd(RAID, "\xde\x11\xde\x11", 512, 512)
	s.addFromEnd(RAID, "\x11\xde\x11\xde", 512, 512)
	s.addFromEnd(RAID, "\xde\x11\xde\x11", 512, 257*512)
	s.addFromEnd(DRBD, "\x83\x74\x02\x6b", 4096, 4096-60)
	s.addFromEnd(DRBD, "\x83\x74\x02\x6c", 4096, 4096-60)
	s.addFromEnd(DRBD, "\x83\x74\x02\x6d", 4096, 4096-60)
	s.addAt(DRBD, "\x1bDRBDdlh*", 16)
	s.addAt(LVM, "LABELONE", 0, 512, 1024, 1536)
	s.addAt(LUKS, "LUKS\xba\xbe", 0)
	s.addAt(LUKS, "SKUL\xba\xbe", 0x4000, 0x8000, 0x10000, 0x20000, 0x40000, 0x80000, 0x100000, 0x200000, 0x400000)
	s.addAt(Bcache, "\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81", 4096+24)
	s.addFromEnd(RAID, "\x37\xfc\x4d\x1e", 512, 512) // Adaptec
	s.addFromEnd(RAID, "$XIDE$", 512, 512)           // LSI
	s.addFromEnd(RAID, "NVIDIA", 512, 1024)          // nForce
	return s
}

// fileSystemSignatures returns those of file systems and swap.
func fileSystemSignatures() (s places) {
	s.addAt(extFamily, extMagic, 1024+56)
	s.addAt(XFS, xfsMagic, 0)
	s.addAt(Btrfs, "_BHRfS_M", 0x10040)
	for _, page := range []int64{4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10} {
		s.addAt(Swap, "SWAPSPACE2", page-10)
	}
	s.addAt(NTFS, "NTFS    ", 3)
	s.addAt(ExFAT, "EXFAT   ", 3)
	for _, magic := range []string{"FAT12   ", "FAT16   ", "FAT     ", "MSDOS"} {
		s.addAt(FAT, magic, 0x36)
	}
	s.addAt(FAT, "FAT32   ", 0x52)
	s.addAt(FAT, "MSWIN", 0x52)
	s.addAt(ISO9660, "CD001", 32769)
	s.addAt(F2FS, "\x10\x20\xf5\xf2", 1024)
	s.addAt(ReiserFS, "ReIsEr", 0x2034, 0x10034)
	s.addAt(ReiserFS, "ReIsEr4", 0x10000)
	s.addAt(JFS, "JFS1", 0x8000)
	s.addAt(OCFS2, "OCFSV2", 1024, 2048, 4096, 8192)
	s.addAt(GFS2, "\x01\x16\x19\x70", 65536)
	return s
}

// tableSignatures returns those of partition tables.
func tableSignatures() (s places) {
	s.addAt(GPT, "EFI PART", 512, 4096)
	s.addFromEnd(GPT, "EFI PART", 512, 512)
	s.addFromEnd(GPT, "EFI PART", 4096, 4096)
	s.addAt(DOS, "\x55\xaa", 510)
	return s
}
