package copytree

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const (
	// batchSize bounds the directory entries that a worker takes at a time. Most directories are a single batch, so
	// that workers create files in different directories and do not wait for each other.
	batchSize = 1024
	// lostFound is a directory at the top of a new file system. Its entries are content like any other.
	lostFound = "lost+found"
)

// Workers returns the number of files to process concurrently: enough for several pending requests to the disk.
func Workers() int { return 8 * runtime.NumCPU() }

// visitor processes the entries found by a walk.
type visitor interface {
	// enter opens the target of a directory, before its entries are read.
	enter(d *dir) error
	// entry processes anything but a directory.
	entry(d *dir, e entry, me *worker) error
	// finishDir is called after everything below a directory was processed.
	finishDir(d *dir) error
}

// dir is a directory of both trees until everything below it was processed. Its descriptors remain open until then; the
// kernel keeps the parents of an open directory in memory anyway.
type dir struct {
	parent   *dir // nil at the top
	name     string
	from, to int
	st       unix.Stat_t // of the source
	entered  bool
	pending  atomic.Int64
}

// path returns the path of an entry, for messages only.
func (d *dir) path(name string) string {
	parts := []string{name}
	for ; d.parent != nil; d = d.parent {
		parts = append(parts, d.name)
	}
	slices.Reverse(parts)
	return strings.Join(parts, "/")
}

func (d *dir) ownPath() string {
	if d.parent == nil {
		return "."
	}
	return d.parent.path(d.name)
}

// worker holds the state of one goroutine of a walk.
type worker struct {
	ctx  context.Context // canceled by the first error
	a, b []byte          // buffers of blockSize
}

// task is a subdirectory to enter, or a batch of entries.
type task struct {
	dir     *dir
	sub     string
	entries []entry
}

// walk traverses the source tree with several workers. Tasks are kept on a stack, so that only a few directories are
// open even in a large tree.
type walk struct {
	*Trees
	visitor
	progress *Counter
	ctx      context.Context // canceled by the first error
	fail     context.CancelCauseFunc

	mu      sync.Mutex
	wake    *sync.Cond
	tasks   []task
	working int

	compareNames bool // report entries that only the target has
}

func (t *Trees) walk(ctx context.Context, v visitor, progress *Counter) *walk {
	w := &walk{Trees: t, visitor: v, progress: progress}
	w.ctx, w.fail = context.WithCancelCause(ctx)
	w.wake = sync.NewCond(&w.mu)
	return w
}

func (w *walk) run() error {
	defer w.fail(nil)
	top := &dir{from: int(w.from.Fd()), to: int(w.to.Fd())}
	top.pending.Store(1)
	if err := unix.Fstat(top.from, &top.st); err != nil {
		return err
	}
	w.scan(top)
	w.release(top)
	var workers sync.WaitGroup
	for range Workers() {
		workers.Go(w.work)
	}
	workers.Wait()
	return context.Cause(w.ctx)
}

func (w *walk) work() {
	me := &worker{ctx: w.ctx, a: make([]byte, blockSize), b: make([]byte, blockSize)}
	for {
		t, ok := w.next()
		if !ok {
			return
		}
		if t.sub != "" && w.ctx.Err() == nil {
			w.descend(t.dir, t.sub)
		}
		w.visitAll(t.dir, t.entries, me)
		w.release(t.dir)
		w.mu.Lock()
		if w.working--; w.working == 0 {
			w.wake.Broadcast()
		}
		w.mu.Unlock()
	}
}

// next returns the latest task, or false if all are done.
func (w *walk) next() (task, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.tasks) == 0 {
		if w.working == 0 {
			return task{}, false
		}
		w.wake.Wait()
	}
	t := w.tasks[len(w.tasks)-1]
	w.tasks = w.tasks[:len(w.tasks)-1]
	w.working++
	return t, true
}

func (w *walk) push(t task) {
	t.dir.pending.Add(1)
	w.mu.Lock()
	w.tasks = append(w.tasks, t)
	w.mu.Unlock()
	w.wake.Signal()
}

// release drops a reference to a directory. The last one finishes it: later changes would update its times.
func (w *walk) release(d *dir) {
	for ; d != nil && d.pending.Add(-1) == 0; d = d.parent {
		if d.entered && w.ctx.Err() == nil {
			if err := w.finishDir(d); err != nil {
				w.failed(d.ownPath(), err)
			} else {
				w.progress.files.Add(1)
			}
		}
		if d.parent != nil {
			closeAll(d.from, d.to)
		}
	}
}

