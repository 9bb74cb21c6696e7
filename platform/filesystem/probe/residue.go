package probe

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
)

// Superblock describes what an ext or xfs has left on a device, or another signature at its beginning.
type Superblock struct {
	// Kind is Unknown for a magic with numbers that make no sense.
	Kind Kind
	// Start is the byte of the device at which the file system begins; -1 if it does not begin on the device.
	Start int64
	// Backup is the offset of the copy from Start, or from the beginning of the device if Start is -1, in bytes; 0 for
	// the first copy.
	Backup int64
	// Block is the block size of an ext file system.
	Block int64
	// Bytes is the length of the file system and UUID its identifier, where its superblock tells.
	Bytes int64
	UUID  string
	// damaged says that its magic or its numbers are lost.
	damaged bool
}

// Residue describes data found on a device that shows no signature, or on a whole disk.
type Residue struct {
	Found []Superblock
	// NonZero is the offset of the first byte found that is not zero; -1 if all that was read is zeros.
	NonZero int64
	// Noise is set when all that was read is uniformly random or zeros: encryption below looks so, content never does.
	Noise bool
}

// Zeros reports that nothing at all was found.
func (r Residue) Zeros() bool { return len(r.Found) == 0 && r.NonZero < 0 }

// Superblocks returns the superblocks of ext and xfs, damaged ones included.
func (r Residue) Superblocks() []Superblock {
	return slices.DeleteFunc(slices.Clone(r.Found), func(s Superblock) bool { return !s.Kind.ExtOrXFS() })
}

const (
	// surveyedHead and surveyedTail are read whole, in chunks. Partitions that do not begin at a whole MiB, as those of
	// old programs, begin in that head.
	surveyedHead = 8 << 20
	surveyedTail = 2 << 20
	surveyChunk  = 256 << 10

	// scanned is the length of the head of a device in which every MiB is looked at.
	scanned = 1 << 30
	mib     = 1 << 20
	// sample is the unit in which bytes are judged to be zeros, noise or neither. samples is the number of those that
	// are read, spread over the device.
	sample  = 4096
	samples = 1000
	// depth bounds how many reads wait at a time.
	depth = 16
)

// Survey reports whether a device is blank, and what was found otherwise. It reads the head and tail, which may hold
// signatures and the second superblock of an xfs, every MiB of the first GiB and, while nothing but zeros or noise was
// found, samples of the whole device. The number of reads is bounded, and all of them are made: a survey that does not
// end in time is an error. In all that it reads it finds superblocks of ext and xfs. starts are the offsets of the
// partitions: there, as at every MiB, a damaged superblock counts as well.
func Survey(ctx context.Context, r io.ReaderAt, size int64, starts []int64) (Residue, error) {
	s := survey{r: r, size: size, starts: starts, residue: Residue{NonZero: -1, Noise: true}}
	first := slices.Concat(s.fixed(), s.grid(), s.backups())
	spread := s.samples()
	s.total = len(first) + len(spread)
	if err := s.read(ctx, first); err != nil {
		return Residue{}, err
	}
	if err := s.signatures(); err != nil { // which reads what has just been read
		return Residue{}, err
	}
	if s.residue.NonZero < 0 || s.residue.Noise {
		if err := s.read(ctx, spread); err != nil {
			return Residue{}, err
		}
	}
	s.residue.Found = firstCopies(s.residue.Found)
	s.residue.Noise = s.residue.Noise && s.residue.NonZero >= 0 && !s.strong
	if s.residue.Noise {
		s.residue.Found = nil // two bytes at the right place are an accident in random data
	}
	return s.residue, nil
}

// Headless reports a file system of the agent's kinds that begins with the device and has lost its first superblock, by
// the backups at the usual places.
func Headless(r io.ReaderAt, size int64) (bool, error) {
	s := survey{r: r, size: size, starts: []int64{0}}
	buffer := make([]byte, surveyChunk)
	for _, p := range append(s.fixed(), s.backups()...) {
		if err := ReadFull(r, buffer[:p.to-p.from], p.from); err != nil {
			return false, err
		}
		s.judgeBytes(buffer[:p.to-p.from], p.from)
	}
	return slices.ContainsFunc(s.residue.Found, func(b Superblock) bool { return b.Start == 0 && b.Kind.Managed() }), nil
}

type survey struct {
	r      io.ReaderAt
	size   int64
	starts []int64
	// total counts the places, and done those that have been looked at.
	total, done int

	mu      sync.Mutex // guards what follows while places are read
	residue Residue
	// strong says that a signature was found which is not an accident in random data.
	strong bool
}

// place is a range of bytes.
type place struct{ from, to int64 }

