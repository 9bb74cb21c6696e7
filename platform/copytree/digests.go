package copytree

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// maxDigests bounds the memory; files without a digest are compared byte by byte.
const maxDigests = 1 << 18

// digests are of the files that Copy has read, by inode, so that Verify need not read the source a second
// time. They detect accidental changes, not forged ones: the hash has a random key and 64 bits.
type digests struct {
	mu    sync.Mutex
	seed  maphash.Seed
	known map[uint64]state
}

// state is a file of the source as it was read. Whatever is done to it afterwards changes ctime.
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

// get returns the digest of a file that has not changed since it was read.
func (s *digests) get(st *unix.Stat_t) (uint64, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known, ok := s.known[st.Ino]
	return known.digest, ok && known.size == st.Size && known.ctime == st.Ctim
}

// pageSize is the unit of a digest, and no file system that the agent makes has larger blocks.
const pageSize = 4096

var zeroPage [pageSize]byte

// add continues a digest with what is at an offset of a file, which is that of a page. Pages count by their place;
// zeros do not, so that a hole is as good as zeros.
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

// addAttributes continues a digest with extended attributes, in any order.
func (s *digests) addAttributes(digest uint64, all map[string]string) uint64 {
	for name, value := range all {
		digest ^= maphash.String(s.seed, name+"\x00"+value)
	}
	return digest
}
