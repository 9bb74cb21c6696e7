package probe

import (
	"encoding/binary"
	"slices"
)

// A signature is a magic string at one place of a device. A negative offset counts from the
// end of the device, rounded down to align first.
type signature struct {
	kind   Kind
	offset int64
	align  int64
	magic  string
}

// signatures lists the known magic numbers in the order of precedence: layers that are built upon a
// disk (RAID, LVM, encryption) come before what may be found inside them, file systems before
// partition tables, since a boot sector ends like a table.
var signatures = slices.Concat(layerSignatures(), fileSystemSignatures(), tableSignatures())

// places collects signatures.
type places []signature

func (p *places) at(kind Kind, magic string, offsets ...int64) {
	for _, o := range offsets {
		*p = append(*p, signature{kind: kind, offset: o, align: 1, magic: magic})
	}
}

func (p *places) fromEnd(kind Kind, magic string, align, offset int64) {
	*p = append(*p, signature{kind: kind, offset: -offset, align: align, magic: magic})
}

// layerSignatures are of what builds upon a disk.
func layerSignatures() (s places) {
	s.at(MD, "\xfc\x4e\x2b\xa9", 0, 4096)
	s.fromEnd(MD, "\xfc\x4e\x2b\xa9", 4096, 8192)
	s.fromEnd(MD, "\xfc\x4e\x2b\xa9", 64<<10, 64<<10)
	s.fromEnd(MD, "\xa9\x2b\x4e\xfc", 64<<10, 64<<10)
	s.fromEnd(RAID, "Intel Raid ISM Cfg Sig. ", 512, 1024)
	s.fromEnd(RAID, "\xde\x11\xde\x11", 512, 512)
	s.fromEnd(RAID, "\x11\xde\x11\xde", 512, 512)
	s.fromEnd(RAID, "\xde\x11\xde\x11", 512, 257*512)
	s.fromEnd(DRBD, "\x83\x74\x02\x6b", 4096, 4096-60)
	s.fromEnd(DRBD, "\x83\x74\x02\x6c", 4096, 4096-60)
	s.fromEnd(DRBD, "\x83\x74\x02\x6d", 4096, 4096-60)
	s.at(DRBD, "\x1bDRBDdlh*", 16)
	s.at(LVM, "LABELONE", 0, 512, 1024, 1536)
	s.at(LVM, "HM\x01\x00", 0)
	s.at(LVM, "HM\x02\x00", 0)
	s.at(LUKS, "LUKS\xba\xbe", 0)
	s.at(LUKS, "SKUL\xba\xbe", 0x4000, 0x8000, 0x10000, 0x20000, 0x40000, 0x80000, 0x100000, 0x200000, 0x400000)
	s.at(BitLocker, "-FVE-FS-", 3)
	s.at(Bcache, "\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81", 4096+24)
	s.at(Bcachefs, "\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef", 4096+24)
	s.at(Stratis, "!Stra0tis\x86\xff\x02^\x41rh", 516, 4612)
	s.at(VDO, "dmvdo001", 0)
	s.at(Integrity, "integrt\x00", 0)
	s.at(Verity, "verity\x00\x00", 0)
	s.at(Bluestore, "bluestore block device", 0)
	s.at(ASM, "ORCLDISK", 32)
	s.at(VMFS, "\x0d\xd0\x01\xc0", 1<<20)
	s.at(VMFS, "\x5e\xf1\xab\x2f", 2<<20)
	s.at(Snapshot, "SnAp", 0)
	s.at(UBI, "UBI#", 0)
	s.fromEnd(RAID, "\x37\xfc\x4d\x1e", 512, 512)      // Adaptec
	s.fromEnd(RAID, "$XIDE$", 512, 512)                // LSI
	s.fromEnd(RAID, "NVIDIA", 512, 1024)               // nForce
	s.fromEnd(RAID, "\x00\x00\x00\x2f", 512, 512-0x60) // Silicon Image
	s.at(RAID, "\xf0\x16\x78\x5a", 4608+32)            // HighPoint 37x
	s.at(RAID, "\xfd\x16\x78\x5a", 4608+32)
	s.fromEnd(RAID, "\xf3\x16\x78\x5a", 512, 11*512) // HighPoint 45x
	s.fromEnd(RAID, "\xfd\x16\x78\x5a", 512, 11*512)
	for _, sectors := range []int64{63, 255, 256, 16, 399, 591, 675, 735, 911, 974, 991, 951, 3087} {
		s.fromEnd(RAID, "Promise Technology, Inc.", 512, sectors*512)
	}
	return s
}

