//go:build linux

package replay

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"cambium/lab/fusetest"
)

// The format of dm-log-writes, which QEMU's blklogwrites also uses. A superblock of one sector is followed by entries
// of one sector each, with their data. All numbers are little-endian.
const (
	logMagic   = 0x6a736677736872
	logVersion = 1

	logFlush   = 1 << 0
	logDiscard = 1 << 2
)

type logSuper struct {
	Magic, Version, Entries uint64
	SectorSize              uint32
}

// logEntry is an entry. Its numbers are in sectors. Unless it is a discard, that many sectors of data follow.
type logEntry struct{ Sector, Sectors, Flags, DataLength uint64 }

// logged is an entry with the length of the log up to its end.
type logged struct {
	Entry
	end int64
}

// readLog reads a disk's log up to length. It ignores the number of entries in the superblock, which is only written at
// flushes and so is wrong for a killed machine.
func readLog(log io.ReaderAt, disk byte, length int64) (all []logged, err error) {
	at := func(offset int64, to any) error {
		return binary.Read(io.NewSectionReader(log, offset, int64(binary.Size(to))), binary.LittleEndian, to)
	}
	var super logSuper
	if err := at(0, &super); err != nil {
		return nil, fmt.Errorf("superblock: %w", err)
	}
	if super.Magic != logMagic || super.Version != logVersion || super.SectorSize < 512 {
		return nil, fmt.Errorf("superblock: magic %#x, version %d, sectors of %d bytes", super.Magic, super.Version,
			super.SectorSize)
	}
	sector := int64(super.SectorSize)
	for next := sector; next+sector <= length; {
		var l logEntry
		if err := at(next, &l); err != nil {
			return nil, fmt.Errorf("entry at %d: %w", next, err)
		}
		e := Entry{Header: fusetest.Header{Kind: fusetest.Wrote, Disk: disk, Offset: int64(l.Sector) * sector,
			Length: int64(l.Sectors) * sector}}
		next += sector
		switch {
		case l.Flags == logFlush && l.Sectors == 0:
			e.Kind = fusetest.Flushed
		case l.Flags == logDiscard:
			e.Kind = fusetest.Zeroed // our images read as zeros then
		case l.Flags == 0:
			if next += e.Length; next > length {
				return all, nil // being written
			}
			e.Data = make([]byte, e.Length)
			if _, err := log.ReadAt(e.Data, next-e.Length); err != nil {
				return nil, fmt.Errorf("data of the entry before %d: %w", next, err)
			}
			if !slices.ContainsFunc(e.Data, func(b byte) bool { return b != 0 }) {
				e.Kind, e.Data = fusetest.Zeroed, nil
			}
		default: // QEMU's virtio disks have neither marks nor writes that are flushed by themselves
			return nil, fmt.Errorf("entry before %d has flags %#x", next, l.Flags)
		}
		all = append(all, logged{e, next})
	}
	return all, nil
}

// Moment has the lengths of all logs at a time, and the mark that was set at that time, if any.
type Moment struct {
	Lengths []int64
	Mark    string
}

// FromLogs returns a recording of dm-log-writes logs, one for each disk. The logs have no times, so moments define the
// order of writes to different disks. The power can be cut only at moments.
func FromLogs(disks []Disk, logs []string, moments []Moment) (*Recording, error) {
	r := &Recording{Disks: disks}
	if len(moments) == 0 {
		return nil, errors.New("recording: there are no moments")
	}
	last := moments[len(moments)-1]
	left := make([][]logged, len(logs))
	for d, path := range logs {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		left[d], err = readLog(f, byte(d), last.Lengths[d])
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, fmt.Errorf("log of writes %s: %w", path, err)
		}
	}
	for _, m := range moments {
		for d, length := range m.Lengths {
			for len(left[d]) > 0 && left[d][0].end <= length {
				r.Log, left[d] = append(r.Log, left[d][0].Entry), left[d][1:]
			}
		}
		if m.Mark != "" {
			r.Log = append(r.Log, Entry{fusetest.Header{Kind: fusetest.Marked, Length: int64(len(m.Mark))}, []byte(m.Mark)})
		}
		r.Cuts = append(r.Cuts, len(r.Log))
	}
	return r, nil
}
