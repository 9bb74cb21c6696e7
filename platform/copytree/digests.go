package copytree

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// maxDigests bounds the memory for digests. Files without one are compared byte by byte.
const maxDigests = 1 << 18

// digests holds the digests of the files that Copy has read, by inode, so that Verify need not read the source again.
// They detect accidental changes only: the hash has a random key and 64 bits.
type digests struct {
	mu    sync.Mutex
	seed  maphash.Seed
	known map[uint64]state
}

// state describes a file of the source when it was read. Any later change of the file changes its ctime.
type state struct {
	size   int64
	ctime  unix.Timespec
	digest uint64
}

func newDigests() digests {
	return digests{seed: maphash.MakeSeed(), known: map[uint64]state{}}
}

func (s *digests) put(st *unix.Stat_t, digest uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.known[st.Ino]; ok || len(s.known) < maxDigests {
		s.known[st.Ino] = state{st.Size, st.Ctim, digest}
	}
}

// get returns the digest of a file, if it has not changed since it was read.
func (s *digests) get(st *unix.Stat_t) (uint64, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known, ok := s.known[st.Ino]
	return known.digest, ok && known.size == st.Size && known.ctime == st.Ctim
}

// pageSize is the unit of a digest. No file system that the agent creates has larger blocks.
const pageSize = 4096

var zeroPage [pageSize]byte

// add adds a block to a digest. at is the offset of the block, a multiple of pageSize. Zero pages are skipped, so that
// a hole equals zeros.
func (s *digests) add(digest uint64, at int64, block []byte) uint64 {
	for page := range slices.Chunk(block, pageSize) {
		if !bytes.Equal(page, zeroPage[:len(page)]) {
			var both [16]byte
			binary.NativeEndian.PutUint64(both[:], uint64(at))
			binary.NativeEndian.PutUint64(both[8:], maphash.Bytes(s.seed, page))
			digest ^= maphash.Bytes(s.seed, both[:])
		}
		at += int64(len(page))
	}
	return digest
}

// addAttributes adds extended attributes to a digest. Their order does not matter.
func (s *digests) addAttributes(digest uint64, all map[string]string) uint64 {
	for name, value := range all {
		digest ^= maphash.String(s.seed, name+"\x00"+value)
	}
	return digest
}
