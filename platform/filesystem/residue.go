package filesystem

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"cambium/internal/blkdev"
)

// Superblock is a trace of a file system or of something else by its signature, on a device that shows none where one is
// looked for first.
type Superblock struct {
	Kind Kind
	// Start is where it begins; -1 where only a backup was found that does not tell.
	Start int64
	// Backup is where the copy was found, in bytes from Start; 0 for the first copy.
	Backup int64
	// Block is the block size of an ext file system.
	Block int64
	// Bytes is the length of the file system and UUID its identifier, where its superblock tells.
	Bytes int64
	UUID  string
}

// Residue is what lies where a new partition table and file system would be written: signatures first, and then plain bytes.
type Residue struct {
	Found []Superblock
	// NonZero is where the first byte was found that is not zero; -1 if all that was read is zeros.
	NonZero int64
	// Noise is set when all that was read is uniformly random or zeros: encryption below looks so, content never does.
	Noise bool
}

// Zeros reports that nothing at all was found.
func (r Residue) Zeros() bool { return len(r.Found) == 0 && r.NonZero < 0 }

const (
	// headLength and tailLength are what Wipe clears at both ends of a device or partition.
	headLength = 1<<20 + 64<<10
	tailLength = 1 << 20
	// sample is the unit in which bytes are judged to be zeros, noise or neither.
	sample = 4096
)

// Survey reads what making a table and a file system on a device would overwrite, without regard to what Identify
// makes of it: the head of the device and of each place where a file system may begin, the tail, and the places where ext,
// xfs and btrfs keep their first backups. starts are those places; 0 is always one of them.
func Survey(r io.ReaderAt, size int64, starts []int64) (Residue, error) {
	s := survey{r: r, size: size, residue: Residue{NonZero: -1, Noise: true}, buffer: make([]byte, wipeChunk)}
	// The tail of a partition that ends a little before its disk is wiped as well.
	if err := s.judge(size-2*tailLength, size); err != nil {
		return s.residue, err
	}
	strong := 0
	covered := int64(0) // up to where heads have been judged
	for _, start := range append([]int64{0}, starts...) {
		if start >= size {
			continue
		}
		if err := s.judge(max(start, covered), start+headLength); err != nil {
			return s.residue, err
		}
		covered = max(covered, start+headLength)
		found, err := s.signatures(start)
		if err != nil {
			return s.residue, err
		}
		strong += found
		if found, err = s.extBackups(start); err != nil {
			return s.residue, err
		}
		strong += found
		if found, err = s.btrfsBackup(start); err != nil {
			return s.residue, err
		}
		strong += found
	}
	found, err := s.xfsBackups()
	if err != nil {
		return s.residue, err
	}
	s.residue.Noise = s.residue.Noise && s.residue.NonZero >= 0 && strong+found == 0
	if s.residue.Noise {
		s.residue.Found = nil // two bytes at the right place are an accident in random data
	}
	return s.residue, nil
}

type survey struct {
	r       io.ReaderAt
	size    int64
	residue Residue
	buffer  []byte
}

// judge reads a range and says whether it is zeros or noise.
func (s *survey) judge(from, to int64) error {
	from, to = max(from, 0)/sample*sample, min((to+sample-1)/sample*sample, s.size)
	for from < to {
		// The last sample of a device that has no whole number of them begins a little earlier.
		from = max(min(from, to-sample), 0)
		b := s.buffer[:min(wipeChunk, (to-from)/sample*sample)]
		if to < sample {
			b = s.buffer[:to]
		}
		if err := ReadFull(s.r, b, from); err != nil {
			return err
		}
		for o := 0; o < len(b); o += sample {
			s.judgeSample(b[o:min(o+sample, len(b))], from+int64(o))
		}
		from += int64(len(b))
	}
	return nil
}

func (s *survey) judgeSample(b []byte, at int64) {
	if bytes.Equal(b, zeroSample[:len(b)]) {
		return
	}
	if s.residue.NonZero < 0 || at < s.residue.NonZero {
		s.residue.NonZero = at + int64(bytes.IndexFunc(b, func(r rune) bool { return r != 0 }))
	}
	s.residue.Noise = s.residue.Noise && uniform(b)
}

