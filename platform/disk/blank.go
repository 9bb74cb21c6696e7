package disk

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"unicode/utf16"

	"golang.org/x/sys/unix"

	"cambium/platform/disk/layout"
	"cambium/platform/filesystem/probe"
)

// Survey reads the whole disk, inside and outside of its partitions, for remaining content. The partition table itself
// does not count. unfinished is a partition name whose entry, left by a table that was never completed, is ignored.
func Survey(ctx context.Context, s layout.State, unfinished string) (r probe.Residue, err error) {
	err = withoutTable(s, unfinished, func(content io.ReaderAt, starts []int64) (err error) {
		r, err = probe.Survey(ctx, content, s.Bytes, starts)
		return err
	})
	return r, err
}

// SearchSuperblocks searches the whole disk, inside and outside of its partitions, for superblocks of ext and xfs.
func SearchSuperblocks(ctx context.Context, s layout.State) (found []probe.Superblock, err error) {
	err = withoutTable(s, "", func(content io.ReaderAt, starts []int64) (err error) {
		found, err = probe.SearchSuperblocks(ctx, content, s.Bytes, starts)
		return err
	})
	return found, err
}

// withoutTable calls look with the offsets of the partitions and a reader that shows zeros where the partition table
// is.
func withoutTable(s layout.State, unfinished string, look func(io.ReaderAt, []int64) error) error {
	var starts []int64
	for _, p := range s.Table.Partitions {
		starts = append(starts, p.Start)
	}
	return opened(s, func(f *os.File) error {
		own, err := ownTable(s, f, unfinished)
		if err == nil {
			err = look(masked{f, own}, starts)
		}
		return err
	})
}

// SurveyPartition reads a partition for remaining content.
func SurveyPartition(ctx context.Context, s layout.State, p layout.Partition) (r probe.Residue, err error) {
	err = opened(s, func(f *os.File) (err error) {
		r, err = probe.Survey(ctx, io.NewSectionReader(f, p.Start, p.Size), p.Size, nil)
		return err
	})
	return r, err
}

func opened(s layout.State, look func(*os.File) error) error {
	f, err := os.Open(s.Path)
	if err != nil {
		return fmt.Errorf("read disk: %w", err)
	}
	defer f.Close()
	// The page cache of a disk is separate from those of its partitions. The reads are far apart, so readahead is
	// useless.
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_RANDOM)
	if err := look(f); err != nil {
		return fmt.Errorf("read disk %s: %w", s.Path, err)
	}
	return nil
}

// extent is a range of bytes.
type extent struct{ start, end int64 }

// ownTable returns the extents of the partition table itself, which is not content.
func ownTable(s layout.State, r io.ReaderAt, unfinished string) ([]extent, error) {
	sector := int64(s.Sector)
	last := s.Bytes / sector * sector
	if s.Table.Label != layout.None {
		hidden := []extent{{0, 512}}
		if s.Table.Label == layout.GPT {
			hidden = append(hidden, extent{sector, 2 * sector}, extent{last - sector, last})
		}
		if s.Table.Moved { // the second copy is at the end of the disk before it grew
			place := make([]byte, 8)
			if err := probe.ReadFull(r, place, sector+gptOtherOffset); err != nil {
				return nil, err
			}
			if other := binary.LittleEndian.Uint64(place); other < uint64(s.Bytes/sector) {
				hidden = append(hidden, extent{int64(other) * sector, (int64(other) + 1) * sector})
			}
		}
		return hidden, nil
	}
	hidden := []extent{{bootCode, bootCode + 4}} // the disk signature
	// A new GPT is written from its end: first the entries of the second copy.
	entries, entry := layout.UsableEnd(layout.GPT, s.Bytes, s.Sector), make([]byte, layout.GPTEntrySize)
	if unfinished == "" || entries < 0 {
		return hidden, nil
	}
	if err := probe.ReadFull(r, entry, entries); err != nil {
		return nil, err
	}
	if bytes.HasPrefix(entry[gptNameOffset:], utf16Bytes(unfinished)) {
		hidden = append(hidden, extent{entries, entries + int64(len(entry))})
	}
	return hidden, nil
}

// gptNameOffset is the offset of the name in a GPT entry. gptOtherOffset is the offset, in a GPT header, of the
// location of the other header.
const (
	gptNameOffset  = 56
	gptOtherOffset = 32
)

func utf16Bytes(text string) (b []byte) {
	for _, u := range utf16.Encode([]rune(text)) {
		b = append(b, byte(u), byte(u>>8))
	}
	return b
}

// masked reads zeros in place of the hidden extents.
type masked struct {
	r      io.ReaderAt
	hidden []extent
}

func (m masked) ReadAt(b []byte, offset int64) (int, error) {
	n, err := m.r.ReadAt(b, offset)
	for _, h := range m.hidden {
		from, to := max(h.start-offset, 0), min(h.end-offset, int64(n))
		if from < to {
			clear(b[from:to])
		}
	}
	return n, err
}
