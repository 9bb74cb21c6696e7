// Package copytree makes one directory tree the same as another, and proves it. Copy carries
// over everything a file system stores about a file: owners, modes, times to the nanosecond,
// hard links, symbolic links, holes, extended attributes and with them ACLs and capabilities,
// device nodes, fifos and sockets. It may be stopped at any moment and started again. Verify
// then compares both trees, names, attributes and every byte. Neither follows links or leaves
// the two trees, and the source is only read.
package copytree

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"sort"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Progress is how far a Copy or Verify has come.
type Progress struct {
	Files int64
	Bytes int64 // of content, holes not counted
}

// Options say how to work.
type Options struct {
	// Workers is how many files are worked on at a time; a few per processor if zero.
	Workers int
	// Exact says that the target held nothing else before: what is there and not in the
	// source is left over from an earlier attempt, and is removed.
	Exact bool
	// Sums, if set in both, saves Verify from reading the source a second time, and tells the next
	// Copy which files to copy again although they look complete.
	Sums *Sums
	// Progress, if set, is updated while the work goes on.
	Progress *Counter
}

// Counter is a Progress that may be read at any time.
type Counter struct{ files, bytes atomic.Int64 }

// Set replaces the present state, for work that is done elsewhere.
func (c *Counter) Set(p Progress) { c.files.Store(p.Files); c.bytes.Store(p.Bytes) }

// Load returns the present state.
func (c *Counter) Load() Progress { return Progress{Files: c.files.Load(), Bytes: c.bytes.Load()} }

// lostFound, at the top of a tree, comes with a file system; what is in it is content like any other.
const lostFound = "lost+found"

// maxDifferences is after how many Verify gives up: it remembers them all.
const maxDifferences = 1 << 16

// Copy brings the tree below the directory to into the state of the one below from.
func Copy(ctx context.Context, from, to string, o Options) error {
	w, err := newWalk(from, to, o)
	if err != nil {
		return fmt.Errorf("copy %s to %s: %w", from, to, err)
	}
	defer w.close()
	unlock, err := lock(ctx, to)
	if err != nil {
		return fmt.Errorf("copy %s to %s: %w", from, to, err)
	}
	defer unlock()
	c := copier{walk: w, flusher: &flusher{due: make(chan struct{}, 1)}}
	flushed := make(chan struct{})
	go func() {
		defer close(flushed)
		for range c.due {
			if err := unix.Syncfs(w.to); err != nil {
				w.fail(fmt.Errorf("flush: %w", err))
			}
		}
	}()
	err = w.run(ctx, c)
	close(c.due)
	<-flushed
	if err == nil {
		err = w.stopped() // the last flush may have failed behind the last file
	}
	if err != nil {
		return fmt.Errorf("copy %s to %s: %w", from, to, err)
	}
	// The place where the kernel reports what it could not write.
	if err := unix.Syncfs(w.to); err != nil {
		return fmt.Errorf("copy %s to %s: flush: %w", from, to, err)
	}
	return nil
}

// Verify compares the two trees and returns a *DifferenceError if there is any difference.
func Verify(ctx context.Context, from, to string, o Options) error {
	w, err := newWalk(from, to, o)
	if err != nil {
		return fmt.Errorf("verify %s against %s: %w", to, from, err)
	}
	defer w.close()
	unlock, err := lock(ctx, to)
	if err != nil {
		return fmt.Errorf("verify %s against %s: %w", to, from, err)
	}
	defer unlock()
	w.collects = true
	err = w.run(ctx, verifier{w})
	var differs *DifferenceError
	if w.differences > 0 && (err == nil || errors.As(err, &differs)) {
		w.first.Others = w.differences - 1
		err = w.first
	}
	if err != nil {
		return fmt.Errorf("verify %s against %s: %w", to, from, err)
	}
	return nil
}

// DifferenceError says where two trees are not the same.
type DifferenceError struct {
	Path string // relative to both trees
	What string
	// Again means that the file has been copied again since it was found to differ, and still does.
	Again bool
	// Others is how many more differences there are, as far as they were counted.
	Others int
}

func (e *DifferenceError) Error() string {
	text := fmt.Sprintf("%q differs in %s", e.Path, e.What)
	if e.Again {
		text += ", also after it was copied again"
	}
	if e.Others > 0 {
		text += fmt.Sprintf(", and %d others differ", e.Others)
	}
	return text
}

