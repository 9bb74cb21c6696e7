package probe

import "io"

const (
	cachedBlock = 64 << 10
	cachedCount = 6
)

// Cached reads a device in blocks and keeps the last few of them. The signatures of a disk's content are
// many small reads close together; on a disk that is not in the page cache each of them would be an I/O
// operation of its own. It is for one probe of the disk: it does not notice changes. It must not be used
// by several goroutines.
type Cached struct {
	r      io.ReaderAt
	size   int64
	blocks [cachedCount]block
	next   int
}

type block struct {
	data  []byte // nil if there is none
	start int64
}

// NewCached reads from r, which has size bytes.
func NewCached(r io.ReaderAt, size int64) *Cached { return &Cached{r: r, size: size} }

// ReadAt implements io.ReaderAt.
func (c *Cached) ReadAt(p []byte, offset int64) (n int, err error) {
	if offset < 0 || len(p) > cachedBlock || offset+int64(len(p)) > c.size {
		return c.r.ReadAt(p, offset)
	}
	for n < len(p) {
		at := offset + int64(n)
		data := c.block(at / cachedBlock * cachedBlock)
		if data == nil {
			// A bad sector may be outside of the requested bytes: read those alone.
			more, err := c.r.ReadAt(p[n:], at)
			return n + more, err
		}
		n += copy(p[n:], data[at%cachedBlock:])
	}
	return n, nil
}

// block returns nil if the block cannot be read as a whole.
func (c *Cached) block(start int64) []byte {
	for _, b := range c.blocks {
		if b.data != nil && b.start == start {
			return b.data
		}
	}
	slot := &c.blocks[c.next]
	c.next = (c.next + 1) % cachedCount
	data := slot.data[:0:cap(slot.data)]
	if data == nil {
		data = make([]byte, 0, cachedBlock)
	}
	data = data[:min(cachedBlock, c.size-start)]
	if n, _ := c.r.ReadAt(data, start); n < len(data) {
		*slot = block{}
		return nil
	}
	*slot = block{data, start}
	return data
}
