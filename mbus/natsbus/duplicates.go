package natsbus

import (
	"hash/maphash"
	"sync"
)

// duplicates recognizes the second delivery of a message while both links of a rotation are subscribed. The n-th copy
// of the same bytes on one link corresponds to the n-th copy on the other. Two copies on one link are two messages,
// because NATS delivers a message at most once per subscription: the caller has sent the same request twice.
type duplicates struct {
	seed maphash.Seed

	mu     sync.Mutex
	copies map[uint64]map[*link]int
}

func newDuplicates() *duplicates {
	return &duplicates{seed: maphash.MakeSeed(), copies: map[uint64]map[*link]int{}}
}

// seen counts a message and reports whether the other link has already delivered it.
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