// A visitor treats one entry; before is called for a directory ahead of its entries and after
// behind them. Small files go through open and done, all of a group at a time; either may leave one to entry.
type visitor interface {
	before(rel string, st *unix.Stat_t) error
	after(rel string, st *unix.Stat_t) error
	entry(rel string, st *unix.Stat_t, me *worker) error
	open(rel string, p *piece) (bool, error)
	done(p *piece) (bool, error)
}

// walk goes through the source tree with several workers. Work is kept on stacks, so that
// what is open at a time stays small however large the tree is.
type walk struct {
	from, to int // directories
	options  Options
	links    linkMap

	mu      sync.Mutex
	wake    *sync.Cond
	workers []*worker
	working int
	failed  error

	collects    bool // differences do not end the work
	differences int
	first       *DifferenceError
}

// A worker has a stack of its own, and takes from the bottom of another's when that is empty: workers then are in
// different directories for as long as there are enough, and do not wait for each other there.
type worker struct {
	a, b  []byte // a blockSize each
	group group
	stack []func(*worker) error
}

// batch is how many entries of a directory are one piece of work.
const batch = 128

func newWalk(from, to string, o Options) (*walk, error) {
	if o.Workers == 0 {
		o.Workers = 2 * runtime.NumCPU()
	}
	if o.Progress == nil {
		o.Progress = &Counter{}
	}
	w := &walk{options: o, links: linkMap{known: map[uint64]*linkState{}}}
	w.wake = sync.NewCond(&w.mu)
	var err error
	if w.from, err = unix.Open(from, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return nil, &os.PathError{Op: "open", Path: from, Err: err}
	}
	if w.to, err = unix.Open(to, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		_ = unix.Close(w.from)
		return nil, &os.PathError{Op: "open", Path: to, Err: err}
	}
	return w, nil
}

// lock waits until nobody else works on the target: one who was killed may not have ended yet.
func lock(ctx context.Context, target string) (unlock func(), err error) {
	dir, err := os.Open(target)
	if err != nil {
		return nil, err
	}
	fd := int(dir.Fd())
	locked := make(chan error, 1)
	go func() { locked <- unix.Flock(fd, unix.LOCK_EX) }()
	release := func() { _ = dir.Close() } // nothing was written
	select {
	case err := <-locked:
		if err != nil {
			release()
			return nil, &os.PathError{Op: "lock", Path: target, Err: err}
		}
		return release, nil
	case <-ctx.Done():
		go func() { <-locked; release() }()
		return nil, context.Cause(ctx)
	}
}

func (w *walk) close() {
	_ = unix.Close(w.from)
	_ = unix.Close(w.to)
}

func (w *walk) push(me *worker, work func(*worker) error) {
	w.mu.Lock()
	me.stack = append(me.stack, work)
	w.mu.Unlock()
	w.wake.Signal()
}

func (w *walk) run(ctx context.Context, v visitor) error {
	stop := context.AfterFunc(ctx, func() { w.fail(context.Cause(ctx)) })
	defer stop()
	for range w.options.Workers {
		w.workers = append(w.workers, &worker{})
	}
	w.push(w.workers[0], func(me *worker) error { return w.directory(v, ".", nil, me) })
	defer makeRoom(w.options.Workers)()
	var all sync.WaitGroup
	for _, me := range w.workers {
		all.Go(func() {
			stepAside()
			me.a, me.b = alignedBuffer(blockSize), alignedBuffer(blockSize)
			me.group.queue.open()
			defer me.group.queue.close()
			for {
				work := w.next(me)
				if work == nil {
					return
				}
				err := work(me)
				w.mu.Lock()
				w.working--
				w.mu.Unlock()
				if err != nil {
					w.fail(err)
				}
				w.wake.Broadcast()
			}
		})
	}
	all.Wait()
	return w.stopped()
}

func (w *walk) fail(err error) {
	w.mu.Lock()
	if w.failed == nil {
		w.failed = err
	}
	w.mu.Unlock()
	w.wake.Broadcast()
}

// stopped returns why the work is to end before its time, if it is.
func (w *walk) stopped() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failed
}

func (w *walk) next(me *worker) func(*worker) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		if w.failed != nil {
			return nil
		}
		if work := w.take(me); work != nil {
			w.working++
			return work
		}
		if w.working == 0 {
			return nil
		}
		w.wake.Wait()
	}
}