var zeroSample [sample]byte

// uniform reports bytes that look random: each value about as often as any other. This is the chi-squared statistic of 256 values;
// for random bytes its mean is 255 and its standard deviation 22.6. A superblock, a table or text exceeds the limit by
// thousands, random data by chance once in 10^19 samples.
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

// signatures looks for first copies of anything at one place, and returns how many cannot be an accident.
func (s *survey) signatures(start int64) (strong int, err error) {
	length := s.size - start
	r := blkdev.NewCached(io.NewSectionReader(s.r, start, length), length)
	matches, err := find(r, length)
	if err != nil || len(matches) == 0 {
		return 0, err
	}
	c, err := describe(matches, r)
	if err != nil {
		return 0, err
	}
	s.residue.Found = append(s.residue.Found, Superblock{Kind: c.Kind, Start: start, Bytes: c.Bytes, UUID: c.UUID})
	for _, m := range matches {
		if m.strong || m.kind == extFamily && c.Kind != Unknown {
			strong++
		}
	}
	return strong, nil
}

// extGroups are the block groups that carry the first backups of a superblock (sparse_super: 1 and powers of 3, 5 and 7).
var extGroups = []int64{1, 3, 5, 7, 9, 25, 27}

// extBackups looks where an ext file system that begins at start would have backups of its superblock: at the beginning of block
// groups, each of which has as many blocks as a block has bits.
func (s *survey) extBackups(start int64) (found int, err error) {
	for _, block := range []int64{1 << 10, 2 << 10, 4 << 10} {
		for _, group := range extGroups {
			backup := group * 8 * block * block
			if block == 1<<10 {
				backup += block // the boot block is block 0, and groups begin with block 1
			}
			if start+backup+sample > s.size {
				break
			}
			if err := s.judge(start+backup, start+backup+sample); err != nil {
				return found, err
			}
			var sb [1024]byte
			if err := ReadFull(s.r, sb[:], start+backup); err != nil {
				return found, err
			}
			c, ok := parseExt(sb[:])
			if !ok || 1<<10<<binary.LittleEndian.Uint32(sb[0x18:]) != block || int64(binary.LittleEndian.Uint16(sb[0x5a:])) != group {
				continue
			}
			found++
			s.residue.Found = append(s.residue.Found, Superblock{Kind: c.Kind, Start: start, Backup: backup, Block: block, Bytes: c.Bytes, UUID: c.UUID})
			break
		}
	}
	return found, nil
}

// btrfsBackup looks for the second superblock of a btrfs that begins at start, which is 64 MiB into it.
func (s *survey) btrfsBackup(start int64) (found int, err error) {
	const backup, magicOffset = 64 << 20, 0x40
	if start+backup+sample > s.size {
		return 0, nil
	}
	magic := make([]byte, len(btrfsMagic))
	if err := ReadFull(s.r, magic, start+backup+magicOffset); err != nil || string(magic) != btrfsMagic {
		return 0, err
	}
	s.residue.Found = append(s.residue.Found, Superblock{Kind: Btrfs, Start: start, Backup: backup})
	return 1, nil
}

// xfsBackups looks for the second superblock of an xfs. Each allocation group has one, and a new xfs has four groups, or groups
// of one TiB, so that the second begins at a quarter of the disk, shifted by where the partition begins (up to 4 MiB behind the disk)
// and ends (up to 8 MiB before it).
func (s *survey) xfsBackups() (found int, err error) {
	quarter := s.size / 4
	for _, w := range [][2]int64{{quarter - 2<<20, quarter + 13<<18}, {1<<40 - 64<<10, 1<<40 + 64<<10}, {1<<40 + 1<<20 - 64<<10, 1<<40 + 1<<20 + 64<<10}} {
		from, to := max(w[0], headLength)/wipeChunk*wipeChunk, min(w[1], s.size)
		for ; from < to; from += wipeChunk {
			b := s.buffer[:min(wipeChunk, s.size-from)]
			if err := ReadFull(s.r, b, from); err != nil {
				return found, err
			}
			for o := 0; o+512 <= len(b); o += 512 {
				c, ok := parseXFS(b[o : o+512])
				if !ok {
					continue
				}
				group := int64(binary.BigEndian.Uint32(b[o+84:])) * int64(binary.BigEndian.Uint32(b[o+4:]))
				sb := Superblock{Kind: XFS, Start: from + int64(o) - group, Backup: group, Bytes: c.Bytes, UUID: c.UUID}
				if sb.Start < 0 {
					sb.Start = -1
				}
				s.residue.Found = append(s.residue.Found, sb)
				return found + 1, nil
			}
		}
	}
	return found, nil
}

