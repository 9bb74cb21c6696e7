package disk

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
	"unicode/utf16"

	"github.com/diskfs/go-diskfs/partition/gpt"
	"golang.org/x/sys/unix"

	"cambium/platform/filesystem"
)

// usualStarts are the sectors at which partitions of all ages begin: behind a DOS table, behind a GPT, at 4 KiB, on
// a cylinder, at 64 KiB, at 1 MiB and at 4 MiB.
var usualStarts = []int64{1, 34, 40, 63, 128, 2048, 8192}

// Survey reads what preparing the whole disk would overwrite, without its partition table: only a disk without a table, or with one
// that has no entries, can be blank. unfinished is the name of a partition whose entry is left over from a table that was never
// completed, and says nothing.
func (s State) Survey(unfinished string) (filesystem.Residue, error) {
	return s.survey(0, s.Bytes, s.starts(), unfinished)
}

// starts are the bytes at which partitions may begin.
func (s State) starts() (starts []int64) {
	for _, n := range usualStarts {
		starts = append(starts, n*512, n*int64(s.Sector))
	}
	for _, p := range s.Table.Partitions {
		starts = append(starts, p.Start)
	}
	slices.Sort(starts)
	return slices.Compact(starts)
}

// Superblocks finds what ext and xfs have left on the disk, in its partitions and outside of them.
func (s State) Superblocks() ([]filesystem.Superblock, error) {
	f, err := os.Open(s.Path)
	if err != nil {
		return nil, fmt.Errorf("read disk: %w", err)
	}
	defer f.Close()
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	// The places are far apart; the kernel reads them in parallel.
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_RANDOM)
	for at := int64(0); at < min(s.Bytes, filesystem.Scanned); at += MiB {
		_ = unix.Fadvise(int(f.Fd()), at, 4096, unix.FADV_WILLNEED)
	}
	found, err := filesystem.Superblocks(f, s.Bytes, s.starts())
	if err != nil {
		return nil, fmt.Errorf("read disk %s: %w", s.Path, err)
	}
	return found, nil
}

// SurveyPartition is Survey for what making a file system in a partition would overwrite.
func (s State) SurveyPartition(p Partition) (filesystem.Residue, error) {
	return s.survey(p.Start, p.Size, nil, "")
}

func (s State) survey(start, size int64, starts []int64, unfinished string) (filesystem.Residue, error) {
	f, err := os.Open(s.Path)
	if err != nil {
		return filesystem.Residue{}, fmt.Errorf("read disk: %w", err)
	}
	defer f.Close()
	// A disk's pages are cached apart from those of its partitions.
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	hidden, err := s.ownTable(f, unfinished)
	if err != nil {
		return filesystem.Residue{}, fmt.Errorf("read disk %s: %w", s.Path, err)
	}
	r, err := filesystem.Survey(io.NewSectionReader(masked{f, hidden}, start, size), size, starts)
	if err != nil {
		return r, fmt.Errorf("read disk %s: %w", s.Path, err)
	}
	return r, nil
}

// extent is a range of bytes.
type extent struct{ start, end int64 }

// ownTable are the places of the partition table itself, which is no content of the disk.
func (s State) ownTable(r io.ReaderAt, unfinished string) ([]extent, error) {
	sector := int64(s.Sector)
	last := s.Bytes / sector * sector
	if s.Table.Label != None {
		hidden := []extent{{0, 512}}
		if s.Table.Label == GPT {
			hidden = append(hidden, extent{sector, 2 * sector}, extent{last - sector, last})
		}
		return hidden, nil
	}
	// A disk signature names a disk and holds nothing. It is written before the DOS table that it belongs to.
	hidden := []extent{{440, 444}}
	// The first part of a GPT to be written are the entries of its second copy.
	entries, entry := Usable(GPT, s.Bytes, s.Sector), make([]byte, gpt.PartitionEntrySize)
	if unfinished == "" || entries < 0 {
		return hidden, nil
	}
	if err := filesystem.ReadFull(r, entry, entries); err != nil {
		return nil, err
	}
	if bytes.HasPrefix(entry[gptNameOffset:], utf16Bytes(unfinished)) {
		hidden = append(hidden, extent{entries, entries + int64(len(entry))})
	}
	return hidden, nil
}

// gptNameOffset is where the name begins in an entry of a GPT.
const gptNameOffset = 56

func utf16Bytes(text string) (b []byte) {
	for _, u := range utf16.Encode([]rune(text)) {
		b = append(b, byte(u), byte(u>>8))
	}
	return b
}

// masked shows zeros in the place of some bytes.
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
