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

// Superblock describes the remains of an ext or xfs on a device, or another signature at its beginning.
type Superblock struct {
	// Kind is Unknown if there is a magic with invalid fields.
	Kind Kind
	// Start is the offset of the file system on the device, or -1 if it begins before the device.
	Start int64
	// Backup is the offset of a backup from Start, or from the beginning of the device if Start is -1. It is 0 for the
	// first superblock.
	Backup int64
	// Block is the block size of an ext file system.
	Block int64
	// Bytes and UUID are the size and identifier of the file system, if known.
	Bytes int64
	UUID  string
	// damaged is set if the magic or the fields are lost.
	damaged bool
}

// Residue describes data found on a device without a signature, or on a whole disk.
type Residue struct {
	Found []Superblock
	// NonZero is the offset of the first byte found that is not zero, or -1.
	NonZero int64
	// Noise is set if all data read is zero or uniformly random, as on an encrypted volume. Real content never is.
	Noise bool
}

// IsEmpty reports whether nothing was found.
func (r Residue) IsEmpty() bool { return len(r.Found) == 0 && r.NonZero < 0 }

// Superblocks returns the superblocks of ext and xfs, even damaged ones.
func (r Residue) Superblocks() []Superblock {
	return slices.DeleteFunc(slices.Clone(r.Found), func(s Superblock) bool { return !s.Kind.ExtOrXFS() })
}

const (
	// surveyedHead and surveyedTail are read completely, in chunks. Partitions of old programs, which are not aligned
	// to a MiB, begin in the head.
	surveyedHead = 8 << 20
	surveyedTail = 2 << 20
	surveyChunk  = 256 << 10

	// scanned is the size of the head in which the start of every MiB is read.
	scanned = 1 << 30
	mib     = 1 << 20
	// sample is the size of a unit that is classified as zeros, noise or neither. samples is the number of units read
	// all over the device.
	sample  = 4096
	samples = 1000
	// depth bounds the number of concurrent reads, and buffers the memory for them.
	depth   = 16
	buffers = 1 << 20
)

// Survey searches a device for remaining content. It reads the same places as SearchSuperblocks. If these contain only
// zeros or noise, it also reads samples spread over the device. The number of reads is bounded. It returns an error if
// a read fails or hangs.
func Survey(ctx context.Context, r io.ReaderAt, size int64, starts []int64) (Residue, error) {
	return search(ctx, r, size, starts, true)
}

// SearchSuperblocks looks for superblocks of ext and xfs: in the head and the tail of a device, around its first
// quarter, where a new xfs keeps its second superblock, and at each MiB of the first GiB. At a MiB and at a partition's
// offset in starts, even a damaged superblock counts. Samples of the rest would hardly ever hit one, so it takes none.
func SearchSuperblocks(ctx context.Context, r io.ReaderAt, size int64, starts []int64) ([]Superblock, error) {
	found, err := search(ctx, r, size, starts, false)
	return found.Superblocks(), err
}

// search reads the places at which superblocks and other signatures are stored. If sampled is set and these contain
// only zeros or noise, it also reads samples spread over the device.
func search(ctx context.Context, r io.ReaderAt, size int64, starts []int64, sampled bool) (Residue, error) {
	s := &survey{r: r, size: size, starts: starts, residue: Residue{NonZero: -1, Noise: true}}
	// The readers of one batch have buffers as large as its longest place, so short places are a batch of their own.
	fixed, short, samples := s.fixed(), slices.Concat(s.grid(), s.backups()), []place(nil)
	if sampled {
		samples = s.samples()
	}
	s.total = len(fixed) + len(short) + len(samples)
	err := s.read(ctx, fixed)
	if err == nil {
		err = s.read(ctx, short)
	}
	if err == nil && (s.residue.NonZero < 0 || s.residue.Noise) {
		err = s.read(ctx, samples)
	}
	if err == nil {
		err = s.signatures() // from the page cache
	}
	if err != nil {
		return Residue{}, err
	}
	s.residue.Found = firstCopies(s.residue.Found)
	s.residue.Noise = s.residue.Noise && s.residue.NonZero >= 0 && !s.strong
	if s.residue.Noise {
		s.residue.Found = nil // two matching bytes are accidental in random data
	}
	return s.residue, nil
}

// FirstSuperblockLost reports whether the backups at the usual offsets are those of a managed file system that starts
// with the device and has lost its first superblock.
func FirstSuperblockLost(r io.ReaderAt, size int64) (bool, error) {
	s := survey{r: r, size: size, starts: []int64{0}}
	buffer := make([]byte, surveyChunk)
	for _, p := range append(s.fixed(), s.backups()...) {
		if err := ReadFull(r, buffer[:p.to-p.from], p.from); err != nil {
			return false, err
		}
		s.judgeBytes(buffer[:p.to-p.from], p.from)
	}
	return slices.ContainsFunc(s.residue.Found,
		func(b Superblock) bool { return b.Start == 0 && b.Kind.Managed() }), nil
}

