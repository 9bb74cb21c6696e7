package natsbus

import (
	"hash/maphash"
	"sync"
)

// duplicates recognizes the second delivery of one publication while the two links of a rotation are
// subscribed: the n-th copy of the same bytes on one link is the n-th copy on the other. Two copies on
// one link are two publications, since NATS delivers each at most once per subscription; a caller that
// repeats a request byte for byte means it.
type duplicates struct {
	seed maphash.Seed

	mu     sync.Mutex
	copies map[uint64]map[*link]int
}

func newDuplicates() *duplicates {
	return &duplicates{seed: maphash.MakeSeed(), copies: map[uint64]map[*link]int{}}
}

// seen counts a message and reports whether the other link has delivered it already.
func (d *duplicates) seen(from *link, data []byte) bool {
	key := maphash.Bytes(d.seed, data)
	d.mu.Lock()
	defer d.mu.Unlock()
	counts := d.copies[key]
	if counts == nil {
		counts = map[*link]int{}
		d.copies[key] = counts
	}
	counts[from]++
	for other, n := range counts {
		if other != from && n >= counts[from] {
			return true
		}
	}
	return false
}
