//go:build linux

// Package replay creates disks as a power cut may leave them, from a recording of all writes: everything that was
// flushed, and any part of what was written after the last flush.
package replay

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"cambium/lab/fusetest"
)

// Marks in every recording. The power is cut between them.
const (
	MarkBegin = "begin"
	MarkEnd   = "end"
)

// Entry is an operation on a disk, or a mark.
type Entry struct {
	fusetest.Header
	Data []byte
}

// Disk is a recorded disk.
type Disk struct {
	Name string
	Size int64
}

// Recording is a log of all operations on some disks, in one order.
type Recording struct {
	Disks []Disk
	Base  []Entry // creates the disks from zeros
	Log   []Entry
	// Cuts has the indexes of entries before which the power may be cut, in ascending order; nil means all.
	Cuts []int
}

// State is a possible content of the disks after a power cut. Each disk has everything that was written before its last
// flush, and any part of the data written between that flush and the cut, in units of Unit bytes (0: whole writes).
type State struct {
	Cut    int // index of the entry before which the power is cut
	Chance float64
	Unit   int64
	Seed   uint64
}

func (s State) String() string {
	return fmt.Sprintf("cut %d, %.0f %% of units of %d, seed %d", s.Cut, 100*s.Chance, s.Unit, s.Seed)
}

// Index returns the position of a mark in the log, or the log's length if the mark was not set.
func (r *Recording) Index(mark string) int {
	for i, e := range r.Log {
		if e.Kind == fusetest.Marked && string(e.Data) == mark {
			return i
		}
	}
	return len(r.Log)
}

// Count returns the number of entries of some kinds between MarkBegin and MarkEnd.
func (r *Recording) Count(kinds ...byte) (n int) {
	for _, e := range r.Log[r.Index(MarkBegin):r.Index(MarkEnd)] {
		if slices.Contains(kinds, e.Kind) {
			n++
		}
	}
	return n
}

// Marks returns all marks.
func (r *Recording) Marks() (all []string) {
	for _, e := range r.Log {
		if e.Kind == fusetest.Marked {
			all = append(all, string(e.Data))
		}
	}
	return all
}

// Reached returns the marks before a state's cut.
func (r *Recording) Reached(s State) map[string]bool {
	all := map[string]bool{}
	for _, e := range r.Log[:s.Cut] {
		if e.Kind == fusetest.Marked {
			all[string(e.Data)] = true
		}
	}
	return all
}

// States returns different random states: those at flushes, with nothing written after them, and states with some of
// the units. It returns fewer than count if it does not find more.
func (r *Recording) States(random *rand.Rand, count int, units ...int64) (all []State) {
	begin, end := r.Index(MarkBegin), r.Index(MarkEnd)
	var flushes []State
	for i := begin; i < end; i++ {
		if r.Log[i].Kind == fusetest.Flushed {
			flushes = append(flushes, State{Cut: r.cut(i + 1)})
		}
	}
	random.Shuffle(len(flushes), func(i, j int) { flushes[i], flushes[j] = flushes[j], flushes[i] })
	seen := map[uint64]bool{}
	for tried := 0; len(all) < count && tried < 20*count; tried++ {
		s := State{Cut: r.cut(begin + 1 + random.IntN(end-begin)), Seed: random.Uint64(),
			Chance: []float64{0.1, 0.5, 0.9, 1}[random.IntN(4)], Unit: units[random.IntN(len(units))]}
		if tried%2 == 0 && len(flushes) > 0 {
			s, flushes = flushes[0], flushes[1:]
		}
		if id := r.identity(s); !seen[id] {
			seen[id] = true
			all = append(all, s)
		}
	}
	return all
}

// Whole returns the final state, with everything that was written.
func (r *Recording) Whole() State { return State{Cut: len(r.Log), Chance: 1} }

// cut returns the first entry, at or after from, before which the power may be cut.
func (r *Recording) cut(from int) int {
	if n, _ := slices.BinarySearch(r.Cuts, from); n < len(r.Cuts) {
		return r.Cuts[n]
	}
	return from
}

// each calls do with every part of the log that is on the disks in a state.
func (r *Recording) each(s State, do func(number int, e Entry, certain bool)) {
	durable := make([]int, len(r.Disks))
	for i, e := range r.Log[:s.Cut] {
		if e.Kind == fusetest.Flushed {
			durable[e.Disk] = i
		}
	}
	random := rand.New(rand.NewPCG(s.Seed, 0))
	for i, e := range r.Log[:s.Cut] {
		switch {
		case e.Kind == fusetest.Marked || e.Kind == fusetest.Flushed:
		case i < durable[e.Disk]:
			do(i, e, true)
		default:
			unit := s.Unit
			if unit == 0 || e.Kind == fusetest.Zeroed {
				unit = e.Length
			}
			for at := int64(0); at < e.Length; at += unit {
				if random.Float64() >= s.Chance {
					continue
				}
				part := e
				part.Offset, part.Length = e.Offset+at, min(unit, e.Length-at)
				if e.Kind == fusetest.Wrote {
					part.Data = e.Data[at : at+part.Length]
				}
				do(i, part, false)
			}
		}
	}
}

// identity returns a hash that differs between states.
func (r *Recording) identity(s State) uint64 {
	sum := fnv.New64a()
	r.each(s, func(number int, e Entry, certain bool) {
		if !certain {
			fmt.Fprintf(sum, "%d:%d+%d ", number, e.Offset, e.Length)
			return
		}
		fmt.Fprintf(sum, "%d ", number)
	})
	return sum.Sum64()
}

// Punch is the fallocate mode that zeroes a range of an image.
const Punch = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE

// Make writes the disks of a state to images in dir, named after the disks.
func (r *Recording) Make(s State, dir string) (err error) {
	var files []*os.File
	defer func() {
		for _, f := range files {
			err = errors.Join(err, f.Close())
		}
	}()
	for _, d := range r.Disks {
		f, err := os.Create(filepath.Join(dir, d.Name))
		if err != nil {
			return err
		}
		files = append(files, f)
		if err := f.Truncate(d.Size); err != nil {
			return err
		}
	}
	var failed error
	apply := func(_ int, e Entry, _ bool) {
		if failed != nil {
			return
		}
		f := files[e.Disk]
		if e.Kind == fusetest.Zeroed {
			failed = unix.Fallocate(int(f.Fd()), Punch, e.Offset, e.Length)
			return
		}
		_, failed = f.WriteAt(e.Data, e.Offset)
	}
	for _, e := range r.Base {
		apply(0, e, true)
	}
	r.each(s, apply)
	return failed
}

// DataOf returns the data in a sparse image of a disk.
func DataOf(image string, disk byte) (all []Entry, err error) {
	f, err := os.Open(image)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	for at := int64(0); ; {
		from, err := f.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		if at, err = f.Seek(from, unix.SEEK_HOLE); err != nil {
			return nil, err
		}
		data := make([]byte, at-from)
		if _, err := f.ReadAt(data, from); err != nil {
			return nil, err
		}
		all = append(all, Entry{fusetest.Header{Kind: fusetest.Wrote, Disk: disk, Offset: from, Length: at - from}, data})
	}
}