// take returns the latest work of a worker, or the oldest of the one who has most.
func (w *walk) take(me *worker) (work func(*worker) error) {
	if n := len(me.stack); n > 0 {
		work, me.stack = me.stack[n-1], me.stack[:n-1]
		return work
	}
	busiest := me
	for _, other := range w.workers {
		if len(other.stack) > len(busiest.stack) {
			busiest = other
		}
	}
	if len(busiest.stack) > 0 {
		work, busiest.stack = busiest.stack[0], busiest.stack[1:]
	}
	return work
}

// node is a directory whose entries are not all done. The last piece of work below it finishes
// it: only then do its times stay as they are set.
type node struct {
	rel    string
	st     unix.Stat_t
	open   atomic.Int64
	parent *node
}

func (w *walk) finish(v visitor, n *node) error {
	for ; n != nil && n.open.Add(-1) == 0; n = n.parent {
		if err := v.after(n.rel, &n.st); err != nil {
			return at("finish", n.rel, err)
		}
		w.options.Progress.files.Add(1)
	}
	return nil
}

func (w *walk) directory(v visitor, rel string, parent *node, me *worker) error {
	n := &node{rel: rel, parent: parent}
	if err := lstatat(w.from, rel, &n.st); err != nil {
		return w.differs(vanished("stat", rel, err), nil)
	}
	if err := v.before(rel, &n.st); err != nil {
		return w.differs(at("enter", rel, err), nil)
	}
	names, err := readNames(w.from, rel)
	if err != nil {
		return w.differs(vanished("read directory", rel, err), nil)
	}
	if w.options.Exact {
		if err := w.surplus(v, rel, names); err != nil {
			return err
		}
	}
	// Inodes are numbered by where they are, and what was made together lies together: the disk goes forward.
	sort.Slice(names, func(a, b int) bool { return names[a].inode < names[b].inode })
	parts := (len(names) + batch - 1) / batch
	n.open.Store(int64(parts) + 1)
	for i := parts - 1; i >= 0; i-- { // so that the first ends up on top
		part := names[i*batch : min((i+1)*batch, len(names))]
		w.push(me, func(me *worker) error {
			if err := w.part(v, n, part, me); err != nil {
				return err
			}
			return w.finish(v, n)
		})
	}
	return w.finish(v, n)
}

// part deals with some entries of a directory.
func (w *walk) part(v visitor, parent *node, names []name, me *worker) error {
	g := &me.group
	defer g.empty() // if it ends early
	g.room = me.a
	var others []string
	done := func() error {
		g.read()
		for i := range g.pieces {
			p := &g.pieces[i]
			ok, err := v.done(p)
			switch {
			case err != nil:
				return at("", p.rel, err)
			case ok:
				w.options.Progress.files.Add(1)
			default:
				others = append(others, p.rel)
			}
		}
		g.empty()
		return w.stopped()
	}
	for _, name := range names {
		p := piece{rel: path.Join(parent.rel, name.text)}
		if name.kind != unix.DT_REG {
			others = append(others, p.rel)
			continue
		}
		ok, err := v.open(p.rel, &p)
		if err != nil {
			if err := w.differs(at("", p.rel, err), nil); err != nil {
				return err
			}
			continue
		}
		if !ok {
			others = append(others, p.rel)
			continue
		}
		if !g.fits(p.st.Size) {
			if err := done(); err != nil {
				_ = closeFile(p.fd) // nothing was written
				return err
			}
		}
		g.add(p)
	}
	if err := done(); err != nil {
		return err
	}
	for _, rel := range others {
		if err := w.one(v, parent, rel, me); err != nil {
			return err
		}
	}
	return nil
}

// readable reports whether a file can be read in one piece, at once with others.
func readable(st *unix.Stat_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFREG && st.Nlink == 1 && st.Size < largeFile && st.Blocks*512 >= st.Size
}