// fileSystemSignatures are of file systems and swap.
func fileSystemSignatures() (s places) {
	s.at(extFamily, extMagic, 1024+56)
	s.at(XFS, xfsMagic, 0)
	s.at(Btrfs, "_BHRfS_M", 0x10040)
	for _, page := range []int64{4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10} {
		for _, magic := range []string{"SWAPSPACE2", "SWAP-SPACE", "S1SUSPEND", "S2SUSPEND", "ULSUSPEND",
			"LINHIB0001"} {
			s.at(Swap, magic, page-10)
		}
	}
	s.at(Swap, "\xed\xc3\x02\xe9\x98\x56\xe5\x0c", 0) // TuxOnIce
	s.at(NTFS, "NTFS    ", 3)
	s.at(ExFAT, "EXFAT   ", 3)
	for _, magic := range []string{"FAT12   ", "FAT16   ", "FAT     ", "MSDOS"} {
		s.at(FAT, magic, 0x36)
	}
	s.at(FAT, "FAT32   ", 0x52)
	s.at(FAT, "MSWIN", 0x52)
	s.at(ISO9660, "CD001", 32769)
	s.at(ISO9660, "CDROM", 32777)
	for _, magic := range []string{"BEA01", "BOOT2", "CDW02", "NSR02", "NSR03", "TEA01"} {
		s.at(UDF, magic, 32769)
	}
	s.at(Squashfs, "hsqs", 0)
	s.at(Squashfs, "sqsh", 0)
	s.at(Squashfs, "qshs", 0)
	s.at(Cramfs, "\x45\x3d\xcd\x28", 0)
	s.at(Cramfs, "\x28\xcd\x3d\x45", 0)
	s.at(Romfs, "-rom1fs-", 0)
	s.at(EROFS, "\xe2\xe1\xf5\xe0", 1024)
	s.at(F2FS, "\x10\x20\xf5\xf2", 1024)
	s.at(Nilfs2, "\x34\x34", 1024+6)
	s.at(ReiserFS, "ReIsEr", 0x2034, 0x10034)
	s.at(ReiserFS, "ReIsEr4", 0x10000)
	s.at(JFS, "JFS1", 0x8000)
	s.at(HFS, "BD", 1024)
	s.at(HFS, "H+", 1024)
	s.at(HFS, "HX", 1024)
	s.at(APFS, "NXSB", 32)
	s.at(OCFS2, "OCFSV2", 1024, 2048, 4096, 8192)
	s.at(OCFS2, "OracleCFS", 0)
	s.at(GFS2, "\x01\x16\x19\x70", 65536)
	s.at(Zonefs, "SFOZ", 0)
	s.at(ReFS, "\x00\x00\x00ReFS\x00", 0)
	s.at(VxFS, "\xf5\xfc\x01\xa5", 1024)
	s.at(VxFS, "\xa5\x01\xfc\xf5", 8192)
	s.at(UBIFS, "\x31\x18\x10\x06", 0)
	s.at(HPFS, "\x49\xe8\x95\xf9", 8192)
	s.at(BeFS, "1SFB", 32, 512+32)
	s.at(BeFS, "BFS1", 32, 512+32)
	s.at(NSS, "SPB5", 4096)
	s.at(EXFS, "EXFS", 0)
	s.at(XFSLog, "\xfe\xed\xba\xbe", 0)
	s.at(Minix, "\x7f\x13", 1040)
	s.at(Minix, "\x8f\x13", 1040)
	s.at(Minix, "\x68\x24", 1040)
	s.at(Minix, "\x78\x24", 1040)
	s.at(Minix, "\x5a\x4d", 1048)
	for _, base := range []int64{0, 8 << 10, 64 << 10, 256 << 10} {
		for _, magic := range []uint32{0x00011954, 0x00095014, 0x00195612, 0x05231994, 0x19540119, 0x19960408} {
			s.at(UFS, string(binary.LittleEndian.AppendUint32(nil, magic)), base+0x55c)
			s.at(UFS, string(binary.BigEndian.AppendUint32(nil, magic)), base+0x55c)
		}
	}
	return s
}

// tableSignatures are of partition tables.
func tableSignatures() (s places) {
	s.at(GPT, "EFI PART", 512, 4096)
	s.fromEnd(GPT, "EFI PART", 512, 512)
	s.fromEnd(GPT, "EFI PART", 4096, 4096)
	s.at(SGI, "\x0b\xe5\xa9\x41", 0)
	s.at(BSD, "\x57\x45\x56\x82", 64, 512)
	s.at(Sun, "\xda\xbe", 508)
	s.at(Mac, "PM", 512)
	s.at(DOS, "\x55\xaa", 510)
	return s
}

// zfsLabels are where the four copies of a ZFS label begin, counted from the start or, when
// negative, from the end. Each holds its uberblocks in the upper 128 KiB.
var zfsLabels = []int64{0, 256 << 10, -512 << 10, -256 << 10}

const (
	zfsRing = 128 << 10
	zfsSlot = 1 << 10
)
