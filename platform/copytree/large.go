package copytree

import (
	"encoding/binary"
	"errors"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Large files are read and written past the page cache: that is faster than through it when
// every byte is used once, it leaves the cache to the jobs, and what Verify then reads comes
// from the disk and not from memory. Several workers share one file.
const (
	// blockSize is the unit of reading, writing and digests.
	blockSize = 1 << 20
	// segmentSize is what one worker takes of a large file at a time.
	segmentSize = 32 * blockSize
	// largeFile is from where on a file is worth this.
	largeFile = blockSize
	// alignment is what every disk accepts for addresses, offsets and lengths.
	alignment = 4096
)

// alignedBuffer is one that the kernel can hand to a disk as it is.
func alignedBuffer(size int) []byte {
	b := make([]byte, size+alignment)
	skip := int(-uintptr(unsafe.Pointer(&b[0])) & (alignment - 1))
	return b[skip : skip+size : skip+size]
}

// A directFile has a second descriptor that goes past the page cache, or -1 where the file
// system has no such thing.
type directFile struct{ plain, direct int }

func openDirect(dir int, rel string, flags int) (directFile, error) {
	f := directFile{direct: -1}
	var err error
	if f.plain, err = openFile(dir, rel, flags); err != nil {
		return f, err
	}
	if fd, err := openFile(dir, rel, flags|unix.O_DIRECT); err == nil {
		f.direct = fd
	}
	return f, nil
}

func (f directFile) close() error {
	if f.direct >= 0 {
		_ = closeFile(f.direct)
	}
	return closeFile(f.plain)
}

// at is the descriptor for a range: only aligned ones can go past the cache.
func (f directFile) at(offset int64, length int) int {
	if f.direct < 0 || offset%alignment != 0 || length%alignment != 0 {
		return f.plain
	}
	return f.direct
}

// readAt falls back to the page cache where the file system takes the open but not the read.
func (f directFile) readAt(b []byte, offset int64) error {
	fd := f.at(offset, len(b))
	err := readAt(fd, b, offset)
	if fd != f.plain && errors.Is(err, unix.EINVAL) {
		return readAt(f.plain, b, offset)
	}
	return err
}

func (f directFile) writeAt(b []byte, offset int64) error {
	fd := f.at(offset, len(b))
	err := writeAt(fd, b, offset)
	if fd != f.plain && errors.Is(err, unix.EINVAL) {
		return writeAt(f.plain, b, offset)
	}
	return err
}

// blocks splits a range where the digest and the alignment want it.
func blocks(from, to int64, f func(from int64, length int) error) error {
	for from < to {
		n := min(to, (from/blockSize+1)*blockSize) - from
		switch head := -from & (alignment - 1); {
		case head > 0:
			n = min(n, head)
		case n > alignment:
			n &^= alignment - 1
		}
		if err := f(from, int(n)); err != nil {
			return err
		}
		from += n
	}
	return nil
}

// Sums are digests of what Copy has read, and what Verify has found to differ. With them Verify need not read the
// source again, and the next Copy does not trust what only looks complete.
// They are there to find accidents, not forgers: keyed with a random seed, a damaged file has
// a chance of one in 2⁶⁴ to go unnoticed. The zero value is ready.
type Sums struct {
	mu    sync.Mutex
	seed  maphash.Seed
	known map[uint64]uint64 // of inodes

	suspects map[uint64]bool // inodes of the source whose copies differed
}

// maxSums bounds the memory; what has no digest is compared byte by byte.
const maxSums = 1 << 18

// of is the digest of a file: of its content and attributes and of the state of the source that they
// were read from. Whatever is done to a file changes that, and with it the digest.
func (s *Sums) of(st *unix.Stat_t, content, attributes uint64) uint64 {
	var all [40]byte
	for i, n := range []uint64{uint64(st.Size), uint64(st.Ctim.Sec), uint64(st.Ctim.Nsec), content, attributes} {
		binary.NativeEndian.PutUint64(all[8*i:], n)
	}
	return maphash.Bytes(s.key(), all[:])
}

func (s *Sums) put(st *unix.Stat_t, content, attributes uint64) {
	if s == nil {
		return
	}
	digest := s.of(st, content, attributes)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known == nil {
		s.known = map[uint64]uint64{}
	}
	if _, ok := s.known[st.Ino]; ok || len(s.known) < maxSums {
		s.known[st.Ino] = digest
	}
}

// has reports whether there is anything to compare a copy of the file with.
func (s *Sums) has(st *unix.Stat_t) bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.known[st.Ino]
	return ok
}

// equal reports whether a copy with that content and these attributes is what was read, and the
// source is still as it was then.
func (s *Sums) equal(st *unix.Stat_t, content, attributes uint64) bool {
	digest := s.of(st, content, attributes)
	s.mu.Lock()
	defer s.mu.Unlock()
	have, ok := s.known[st.Ino]
	return ok && have == digest
}