func (w *walk) one(v visitor, parent *node, rel string, me *worker) error {
	var st unix.Stat_t
	if err := lstatat(w.from, rel, &st); err != nil {
		return w.differs(vanished("stat", rel, err), nil)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		if st.Dev != parent.st.Dev {
			return at("enter", rel, errors.New("another file system is mounted here"))
		}
		parent.open.Add(1)
		w.push(me, func(me *worker) error { return w.directory(v, rel, parent, me) })
		return nil
	}
	err := v.entry(rel, &st, me)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = &DifferenceError{Path: rel, What: "size"} // it became shorter while it was read
	}
	if err != nil {
		return w.differs(at("", rel, err), &st)
	}
	w.options.Progress.files.Add(1)
	return nil
}

// differs is where differences go: each ends a Copy, while Verify collects them. Of a file, st is what
// the source says.
func (w *walk) differs(err error, st *unix.Stat_t) error {
	var d *DifferenceError
	if !w.collects || !errors.As(err, &d) {
		return err
	}
	if st != nil {
		d.Again = w.options.Sums.suspect(st)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.differences++; w.first == nil || d.Again && !w.first.Again {
		w.first = d
	}
	if w.differences < maxDifferences {
		return nil
	}
	return err
}

// surplus deals with what only the target has.
func (w *walk) surplus(v visitor, rel string, names []name) error {
	have, err := readNames(w.to, rel)
	if err != nil {
		return at("read directory", rel, err)
	}
	known := make(map[string]bool, len(names))
	for _, n := range names {
		known[n.text] = true
	}
	for _, n := range have {
		if known[n.text] {
			continue
		}
		extra := path.Join(rel, n.text)
		if extra == lostFound {
			if inside, err := readNames(w.to, extra); err == nil && len(inside) == 0 {
				continue
			}
		}
		if _, copying := v.(copier); !copying {
			if err := w.differs(&DifferenceError{Path: extra, What: "being there"}, nil); err != nil {
				return err
			}
			continue
		}
		if err := removeAll(w.to, extra); err != nil {
			return at("remove", extra, err)
		}
	}
	return nil
}

// removeAll goes through /proc because os.RemoveAll wants a path and we have a directory.
func removeAll(dir int, rel string) error {
	return os.RemoveAll(fmt.Sprintf("/proc/self/fd/%d/%s", dir, rel))
}

// A name is an entry of a directory, with what the directory itself knows of it.
type name struct {
	text  string
	inode uint64
	kind  uint8 // as in DT_REG, or DT_UNKNOWN
}

func readNames(dir int, rel string) ([]name, error) {
	fd, err := openFile(dir, rel, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer closeFile(fd)
	var names []name
	b := make([]byte, 32<<10)
	for {
		n, err := unix.Getdents(fd, b)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			return names, err
		}
		// Each is a struct linux_dirent64: inode, offset, length of the entry, kind, name with a zero at its end.
		const text = 19
		for rest := b[:n]; len(rest) > text; {
			entry := rest[:binary.NativeEndian.Uint16(rest[16:])]
			rest = rest[len(entry):]
			if s := unix.ByteSliceToString(entry[text:]); s != "." && s != ".." {
				names = append(names, name{s, binary.NativeEndian.Uint64(entry), entry[18]})
			}
		}
	}
}

// vanished is at for what has just been seen in the source: if it is not there any more, the source
// was changed meanwhile.
func vanished(what, rel string, err error) error {
	if errors.Is(err, unix.ENOENT) {
		return &DifferenceError{Path: rel, What: "being there"}
	}
	return at(what, rel, err)
}

func at(what, rel string, err error) error {
	var difference *DifferenceError
	if errors.As(err, &difference) {
		return err
	}
	if what == "" {
		return fmt.Errorf("%q: %w", rel, err)
	}
	return fmt.Errorf("%s %q: %w", what, rel, err)
}

// linkMap remembers files with several names. The first worker that meets one deals with it,
// the others wait for that and then only look at their own name.
type linkMap struct {
	mu    sync.Mutex
	known map[uint64]*linkState
}

type linkState struct {
	done chan struct{}
	rel  string // the first name
	left uint64 // how many names have not been met
	err  error
}

// first reports whether the caller is the first to meet the file; if so, it must call done.
func (l *linkMap) first(st *unix.Stat_t, rel string) (*linkState, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s, ok := l.known[st.Ino]; ok {
		if s.left--; s.left == 0 {
			delete(l.known, st.Ino)
		}
		return s, false
	}
	s := &linkState{done: make(chan struct{}), rel: rel, left: uint64(st.Nlink) - 1}
	l.known[st.Ino] = s
	return s, true
}
