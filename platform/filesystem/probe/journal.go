package probe

import (
	"encoding/binary"
	"io"
)

// ExtJournal reports whether the journal of an ext has to be replayed.
func ExtJournal(r io.ReaderAt) (bool, error) {
	const recover = 0x0004
	var features [4]byte
	err := ReadFull(r, features[:], 1024+0x60)
	return binary.LittleEndian.Uint32(features[:])&recover != 0, err
}

// xfsLogHead is the size of the part of an xfs log that is read. It is larger than the record that mkfs writes.
const xfsLogHead = 1 << 20

// XFSJournal reports whether the log of an xfs was ever used, and may have to be replayed. To be sure, one would have
// to search the log for its end. mkfs writes a single record at its beginning.
func XFSJournal(r io.ReaderAt) (bool, error) {
	const record = 0xfeedbabe
	var sb [512]byte
	if err := ReadFull(r, sb[:], 0); err != nil {
		return false, err
	}
	block, perGroup := int64(binary.BigEndian.Uint32(sb[4:])), int64(binary.BigEndian.Uint32(sb[84:]))
	at, bits := int64(binary.BigEndian.Uint64(sb[48:])), sb[124]
	length := min(int64(binary.BigEndian.Uint32(sb[96:]))*block, xfsLogHead)
	if at == 0 { // the log is on another device
		return true, nil
	}
	head := make([]byte, length)
	if err := ReadFull(r, head, (at>>bits*perGroup+at&(1<<bits-1))*block); err != nil {
		return false, err
	}
	for o := 512; o < len(head); o += 512 {
		if binary.BigEndian.Uint32(head[o:]) == record {
			return true, nil
		}
	}
	return false, nil
}
