// Package copytree copies a directory tree and verifies the copy. Copy copies everything that a file system stores
// about a file: owners, modes, times to the nanosecond, hard links, symbolic links, holes, extended attributes with
// ACLs and capabilities, device nodes, fifos and sockets. Verify compares names and attributes of both trees, and every
// byte of the copy, read back from the target, with what Copy has read; it reads a file of the source again only if
// they differ. It also sets the flags of chattr(1), which would prevent earlier steps. Complete removes the mark of an
// incomplete copy from the target and gives its owners access. An interrupted copy starts over.
//
// The source is read-only, or bind-mounted, so that it may be changed through other mounts. Only root has access to the
// target. Each file is opened by its name in an open directory, with O_NOFOLLOW, and changed only through its
// descriptor: there is no path that a link could redirect or that is too long. Package worker opens both trees on
// detached mounts, so that nothing is mounted inside them.
package copytree

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Progress counts the files and bytes that a Copy or Verify has processed.
type Progress struct {
	Files int64
	Bytes int64 // of content, without holes
}

// Counter is a Progress that is safe for concurrent use.
type Counter struct{ files, bytes atomic.Int64 }

// Load returns the current progress.
func (c *Counter) Load() Progress { return Progress{Files: c.files.Load(), Bytes: c.bytes.Load()} }

// Trees holds the state of a copy from a source, which is only read, to a target. Each step gets both as open
// directories, so that the target can be unmounted between steps.
type Trees struct {
	from, to *os.File
	mark     string
	own      string
	exact    bool
	digests  digests
	flagged  atomic.Bool // the source has files with chattr(1) flags
	top      attributes  // of the source's top directory

	probing sync.Mutex
	clamped Clamped
}

// Clamped counts the files with times that the target cannot store exactly.
type Clamped struct {
	Files int64
	First string // path of the first one
}

// New returns the state of a new copy. mark is the name of a file at the top of the target that is not part of the
// tree. own is an extended attribute of the top directory that is not copied. With exact set, other files on the target
// are left from an interrupted copy and removed; otherwise they are kept, unless the source has a file of the same
// name.
func New(mark, own string, exact bool) *Trees {
	return &Trees{mark: mark, own: own, exact: exact, digests: newDigests()}
}

// Copy copies the tree and flushes the target. Verify and Complete must follow.
func (t *Trees) Copy(ctx context.Context, from, to *os.File, progress *Counter) error {
	t.from, t.to = from, to
	c := &copier{Trees: t, progress: progress, links: newLinks(), flushDue: make(chan struct{}, 1)}
	flushed := make(chan error, 1)
	go func() { flushed <- c.flushWhenDue() }()
	err := c.removeLeftovers()
	if err == nil {
		err = t.walk(ctx, c, progress).run()
	}
	close(c.flushDue)
	if err = errors.Join(err, <-flushed); err == nil {
		err = c.flush() // reports write errors
	}
	if err != nil {
		return fmt.Errorf("copy %s to %s: %w", from.Name(), to.Name(), err)
	}
	return nil
}

// Verify compares the target with what Copy has read, and sets chattr(1) flags. It returns a *DifferenceError for any
// difference except times that the target cannot store exactly.
func (t *Trees) Verify(ctx context.Context, from, to *os.File, progress *Counter) (Clamped, error) {
	t.from, t.to, t.clamped = from, to, Clamped{}
	w := t.walk(ctx, &verifier{Trees: t, progress: progress, links: newLinks()}, progress)
	w.compareNames = t.exact
	err := w.run()
	if err == nil {
		t.top, err = attributesOf(int(from.Fd()))
	}
	if err != nil {
		return t.clamped, fmt.Errorf("verify %s against %s: %w", to.Name(), from.Name(), err)
	}
	return t.clamped, nil
}

// Complete removes the mark from a verified target, gives its top directory the attributes of the source's, except its
// own, and flushes it. The source need not be mounted.
func (t *Trees) Complete(to *os.File) error {
	fd := int(to.Fd())
	err := unix.Unlinkat(fd, t.mark, 0)
	if errors.Is(err, unix.ENOENT) {
		err = nil
	}
	var have map[string]string
	if err == nil {
		have, err = xattrs(fd, &t.top.st)
	}
	if err == nil {
		want := maps.Clone(t.top.xattrs)
		delete(want, t.own)
		if own, there := have[t.own]; there {
			if want == nil {
				want = map[string]string{}
			}
			want[t.own] = own
		}
		err = copyAttributes(fd, &t.top.st, want)
	}
	if err == nil {
		err = copyFlags(fd, t.top.flags)
	}
	if err == nil {
		err = unix.Syncfs(fd)
	}
	if err != nil {
		return fmt.Errorf("complete the copy on %s: %w", to.Name(), err)
	}
	return nil
}

// DifferenceError describes a difference between two trees.
type DifferenceError struct {
	Path string // relative to both trees
	What string
}

func (e *DifferenceError) Error() string { return fmt.Sprintf("%q differs in %s", e.Path, e.What) }

// changed returns the error for a name that existed when its directory was read. If it is missing or of another kind
// now, that is a difference.
func changed(op string, err error) error {
	switch {
	case errors.Is(err, unix.ENOENT):
		return &DifferenceError{What: "existence"}
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENXIO):
		return &DifferenceError{What: "kind"}
	}
	return fmt.Errorf("%s: %w", op, err)
}