// Scanned is the part of a device of which every MiB is looked at for superblocks.
const Scanned = 1 << 30

// Superblocks finds what ext and xfs have left on a device: first superblocks at starts, and backups of what begins
// there; any superblock at each MiB of the first GiB; and the second one of an xfs. One that is damaged is found by its
// numbers or by its magic. starts are the places where a file system may begin; 0 is always one of them.
func Superblocks(r io.ReaderAt, size int64, starts []int64) ([]Superblock, error) {
	s := survey{r: r, size: size, buffer: make([]byte, wipeChunk)}
	for _, start := range append([]int64{0}, starts...) {
		if err := s.superblock(start, true); err != nil {
			return nil, err
		}
		if _, err := s.extBackups(start); err != nil {
			return nil, err
		}
	}
	for at := int64(0); at < min(size, Scanned); at += 1 << 20 {
		if err := s.superblock(at, false); err != nil {
			return nil, err
		}
	}
	_, err := s.xfsBackups()
	return s.residue.Found, err
}

// superblock looks for a superblock of an ext or xfs that begins at a place, or for a copy there. With damaged set, a
// magic with numbers that make no sense counts as well; such a kind is Unknown.
func (s *survey) superblock(at int64, damaged bool) error {
	head := make([]byte, 2048)
	n, err := s.r.ReadAt(head, at)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	clear(head[n:])
	for _, sb := range []struct {
		data  []byte
		parse func([]byte) (Content, bool)
		magic bool
		// numbers says that the superblock agrees with itself, though its magic may be lost.
		numbers bool
		kind    Kind
	}{
		{head[:512], parseXFS, string(head[:4]) == xfsMagic, xfsGeometry(head), XFS},
		{head[:1024], parseExt, false, extGeometry(head), Ext4}, // a backup
		{head[1024:], parseExt, string(head[1080:1082]) == extMagic, extGeometry(head[1024:]), Ext4},
	} {
		c, ok := sb.parse(sb.data)
		switch {
		case ok:
		case sb.numbers:
			c = Content{Kind: sb.kind}
		case sb.magic && damaged:
			c = Content{Kind: Unknown}
		default:
			continue
		}
		s.residue.Found = append(s.residue.Found, Superblock{Kind: c.Kind, Start: at, Bytes: c.Bytes, UUID: c.UUID})
	}
	return nil
}

// Trailer returns what keeps its metadata at the end of a device: RAID and DRBD members do, and show what they carry from the
// beginning on. It is empty where there is none.
func Trailer(r io.ReaderAt, size int64) (Kind, error) {
	var buffer [32]byte
	for _, s := range layerSignatures() {
		if s.offset >= 0 {
			continue
		}
		offset, b := s.offset+size/s.align*s.align, buffer[:len(s.magic)]
		if offset < 0 || offset+int64(len(b)) > size {
			continue
		}
		if err := ReadFull(r, b, offset); err != nil {
			return "", err
		}
		if string(b) == s.magic {
			return s.kind, nil
		}
	}
	return "", nil
}

// Repair is the command that brings back a file system of which only a backup of the superblock is good. device is the one that it
// begins on.
func (s Superblock) Repair(device string) string {
	switch {
	case s.Kind == XFS:
		return "xfs_repair " + device
	case s.Kind == Btrfs:
		return "btrfs rescue super-recover " + device
	case s.Block > 0:
		return fmt.Sprintf("e2fsck -b %d -B %d %s", s.Backup/s.Block, s.Block, device)
	}
	return ""
}
