//go:build root

package writes

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"cambium/lab/fusetest"
)

// entry is something that was done to a disk, or a mark.
type entry struct {
	fusetest.Header
	data []byte
}

// recording is what was done to some disks, in one order.
type recording struct {
	disks []disk
	base  []entry // makes the disks from zeros
	log   []entry
}

// readRecording reads the log, and what the images held before.
func readRecording(t testing.TB, disks []disk, images []string, log string) *recording {
	t.Helper()
	r := &recording{disks: disks}
	for n, image := range images {
		base, err := dataOf(image)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range base {
			e.Disk = byte(n)
			r.base = append(r.base, e)
		}
	}
	f, err := os.Open(log)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for {
		var e entry
		err := binary.Read(f, binary.LittleEndian, &e.Header)
		if errors.Is(err, io.EOF) {
			return r
		}
		if err == nil && (e.Kind == fusetest.Wrote || e.Kind == fusetest.Marked) {
			e.data = make([]byte, e.Length)
			_, err = io.ReadFull(f, e.data)
		}
		if err != nil {
			t.Fatal(err)
		}
		r.log = append(r.log, e)
	}
}

// dataOf returns what a sparse image holds.
func dataOf(image string) (all []entry, err error) {
	f, err := os.Open(image)
	if err != nil {
		return nil, err
	}
	defer f.Close()
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
		all = append(all, entry{fusetest.Header{Kind: fusetest.Wrote, Offset: from, Length: at - from}, data})
	}
}

// index is where a mark is in the log.
func (r *recording) index(mark string) int {
	for i, e := range r.log {
		if e.Kind == fusetest.Marked && string(e.data) == mark {
			return i
		}
	}
	return len(r.log)
}

// count is how many entries of a kind are between the marks of the recorded work.
func (r *recording) count(kinds ...byte) (n int) {
	for _, e := range r.log[r.index(markBegin):r.index(markEnd)] {
		for _, kind := range kinds {
			if e.Kind == kind {
				n++
			}
		}
	}
	return n
}

// state is what a power cut may leave of the disks: of each, everything that was written before its last flush, and of
// what was written to it between that and the cut any part, in units of so many bytes (0: whole writes).
type state struct {
	cut    int // the entry of the log before which the power is cut
	chance float64
	unit   int64
	seed   uint64
}

func (s state) String() string {
	return fmt.Sprintf("cut %d, %.0f %% of units of %d, seed %d", s.cut, 100*s.chance, s.unit, s.seed)
}

// states draws different states: those at flushes, with nothing written after them, and random ones. It returns fewer
// where it finds no more.
func (r *recording) states(random *rand.Rand, count int) (all []state) {
	begin, end := r.index(markBegin), r.index(markEnd)
	var flushes []state
	for i := begin; i < end; i++ {
		if r.log[i].Kind == fusetest.Flushed {
			flushes = append(flushes, state{cut: i + 1})
		}
	}
	random.Shuffle(len(flushes), func(i, j int) { flushes[i], flushes[j] = flushes[j], flushes[i] })
	seen := map[uint64]bool{}
	for tried := 0; len(all) < count && tried < 20*count; tried++ {
		s := state{cut: begin + 1 + random.IntN(end-begin), seed: random.Uint64(),
			chance: []float64{0.1, 0.5, 0.9, 1}[random.IntN(4)], unit: []int64{0, 512, 4096}[random.IntN(3)]}
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

// each calls do with every part of the log that is on the disks in a state.
func (r *recording) each(s state, do func(number int, e entry, certain bool)) {
	durable := make([]int, len(r.disks))
	for i, e := range r.log[:s.cut] {
		if e.Kind == fusetest.Flushed {
			durable[e.Disk] = i
		}
	}
	random := rand.New(rand.NewPCG(s.seed, 0))
	for i, e := range r.log[:s.cut] {
		switch {
		case e.Kind == fusetest.Marked || e.Kind == fusetest.Flushed:
		case i < durable[e.Disk]:
			do(i, e, true)
		default:
			unit := s.unit
			if unit == 0 || e.Kind == fusetest.Zeroed {
				unit = e.Length
			}
			for at := int64(0); at < e.Length; at += unit {
				if random.Float64() >= s.chance {
					continue
				}
				part := e
				part.Offset, part.Length = e.Offset+at, min(unit, e.Length-at)
				if e.Kind == fusetest.Wrote {
					part.data = e.data[at : at+part.Length]
				}
				do(i, part, false)
			}
		}
	}
}

// identity tells states apart.
func (r *recording) identity(s state) uint64 {
	sum := fnv.New64a()
	r.each(s, func(number int, e entry, certain bool) {
		if !certain {
			fmt.Fprintf(sum, "%d:%d+%d ", number, e.Offset, e.Length)
			return
		}
		fmt.Fprintf(sum, "%d ", number)
	})
	return sum.Sum64()
}

// reached are the marks before a state's cut.
func (r *recording) reached(s state) map[string]bool {
	all := map[string]bool{}
	for _, e := range r.log[:s.cut] {
		if e.Kind == fusetest.Marked {
			all[string(e.data)] = true
		}
	}
	return all
}

// make writes the disks in a state to images in dir.
func (r *recording) make(t testing.TB, s state, dir string) {
	t.Helper()
	var files []*os.File
	for _, d := range r.disks {
		f, err := os.Create(filepath.Join(dir, d.name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := f.Truncate(d.final()); err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	apply := func(_ int, e entry, _ bool) {
		f := files[e.Disk]
		var err error
		if e.Kind == fusetest.Zeroed {
			err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, e.Offset, e.Length)
		} else {
			_, err = f.WriteAt(e.data, e.Offset)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, e := range r.base {
		apply(0, e, true)
	}
	r.each(s, apply)
}