func (w *walk) descend(parent *dir, name string) {
	d := &dir{parent: parent, name: name, to: -1}
	var err error
	if d.from, err = openDir(parent.from, name); err != nil {
		w.failed(parent.path(name), changed("open", err))
		return
	}
	parent.pending.Add(1)
	d.pending.Store(1)
	if err := unix.Fstat(d.from, &d.st); err != nil {
		w.failed(d.ownPath(), err)
	} else {
		w.scan(d)
	}
	w.release(d)
}

// scan enters a directory and creates tasks for its entries.
func (w *walk) scan(d *dir) {
	err := w.enter(d)
	if err != nil {
		w.failed(d.ownPath(), err)
		return
	}
	d.entered = true
	entries, err := readDir(d.from)
	if err != nil {
		w.failed(d.ownPath(), fmt.Errorf("read directory: %w", err))
		return
	}
	if d.parent == nil && slices.ContainsFunc(entries, func(e entry) bool { return e.name == w.mark }) {
		w.failed(w.mark, errors.New("the name is reserved for disks with an incomplete copy: rename that file"))
		return
	}
	if w.compareNames {
		if err := w.findSurplus(d, entries); err != nil {
			w.failed(d.ownPath(), err)
			return
		}
	}
	// Sort by inode number, which follows the location on the disk.
	slices.SortFunc(entries, func(a, b entry) int { return cmp.Compare(a.inode, b.inode) })
	for len(entries) > 0 {
		n := min(batchSize, len(entries))
		w.push(task{dir: d, entries: entries[:n]})
		entries = entries[n:]
	}
}

func (w *walk) findSurplus(d *dir, entries []entry) error {
	have, err := readDir(d.to)
	if err != nil {
		return fmt.Errorf("read directory of the copy: %w", err)
	}
	known := make(map[string]bool, len(entries))
	for _, e := range entries {
		known[e.name] = true
	}
	for _, e := range have {
		if !known[e.name] && (d.parent != nil || !w.belongs(e.name, d.to)) {
			w.failed(d.path(e.name), &DifferenceError{What: "existence"})
		}
	}
	return nil
}

// visitAll processes a batch of entries.
func (w *walk) visitAll(d *dir, entries []entry, me *worker) {
	for _, e := range entries {
		if w.ctx.Err() != nil {
			return
		}
		if err := w.visit(d, e, me); err != nil {
			w.failed(d.path(e.name), err)
		}
	}
}

func (w *walk) visit(d *dir, e entry, me *worker) error {
	if err := e.findKind(d.from); err != nil {
		return err
	}
	if e.kind == unix.DT_DIR {
		w.push(task{dir: d, sub: e.name})
		return nil
	}
	if err := w.entry(d, e, me); err != nil {
		return err
	}
	w.progress.files.Add(1)
	return nil
}

// failed ends the walk with an error.
func (w *walk) failed(path string, err error) {
	var differs *DifferenceError
	if !errors.As(err, &differs) {
		err = fmt.Errorf("%q: %w", path, err)
	} else {
		differs.Path = path
		err = differs
	}
	w.fail(err)
}

// links records files with several hard links. The first worker that meets one copies it; the others wait for that and
// create links to it.
type links struct {
	mu    sync.Mutex
	known map[uint64]*link
}

type link struct {
	done   chan struct{}
	dir    string // the first name's directory, "." at the top
	name   string
	target uint64 // inode of the copy, for Verify
	left   uint64 // number of names not met yet
	err    error
}

func newLinks() *links { return &links{known: map[uint64]*link{}} }

// meet reports whether the caller is the first to meet the file. The first closes done once it has copied the file.
func (l *links) meet(st *unix.Stat_t, d *dir, name string) (*link, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known, ok := l.known[st.Ino]; ok {
		if known.left--; known.left == 0 {
			delete(l.known, st.Ino)
		}
		return known, false
	}
	first := &link{done: make(chan struct{}), dir: d.ownPath(), name: name, left: uint64(st.Nlink) - 1}
	l.known[st.Ino] = first
	return first, true
}
