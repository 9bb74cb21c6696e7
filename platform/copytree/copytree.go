// Package copytree makes one directory tree the same as another, and proves it. Copy carries
// over everything a file system stores about a file: owners, modes, times to the nanosecond,
// hard links, symbolic links, holes, extended attributes and with them ACLs and capabilities,
// device nodes, fifos and sockets. It may be stopped at any moment and started again. Verify
// then compares both trees, names, attributes and every byte. Neither follows links or leaves
// the two trees, and the source is only read.
package copytree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
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
	// Sums, if set in both, saves Verify from reading the source a second time.
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

// skipped at the top of a tree belongs to the file system and not to its content.
const skipped = "lost+found"

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
	if err != nil {
		return fmt.Errorf("copy %s to %s: %w", from, to, err)
	}
	// The place where the kernel reports what it could not write.
	if err := unix.Syncfs(w.to); err != nil {
		return fmt.Errorf("copy %s to %s: flush: %w", from, to, err)
	}
	return nil
}

// Verify compares the two trees and returns a *DifferenceError for the first difference.
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
	if err := w.run(ctx, verifier{w}); err != nil {
		return fmt.Errorf("verify %s against %s: %w", to, from, err)
	}
	return nil
}

// DifferenceError says where two trees are not the same.
type DifferenceError struct {
	Path string // relative to both trees
	What string
}

func (e *DifferenceError) Error() string { return fmt.Sprintf("%q differs in %s", e.Path, e.What) }

// A visitor treats one entry; before is called for a directory ahead of its entries and after
// behind them.
type visitor interface {
	before(rel string, st *unix.Stat_t) error
	after(rel string, st *unix.Stat_t) error
	entry(rel string, st *unix.Stat_t, buffers *buffers) error
}

// walk goes through the source tree with several workers. Work is kept on a stack, so that
// what is open at a time stays small however large the tree is.
type walk struct {
	from, to int // directories
	options  Options
	links    linkMap

	mu      sync.Mutex
	wake    *sync.Cond
	stack   []func(*buffers) error
	working int
	failed  error
}

// batch is how many entries of a directory are one piece of work.
const batch = 128

type buffers struct{ a, b []byte }

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

func (w *walk) push(work func(*buffers) error) {
	w.mu.Lock()
	w.stack = append(w.stack, work)
	w.mu.Unlock()
	w.wake.Signal()
}

func (w *walk) run(ctx context.Context, v visitor) error {
	stop := context.AfterFunc(ctx, func() { w.fail(context.Cause(ctx)) })
	defer stop()
	w.push(func(b *buffers) error { return w.directory(v, ".", nil, b) })
	defer makeRoom(w.options.Workers)()
	var all sync.WaitGroup
	for range w.options.Workers {
		all.Go(func() {
			stepAside()
			b := &buffers{a: alignedBuffer(blockSize), b: alignedBuffer(blockSize)}
			for {
				work := w.next()
				if work == nil {
					return
				}
				err := work(b)
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

func (w *walk) next() func(*buffers) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		if w.failed != nil || len(w.stack) == 0 && w.working == 0 {
			return nil
		}
		if n := len(w.stack); n > 0 {
			work := w.stack[n-1]
			w.stack = w.stack[:n-1]
			w.working++
			return work
		}
		w.wake.Wait()
	}
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

func (w *walk) directory(v visitor, rel string, parent *node, b *buffers) error {
	n := &node{rel: rel, parent: parent}
	if err := lstatat(w.from, rel, &n.st); err != nil {
		return vanished("stat", rel, err)
	}
	if err := v.before(rel, &n.st); err != nil {
		return at("enter", rel, err)
	}
	names, err := readNames(w.from, rel)
	if err != nil {
		return vanished("read directory", rel, err)
	}
	if w.options.Exact {
		if err := w.surplus(v, rel, names); err != nil {
			return err
		}
	}
	pieces := (len(names) + batch - 1) / batch
	n.open.Store(int64(pieces) + 1)
	for i := range pieces {
		part := names[i*batch : min((i+1)*batch, len(names))]
		w.push(func(b *buffers) error {
			for _, name := range part {
				if err := w.one(v, n, name, b); err != nil {
					return err
				}
			}
			return w.finish(v, n)
		})
	}
	return w.finish(v, n)
}

func (w *walk) one(v visitor, parent *node, name string, b *buffers) error {
	if parent.rel == "." && name == skipped {
		return nil
	}
	rel := path.Join(parent.rel, name)
	var st unix.Stat_t
	if err := lstatat(w.from, rel, &st); err != nil {
		return vanished("stat", rel, err)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		if st.Dev != parent.st.Dev {
			return at("enter", rel, errors.New("another file system is mounted here"))
		}
		parent.open.Add(1)
		w.push(func(b *buffers) error { return w.directory(v, rel, parent, b) })
		return nil
	}
	err := v.entry(rel, &st, b)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return &DifferenceError{Path: rel, What: "size"} // it became shorter while it was read
	}
	if err != nil {
		return at("", rel, err)
	}
	w.options.Progress.files.Add(1)
	return nil
}

// surplus deals with what only the target has.
func (w *walk) surplus(v visitor, rel string, names []string) error {
	have, err := readNames(w.to, rel)
	if err != nil {
		return at("read directory", rel, err)
	}
	known := make(map[string]bool, len(names))
	for _, n := range names {
		known[n] = true
	}
	for _, name := range have {
		if known[name] || rel == "." && name == skipped {
			continue
		}
		extra := path.Join(rel, name)
		if _, copying := v.(copier); !copying {
			return &DifferenceError{Path: extra, What: "being there"}
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

func readNames(dir int, rel string) ([]string, error) {
	fd, err := unix.Openat(dir, rel, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NOATIME, 0)
	if errors.Is(err, unix.EPERM) {
		fd, err = unix.Openat(dir, rel, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), rel)
	defer f.Close()
	return f.Readdirnames(-1)
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
	err  error
}

// first reports whether the caller is the first to meet the file; if so, it must call done.
func (l *linkMap) first(inode uint64, rel string) (*linkState, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s, ok := l.known[inode]; ok {
		return s, false
	}
	s := &linkState{done: make(chan struct{}), rel: rel}
	l.known[inode] = s
	return s, true
}
