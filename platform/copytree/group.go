package copytree

import (
	"errors"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Small files are read in groups: all of a group are asked for at once and past the page cache. A disk that takes
// a while to answer then has as many requests as it can take, neighbours become one, and a worker waits
// once for a group instead of once for each file.
const (
	// groupFiles is how many files are open for that at a time.
	groupFiles = 64
)

// A piece is one file of a group.
type piece struct {
	rel  string
	st   unix.Stat_t // of the source
	fd   int         // what is read: the source by Copy, the target by Verify
	room []byte      // whole sectors
	read int64       // how many bytes there were, or an error number below zero
}

// content is what was read, if that is the whole file.
func (p *piece) content() ([]byte, bool) {
	if p.read != p.st.Size {
		return nil, false
	}
	return p.room[:p.read], true
}

// A group is the files that one worker has open to read.
type group struct {
	room   []byte
	used   int
	pieces []piece
	queue  queue
}

// fits reports whether there is room for one more file.
func (g *group) fits(size int64) bool {
	return len(g.pieces) < groupFiles && g.used+sectors(size) <= len(g.room)
}

func sectors(size int64) int { return int(size+alignment-1) &^ (alignment - 1) }

func (g *group) add(p piece) {
	n := sectors(p.st.Size)
	p.room = g.room[g.used : g.used+n : g.used+n]
	g.used += n
	g.pieces = append(g.pieces, p)
}

// read reads all files of the group.
func (g *group) read() {
	if g.queue.read(g.pieces) {
		return
	}
	for i := range g.pieces {
		p := &g.pieces[i]
		n, err := pread(p.fd, p.room, 0)
		if p.read = int64(n); err != nil {
			p.read = -1
		}
	}
}

// empty closes the files.
func (g *group) empty() {
	for i := range g.pieces {
		_ = closeFile(g.pieces[i].fd) // nothing was written
	}
	clear(g.pieces)
	g.pieces, g.used = g.pieces[:0], 0
}

// A queue hands many reads to the kernel with one call. It is the older of its two such interfaces: that one is
// everywhere, allowed everywhere, and for reads past the page cache lacks nothing.
type queue struct {
	context  uintptr // the kernel's name for it, zero if there is none
	controls [groupFiles]control
	pointers [groupFiles]*control
	events   [groupFiles]event
}

// control is the kernel's struct iocb; what is zero here is a read from the start of the file.
type control struct {
	data   uint64
	_      uint64
	_      uint32
	fd     uint32
	buffer uint64
	length uint64
	_      [3]uint64
}

// event is the kernel's struct io_event.
type event struct {
	data   uint64
	_      uint64
	result int64
	_      int64
}

func (q *queue) open() {
	// Where the kernel has none, or none to spare, files are read one by one.
	_, _ = call(unix.SYS_IO_SETUP, groupFiles, uintptr(unsafe.Pointer(&q.context)), 0, 0)
}

func (q *queue) close() {
	if q.context != 0 {
		_, _ = call(unix.SYS_IO_DESTROY, q.context, 0, 0, 0)
		q.context = 0
	}
}

// read returns false if there is no queue. It returns when the kernel has done with all it took.
func (q *queue) read(pieces []piece) bool {
	if q.context == 0 {
		return false
	}
	want := 0
	for i := range pieces {
		p := &pieces[i]
		if p.read = 0; len(p.room) == 0 {
			continue
		}
		p.read = -1
		q.controls[want] = control{
			data: uint64(i), fd: uint32(p.fd),
			buffer: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(p.room)))), length: uint64(len(p.room)),
		}
		q.pointers[want] = &q.controls[want]
		want++
	}
	taken := 0
	for taken < want {
		n, err := call(unix.SYS_IO_SUBMIT, q.context, uintptr(want-taken), uintptr(unsafe.Pointer(&q.pointers[taken])), 0)
		if err != nil {
			break // what it did not take counts as not read
		}
		taken += int(n)
	}
	for taken > 0 {
		n, err := call5(unix.SYS_IO_GETEVENTS, q.context, uintptr(taken), groupFiles, uintptr(unsafe.Pointer(&q.events)), 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			q.close() // which waits for what is under way
			break
		}
		for _, e := range q.events[:n] {
			pieces[e.data].read = e.result
		}
		taken -= int(n)
	}
	runtime.KeepAlive(pieces)
	return true
}
