package filesystem

import "encoding/binary"

// A signature is a magic string at one place of a device. A negative offset counts from the
// end of the device, rounded down to align first.
type signature struct {
	kind   Kind
	offset int64
	align  int64
	magic  string
}

// signatures lists everything by which content is told from nothing. The order is the order
// of belief: what builds upon a disk (RAID, LVM, encryption) comes before what may be found
// inside it, file systems come before partition tables, since a boot sector ends like a table.
var signatures = func() []signature {
	var s []signature
	at := func(kind Kind, magic string, offsets ...int64) {
		for _, o := range offsets {
			s = append(s, signature{kind: kind, offset: o, align: 1, magic: magic})
		}
	}
	fromEnd := func(kind Kind, magic string, align, offset int64) {
		s = append(s, signature{kind: kind, offset: -offset, align: align, magic: magic})
	}

	at(MD, "\xfc\x4e\x2b\xa9", 0, 4096)
	fromEnd(MD, "\xfc\x4e\x2b\xa9", 4096, 8192)
	fromEnd(MD, "\xfc\x4e\x2b\xa9", 64<<10, 64<<10)
	fromEnd(MD, "\xa9\x2b\x4e\xfc", 64<<10, 64<<10)
	fromEnd(RAID, "Intel Raid ISM Cfg Sig. ", 512, 1024)
	fromEnd(RAID, "\xde\x11\xde\x11", 512, 512)
	fromEnd(RAID, "\x11\xde\x11\xde", 512, 512)
	fromEnd(RAID, "\xde\x11\xde\x11", 512, 257*512)
	fromEnd(DRBD, "\x83\x74\x02\x6b", 4096, 4096-60)
	fromEnd(DRBD, "\x83\x74\x02\x6c", 4096, 4096-60)
	fromEnd(DRBD, "\x83\x74\x02\x6d", 4096, 4096-60)
	at(LVM, "LABELONE", 0, 512, 1024, 1536)
	at(LVM, "HM\x01\x00", 0)
	at(LVM, "HM\x02\x00", 0)
	at(LUKS, "LUKS\xba\xbe", 0)
	at(LUKS, "SKUL\xba\xbe", 0x4000, 0x8000, 0x10000, 0x20000, 0x40000, 0x80000, 0x100000, 0x200000, 0x400000)
	at(BitLocker, "-FVE-FS-", 3)
	at(Bcache, "\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81", 4096+24)
	at(Bcachefs, "\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef", 4096+24)
	at(Stratis, "!Stra0tis\x86\xff\x02^\x41rh", 516, 4612)
	at(VDO, "dmvdo001", 0)
	at(Integrity, "integrt\x00", 0)
	at(Verity, "verity\x00\x00", 0)
	at(Bluestore, "bluestore block device", 0)
	at(ASM, "ORCLDISK", 32)
	at(VMFS, "\x0d\xd0\x01\xc0", 1<<20)
	at(VMFS, "\x5e\xf1\xab\x2f", 2<<20)

	at(extFamily, "\x53\xef", 1024+56)
	at(XFS, "XFSB", 0)
	at(Btrfs, "_BHRfS_M", 0x10040)
	for _, page := range []int64{4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10} {
		for _, magic := range []string{"SWAPSPACE2", "SWAP-SPACE", "S1SUSPEND", "S2SUSPEND", "ULSUSPEND", "LINHIB0001"} {
			at(Swap, magic, page-10)
		}
	}
	at(Swap, "\xed\xc3\x02\xe9\x98\x56\xe5\x0c", 0) // TuxOnIce
	at(NTFS, "NTFS    ", 3)
	at(ExFAT, "EXFAT   ", 3)
	for _, magic := range []string{"FAT12   ", "FAT16   ", "FAT     ", "MSDOS"} {
		at(FAT, magic, 0x36)
	}
	at(FAT, "FAT32   ", 0x52)
	at(FAT, "MSWIN", 0x52)
	at(ISO9660, "CD001", 32769)
	at(ISO9660, "CDROM", 32777)
	for _, magic := range []string{"BEA01", "BOOT2", "CDW02", "NSR02", "NSR03", "TEA01"} {
		at(UDF, magic, 32769)
	}
	at(Squashfs, "hsqs", 0)
	at(Squashfs, "sqsh", 0)
	at(Squashfs, "qshs", 0)
	at(Cramfs, "\x45\x3d\xcd\x28", 0)
	at(Cramfs, "\x28\xcd\x3d\x45", 0)
	at(Romfs, "-rom1fs-", 0)
	at(EROFS, "\xe2\xe1\xf5\xe0", 1024)
	at(F2FS, "\x10\x20\xf5\xf2", 1024)
	at(Nilfs2, "\x34\x34", 1024+6)
	at(ReiserFS, "ReIsEr", 0x2034, 0x10034)
	at(ReiserFS, "ReIsEr4", 0x10000)
	at(JFS, "JFS1", 0x8000)
	at(HFS, "BD", 1024)
	at(HFS, "H+", 1024)
	at(HFS, "HX", 1024)
	at(APFS, "NXSB", 32)
	at(OCFS2, "OCFSV2", 1024, 2048, 4096, 8192)
	at(OCFS2, "OracleCFS", 0)
	at(GFS2, "\x01\x16\x19\x70", 65536)
	at(Zonefs, "SFOZ", 0)
	at(Minix, "\x7f\x13", 1040)
	at(Minix, "\x8f\x13", 1040)
	at(Minix, "\x68\x24", 1040)
	at(Minix, "\x78\x24", 1040)
	at(Minix, "\x5a\x4d", 1048)
	for _, base := range []int64{0, 8 << 10, 64 << 10, 256 << 10} {
		for _, magic := range []uint32{0x00011954, 0x00095014, 0x00195612, 0x05231994, 0x19540119, 0x19960408} {
			at(UFS, string(binary.LittleEndian.AppendUint32(nil, magic)), base+0x55c)
			at(UFS, string(binary.BigEndian.AppendUint32(nil, magic)), base+0x55c)
		}
	}

	at(GPT, "EFI PART", 512, 4096)
	fromEnd(GPT, "EFI PART", 512, 512)
	fromEnd(GPT, "EFI PART", 4096, 4096)
	at(SGI, "\x0b\xe5\xa9\x41", 0)
	at(BSD, "\x57\x45\x56\x82", 64, 512)
	at(Sun, "\xda\xbe", 508)
	at(Mac, "PM", 512)
	at(DOS, "\x55\xaa", 510)
	return s
}()

// zfsLabels are where the four copies of a ZFS label begin, counted from the start or, when
// negative, from the end. Each holds its uberblocks in the upper 128 KiB.
var zfsLabels = []int64{0, 256 << 10, -512 << 10, -256 << 10}

const (
	zfsRing = 128 << 10
	zfsSlot = 1 << 10
)