// suspect makes the next Copy copy the file again, under all its names. It reports whether one has been asked to before.
func (s *Sums) suspect(st *unix.Stat_t) (again bool) {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.suspects == nil {
		s.suspects = map[uint64]bool{}
	}
	again = s.suspects[st.Ino]
	s.suspects[st.Ino] = true
	return again
}

func (s *Sums) suspected(st *unix.Stat_t) bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.suspects[st.Ino]
}

func (s *Sums) key() maphash.Seed {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seed == (maphash.Seed{}) {
		s.seed = maphash.MakeSeed()
	}
	return s.seed
}

// attributes is the digest of a file's extended attributes.
func (s *Sums) attributes(all map[string]string) (digest uint64) {
	if s == nil || len(all) == 0 {
		return 0
	}
	var h maphash.Hash
	for name, value := range all {
		h.SetSeed(s.key())
		_, _ = h.WriteString(name + "\x00" + value)
		digest ^= h.Sum64()
	}
	return digest
}

// block is the digest of one block; those of a file are combined by xor, in any order.
func (s *Sums) block(b []byte, offset int64) uint64 {
	if s == nil {
		return 0
	}
	seed := s.key()
	var both [16]byte
	binary.NativeEndian.PutUint64(both[:], uint64(offset))
	binary.NativeEndian.PutUint64(both[8:], maphash.Bytes(seed, b))
	return maphash.Bytes(seed, both[:])
}

// share does the pieces of one file with whatever workers are free, and returns when all are
// done. Others join when they come by; the caller works until nothing is left.
func (w *walk) share(pieces int64, me *worker, do func(piece int64, me *worker) error) error {
	var next, done atomic.Int64
	var mu sync.Mutex
	var failed error
	all := make(chan struct{})
	work := func(me *worker) {
		for {
			piece := next.Add(1) - 1
			if piece >= pieces {
				return
			}
			mu.Lock()
			err := failed
			mu.Unlock()
			if err == nil {
				err = w.stopped()
			}
			if err == nil {
				err = do(piece, me)
			}
			if err != nil {
				mu.Lock()
				if failed == nil {
					failed = err
				}
				mu.Unlock()
			}
			if done.Add(1) == pieces {
				close(all)
			}
		}
	}
	for range min(pieces, int64(w.options.Workers)) - 1 {
		w.push(me, func(me *worker) error { work(me); return nil })
	}
	work(me)
	<-all
	return failed
}

// segments calls f, from several workers, for the ranges of a file that hold data.
func (w *walk) segments(file int, size int64, me *worker, f func(from, to int64, me *worker) error) error {
	return w.share((size+segmentSize-1)/segmentSize, me, func(i int64, me *worker) error {
		return extentsIn(file, i*segmentSize, min((i+1)*segmentSize, size), func(from, to int64) error { return f(from, to, me) })
	})
}

// large copies the data of a large file and leaves the holes. It returns the digest of what it read.
func (c copier) large(source, target directFile, st *unix.Stat_t, me *worker) (uint64, error) {
	if err := unix.Ftruncate(target.plain, st.Size); err != nil {
		return 0, err
	}
	var digest atomic.Uint64
	err := c.segments(source.plain, st.Size, me, func(from, to int64, me *worker) error {
		// In one piece on the disk if there is room for that; a file system that cannot
		// promise space says so when it is written to.
		_ = unix.Fallocate(target.plain, unix.FALLOC_FL_KEEP_SIZE, from, to-from)
		var sum uint64
		err := blocks(from, to, func(at int64, n int) error {
			if err := c.stopped(); err != nil {
				return err
			}
			if err := source.readAt(me.a[:n], at); err != nil {
				return err
			}
			if err := target.writeAt(me.a[:n], at); err != nil {
				return err
			}
			sum ^= c.options.Sums.block(me.a[:n], at)
			c.wrote(int64(n))
			return nil
		})
		xor(&digest, sum)
		return err
	})
	return digest.Load(), err
}

func xor(to *atomic.Uint64, x uint64) {
	for {
		old := to.Load()
		if to.CompareAndSwap(old, old^x) {
			return
		}
	}
}

// sameLarge compares a large file: the target with the digest of the source if there is one,
// otherwise, or when that differs, byte by byte.
func (v verifier) sameLarge(rel string, source, target directFile, st *unix.Stat_t, attributes map[string]string, me *worker) error {
	if v.options.Sums.has(st) {
		var digest atomic.Uint64
		err := v.segments(source.plain, st.Size, me, func(from, to int64, me *worker) error {
			var sum uint64
			err := blocks(from, to, func(at int64, n int) error {
				if err := v.stopped(); err != nil {
					return err
				}
				if err := target.readAt(me.b[:n], at); err != nil {
					return err
				}
				sum ^= v.options.Sums.block(me.b[:n], at)
				v.options.Progress.bytes.Add(int64(n))
				return nil
			})
			xor(&digest, sum)
			return err
		})
		if err != nil || v.options.Sums.equal(st, digest.Load(), v.options.Sums.attributes(attributes)) {
			return err
		}
	}
	return v.segments(source.plain, st.Size, me, func(from, to int64, me *worker) error {
		return v.compare(rel, source, target, from, to, me)
	})
}