// fixed are the places that are read whole. The second superblock of an xfs is in one of them: each allocation group
// has one, and a new xfs has four groups, or groups of one TiB, so that the second begins at a quarter of the disk,
// shifted by where the partition begins (up to 4 MiB after the disk) and ends (up to 8 MiB before it).
func (s *survey) fixed() (places []place) {
	quarter := s.size / 4
	for _, p := range []place{{0, surveyedHead}, {s.size - surveyedTail, s.size}, {quarter - 2*mib, quarter + 13<<18},
		{1<<40 - 64<<10, 1<<40 + 64<<10}, {1<<40 + mib - 64<<10, 1<<40 + mib + 64<<10}} {
		from, to := max(p.from, 0)/sample*sample, min(p.to, s.size)
		for from < to {
			// The last sample of a device that has no whole number of them begins a little earlier.
			from = max(min(from, to-sample), 0)
			end := from + min(surveyChunk, max((to-from)/sample*sample, min(to, sample)))
			places = append(places, place{from, end})
			if end-from == surveyChunk && end < to {
				end -= sample // a superblock may lie across the end of a chunk
			}
			from = end
		}
	}
	return places
}

// grid is every MiB after the head: file systems that begin at one have their backups at one, too. Groups of ext have 8
// MiB or a multiple of that, so that at those the backups of file systems are which begin within the first 64 KiB of
// the device.
func (s *survey) grid() (places []place) {
	for at := int64(surveyedHead); at < min(s.size, scanned); at += mib {
		length := int64(sample)
		if at%(8*mib) == 0 {
			length += 64 << 10
		}
		places = append(places, place{at, at + length})
	}
	return slices.DeleteFunc(places, func(p place) bool { return p.to > s.size })
}

// backups returns the places of ext's first backup superblocks in the partitions.
func (s *survey) backups() (places []place) {
	for _, start := range s.starts {
		for _, backup := range []int64{0, 8 * mib, 32 * mib, 128 * mib} {
			places = append(places, place{start + backup, start + backup + sample})
		}
	}
	return slices.DeleteFunc(places, func(p place) bool { return p.to > s.size })
}

// samples are spread over what is neither head nor tail, one in each of as many equal parts, at places that are random
// and the same each time: what is refused once is refused again.
func (s *survey) samples() (places []place) {
	room := s.size - surveyedHead - surveyedTail
	n := min(samples, room/sample)
	random := rand.New(rand.NewPCG(0, uint64(s.size)))
	for i := range n {
		part := room / n
		at := surveyedHead + i*part + random.Int64N(part-sample+1)/sample*sample
		places = append(places, place{at, at + sample})
	}
	return places
}

// read looks at all of the places, several at a time, the last one first: whatever has the device's bytes in a file
// takes rising offsets for a sequential reader, and reads ahead all that is in between. A read that hangs is
// abandoned when the context ends: the kernel gives it up at some time.
func (s *survey) read(ctx context.Context, places []place) error {
	var left atomic.Int64
	left.Store(int64(len(places)))
	ended := make(chan error, depth)
	workers := min(depth, len(places))
	for range workers {
		go func() {
			var failed error
			buffer := make([]byte, surveyChunk)
			for i := left.Add(-1); i >= 0 && failed == nil && ctx.Err() == nil; i = left.Add(-1) {
				p := places[i]
				if failed = ReadFull(s.r, buffer[:p.to-p.from], p.from); failed == nil {
					s.mu.Lock()
					s.judgeBytes(buffer[:p.to-p.from], p.from)
					s.done++
					s.mu.Unlock()
				}
			}
			ended <- failed
		}()
	}
	for range workers {
		select {
		case err := <-ended:
			if err != nil {
				left.Store(0)
				return err
			}
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			return fmt.Errorf("looked at %d of %d places of the device: %w", s.done, s.total, context.Cause(ctx))
		}
	}
	return nil
}

// judgeBytes judges bytes that were read, and finds superblocks in them.
func (s *survey) judgeBytes(b []byte, at int64) {
	for ; len(b) > 0; b, at = b[min(sample, len(b)):], at+sample {
		one := b[:min(sample, len(b))]
		if bytes.Equal(one, zeroSample[:len(one)]) {
			continue
		}
		if s.residue.NonZero < 0 || at < s.residue.NonZero {
			s.residue.NonZero = at + int64(bytes.IndexFunc(one, func(r rune) bool { return r != 0 }))
		}
		s.residue.Noise = s.residue.Noise && uniform(one)
		for o := 0; o+512 <= len(one); o += 512 {
			s.ext(b[o:], at+int64(o))
			s.xfs(b[o:], at+int64(o))
		}
	}
}

var zeroSample [sample]byte

// uniform reports bytes that look random: each value about as often as any other. This is the chi-squared statistic of
// 256 values; for random bytes its mean is 255 and its standard deviation 22.6. A superblock, a table or text exceeds
// the limit by thousands, random data by chance once in 10^19 samples.
func uniform(b []byte) bool {
	const limit = 525
	if len(b) < sample {
		return false // a device that is smaller than one sample
	}
	var count [256]int
	for _, v := range b {
		count[v]++
	}
	sum := 0
	for _, n := range count {
		sum += n * n
	}
	return float64(sum)*256/float64(len(b))-float64(len(b)) <= limit
}

// signatures looks for the first copy of anything at the beginning.
func (s *survey) signatures() error {
	matches, err := find(s.r, s.size)
	if err != nil || len(matches) == 0 {
		return err
	}
	c, err := describe(matches, s.r)
	if err != nil {
		return err
	}
	first := Superblock{Kind: c.Kind, Bytes: c.Bytes, UUID: c.UUID, damaged: c.Kind == Unknown}
	s.residue.Found = append(s.residue.Found, first)
	s.strong = slices.ContainsFunc(matches, func(m match) bool { return m.strong })
	return nil
}

