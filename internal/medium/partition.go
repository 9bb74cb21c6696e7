package medium

import "encoding/binary"

type span struct{ start, size int64 }

// partitions returns the positions of at most maxPartitions partitions in an MBR or GPT, and none if the table is
// damaged or unknown. It checks neither the backup table nor checksums, because each volume is checked anyway.
func partitions(in *guarded) []span {
	const sector = 512
	mbr, err := in.bytes(0, sector)
	if err != nil || mbr[510] != 0x55 || mbr[511] != 0xaa {
		return nil
	}
	var found []span
	add := func(first, count uint64) {
		const most = 1 << 40 // sectors; keeps the products below in range
		if first == 0 || count == 0 || first > most || count > most || len(found) == maxPartitions {
			return
		}
		if p := (span{int64(first) * sector, int64(count) * sector}); p.start+p.size <= in.size {
			found = append(found, p)
		}
	}
	for i := range 4 {
		e := mbr[446+16*i:]
		switch kind := e[4]; kind {
		case 0x00, 0x05, 0x0f, 0x85: // empty; extended partitions are not looked into
		case 0xee:
			return gptPartitions(in, add, &found)
		default:
			add(uint64(binary.LittleEndian.Uint32(e[8:])), uint64(binary.LittleEndian.Uint32(e[12:])))
		}
	}
	return found
}

func gptPartitions(in *guarded, add func(first, count uint64), found *[]span) []span {
	const sector = 512
	header, err := in.bytes(sector, sector)
	if err != nil || string(header[:8]) != "EFI PART" {
		return *found
	}
	table := binary.LittleEndian.Uint64(header[72:])
	count, size := binary.LittleEndian.Uint32(header[80:]), binary.LittleEndian.Uint32(header[84:])
	if size < 128 || size > 4096 || table > 1<<32 {
		return *found
	}
	for i := range min(count, 128) {
		e, err := in.bytes(int64(table)*sector+int64(i)*int64(size), 48)
		if err != nil {
			break
		}
		first, last := binary.LittleEndian.Uint64(e[32:]), binary.LittleEndian.Uint64(e[40:])
		if last >= first {
			add(first, last-first+1)
		}
	}
	return *found
}