type survey struct {
	r      io.ReaderAt
	size   int64
	starts []int64
	// total is the number of places to read, and done the number already read.
	total, done int

	mu      sync.Mutex // guards residue and strong
	residue Residue
	// strong is set if a signature was found that is too long to be accidental.
	strong bool
}

// place is a range of bytes.
type place struct{ from, to int64 }

// fixed returns the places that are read completely. One of them contains the second superblock of an xfs, which is in
// the second allocation group. A new xfs has four groups, or groups of 1 TiB, so that the second group begins at a
// quarter of the disk, shifted by the start of the partition (up to 4 MiB) and its end (up to 8 MiB before that of the
// disk).
func (s *survey) fixed() (places []place) {
	quarter := s.size / 4
	for _, p := range []place{{0, surveyedHead}, {s.size - surveyedTail, s.size}, {quarter - 2*mib, quarter + 13<<18},
		{1<<40 - 64<<10, 1<<40 + 64<<10}, {1<<40 + mib - 64<<10, 1<<40 + mib + 64<<10}} {
		from, to := max(p.from, 0)/sample*sample, min(p.to, s.size)
		for from < to {
			// The last sample of the device may overlap the one before.
			from = max(min(from, to-sample), 0)
			end := from + min(surveyChunk, max((to-from)/sample*sample, min(to, sample)))
			places = append(places, place{from, end})
			if end-from == surveyChunk && end < to {
				end -= sample // a superblock may extend over two chunks
			}
			from = end
		}
	}
	return places
}

// grid returns every MiB after the head: file systems that begin at a MiB have their backups at one, too. Groups of ext
// have a multiple of 8 MiB, so at these offsets it also reads the backups of file systems that begin within the first
// 64 KiB of the device.
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

// backups returns the places of the first backup superblocks of ext in the partitions.
func (s *survey) backups() (places []place) {
	for _, start := range s.starts {
		for _, backup := range []int64{0, 8 * mib, 32 * mib, 128 * mib} {
			places = append(places, place{start + backup, start + backup + sample})
		}
	}
	return slices.DeleteFunc(places, func(p place) bool { return p.to > s.size })
}

// samples returns one place in each of many equal parts between head and tail. They are pseudo-random, but the same
// each time, so that a refused disk is refused again.
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

// read reads all places, several at a time and the last one first: with increasing offsets, the kernel would detect a
// sequential reader and read ahead everything in between. Reads that hang are abandoned at the end of ctx.
func (s *survey) read(ctx context.Context, places []place) error {
	var left atomic.Int64
	left.Store(int64(len(places)))
	ended := make(chan error, depth)
	longest := int64(1)
	for _, p := range places {
		longest = max(longest, p.to-p.from)
	}
	workers := min(depth, len(places), int(buffers/longest))
	for range workers {
		go func() {
			var failed error
			buffer := make([]byte, longest)
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

// judgeBytes classifies bytes and searches them for superblocks.
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

// uniform reports whether bytes look random, by the chi-squared statistic of their 256 values. For random bytes its
// mean is 255 and its standard deviation 22.6. A superblock, a table or text exceeds the limit by thousands, random
// data once in 10^19 samples.
func uniform(b []byte) bool {
	const limit = 525
	if len(b) < sample {
		return false // the device is smaller than one sample
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

// signatures searches the device for signatures and records the first.
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

// begins reports whether a file system usually begins at an offset, or has a backup there, and whether a magic alone
// proves one there: near the beginning of the device, and at the beginning of a partition.
func (s *survey) begins(at int64) (usually, surely bool) {
	start := slices.Contains(s.starts, at)
	return start || at%mib == 0, start || at%mib == 0 && at < surveyedHead
}

// ext searches bytes for a superblock of ext: the first one, 1 KiB into the file system, or a backup, which contains
// its group number.
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

// xfs searches bytes for a superblock of xfs, of any allocation group. The header that follows it contains the group
// number.
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

// copyAt sets the location of a superblock found at offset at of the device and offset backup of the file system.
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

// firstCopies sorts superblocks by location, damaged ones last, and keeps the first of each file system.
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

// Trailer returns the kind of RAID or DRBD metadata at the end of a device, or "". The members of such devices show
// their content from the beginning on.
func Trailer(r io.ReaderAt, size int64) (Kind, error) {
	for _, s := range layerSignatures() {
		if s.offset >= 0 {
			continue
		}
		if _, found, err := s.find(r, size); found || err != nil {
			return s.kind, err
		}
	}
	return "", nil
}

// RepairCommand returns the command to repair a file system of which only a backup superblock is intact, or "". device
// is where the file system begins. With readOnly set, the command only checks it.
func (s Superblock) RepairCommand(device string, readOnly bool) string {
	look := map[bool]string{true: "-n "}[readOnly]
	switch {
	case s.Kind == XFS:
		return "xfs_repair " + look + device
	case s.Block > 0:
		return fmt.Sprintf("e2fsck %s-b %d -B %d %s", look, s.Backup/s.Block, s.Block, device)
	}
	return ""
}