// begins says whether a file system usually begins at a place, or has a backup there. Near the beginning of the device,
// and at that of a partition, its magic alone counts.
func (s *survey) begins(at int64) (usually, surely bool) {
	start := slices.Contains(s.starts, at)
	return start || at%mib == 0, start || at%mib == 0 && at < surveyedHead
}

// ext looks for a superblock of ext in bytes at a place: the first one, which is 1 KiB into the file system, or a
// backup, which tells the number of its group.
func (s *survey) ext(b []byte, at int64) {
	var sb [1024]byte
	usually, surely := s.begins(at - 1024)
	if backup, _ := s.begins(at); string(b[56:58]) != extMagic && !usually && !backup {
		return
	}
	copy(sb[:], b)
	magic, sound := string(sb[56:58]) == extMagic, extGeometry(sb[:])
	if sound {
		copy(sb[56:], extMagic)
	}
	c, ok := parseExt(sb[:])
	u32 := func(o int) int64 { return int64(binary.LittleEndian.Uint32(sb[o:])) }
	found := Superblock{Kind: c.Kind, Start: at - 1024, Bytes: c.Bytes, UUID: c.UUID, damaged: !magic}
	switch group := int64(binary.LittleEndian.Uint16(sb[0x5a:])); {
	case ok && sound && group > 0:
		found.Block = 1024 << u32(0x18)
		found.copyAt(at, (group*u32(0x20)+u32(0x14))*found.Block)
	case ok:
	case surely && magic:
		found = Superblock{Kind: Unknown, Start: at - 1024, damaged: true}
	default:
		return
	}
	s.add(found)
}

// xfs looks for a superblock of xfs in bytes at a place: the first one, or that of another allocation group, whose
// number is in the header of its free space, which follows.
func (s *survey) xfs(b []byte, at int64) {
	usually, surely := s.begins(at)
	magic := string(b[:4]) == xfsMagic
	if !magic && !(usually && xfsGeometry(b[:512])) {
		return
	}
	sb := append([]byte(xfsMagic), b[4:512]...)
	c, ok := parseXFS(sb)
	u32 := func(o int) int64 { return int64(binary.BigEndian.Uint32(b[o:])) }
	found := Superblock{Kind: XFS, Start: at, Bytes: c.Bytes, UUID: c.UUID, damaged: !magic}
	switch sector := int(binary.BigEndian.Uint16(sb[102:])); {
	case ok && len(b) >= sector+12 && string(b[sector:sector+4]) == "XAGF" && u32(sector+8)*u32(84) < 1<<40:
		found.copyAt(at, u32(sector+8)*u32(84)*u32(4))
	case ok:
	case surely:
		found = Superblock{Kind: Unknown, Start: at, damaged: true}
	default:
		return
	}
	s.add(found)
}

// copyAt says that the superblock was found at a place of the device which is so many bytes into the file system.
func (s *Superblock) copyAt(at, backup int64) {
	s.Start, s.Backup = at-backup, backup
	if s.Start < 0 {
		s.Start, s.Backup = -1, at
	}
}

func (s *survey) add(found Superblock) {
	s.residue.Found = append(s.residue.Found, found)
	s.strong = s.strong || found.Kind != Unknown
}

// firstCopies sorts superblocks by where they are, damaged ones last, and leaves the first one of each file system.
func firstCopies(all []Superblock) (first []Superblock) {
	slices.SortStableFunc(all, func(a, b Superblock) int {
		if a.damaged != b.damaged {
			return map[bool]int{true: 1, false: -1}[a.damaged]
		}
		return cmp.Compare(max(a.Start, 0)+a.Backup, max(b.Start, 0)+b.Backup)
	})
	for _, s := range all {
		if !slices.ContainsFunc(first, func(f Superblock) bool {
			return f.UUID == s.UUID && (s.UUID != "" || f.Start == s.Start)
		}) {
			first = append(first, s)
		}
	}
	return first
}

// Trailer returns what keeps its metadata at the end of a device: RAID and DRBD members do, and show what they carry
// from the beginning on. It is empty where there is none.
func Trailer(r io.ReaderAt, size int64) (Kind, error) {
	for _, s := range layerSignatures() {
		if s.offset >= 0 {
			continue
		}
		if _, found, err := s.on(r, size); found || err != nil {
			return s.kind, err
		}
	}
	return "", nil
}

// Repair returns the command that brings back a file system of which only a backup of the superblock is good, on the
// device that it begins on; empty if there is none. With readOnly set, the command only looks.
func (s Superblock) Repair(device string, readOnly bool) string {
	look := map[bool]string{true: "-n "}[readOnly]
	switch {
	case s.Kind == XFS:
		return "xfs_repair " + look + device
	case s.Block > 0:
		return fmt.Sprintf("e2fsck %s-b %d -B %d %s", look, s.Backup/s.Block, s.Block, device)
	}
	return ""
}
