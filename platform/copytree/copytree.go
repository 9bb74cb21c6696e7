// Package copytree makes one directory tree the same as another, and proves it. Copy carries over everything a file
// system stores about a file: owners, modes, times to the nanosecond, hard links, symbolic links, holes, extended
// attributes and with them ACLs and capabilities, device nodes, fifos and sockets. Verify then compares the names and
// attributes of both trees, and every byte of the copy, read back, with what Copy has read: of the source a file is read
// once more only if that differs. It sets the flags of chattr(1), which would have stood in the way before. Complete
// removes from the target the mark of an incomplete copy, and opens it to its owners. An interrupted copy starts over.
//
// The source is read-only, or bind-mounted and may be changed past its mount; nobody but root gets into the target.
// Each file is opened by its name in a directory that is open already, with O_NOFOLLOW, and changed through its
// descriptor only: there is no path that a link could redirect, and none that is too long. Package worker has both
// trees on detached mounts, so that nothing is mounted inside them.
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
	Bytes int64 // of content, holes not counted
}

// Counter is a Progress that may be read at any time.
type Counter struct{ files, bytes atomic.Int64 }

// Load returns the present state.
func (c *Counter) Load() Progress { return Progress{Files: c.files.Load(), Bytes: c.bytes.Load()} }

// Trees are a source, which is only read, and a target. They are opened for each step: in between, the target may be
// unmounted.
type Trees struct {
	from, to *os.File
	mark     string
	own      string
	exact    bool
	digests  digests
	flagged  atomic.Bool // the source has files with flags to keep
	top      attributes  // of the source

	probing sync.Mutex
	clamped Clamped
}

// Clamped are the files with times that the target cannot hold.
type Clamped struct {
	Files int64
	First string // a path of one
}

// New returns the trees of one copy. Mark is the name of a file at the top of the target, which is not a part of the
// tree, and own that of an extended attribute of the top directory, which each tree has for itself. Exact says that
// other files are left over from an interrupted copy, and are removed; otherwise they are kept where the source has
// nothing of that name.
func New(mark, own string, exact bool) *Trees {
	return &Trees{mark: mark, own: own, exact: exact, digests: newDigests()}
}

// Copy brings the target into the state of the source and flushes it, except for what Verify and Complete do.
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
		err = c.flush() // where the kernel reports what it could not write
	}
	if err != nil {
		return fmt.Errorf("copy %s to %s: %w", from.Name(), to.Name(), err)
	}
	return nil
}

// Verify compares the target with what Copy has read of the source, and returns a *DifferenceError if there is any
// difference. Times that the target cannot hold are none. What was compared gets its flags.
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

// Complete removes the mark, if there is one, from a target that has been copied and verified, gives its top directory
// the attributes of the source's except its own, and flushes it. It does not need the source any more.
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

// DifferenceError says where two trees are not the same.
type DifferenceError struct {
	Path string // relative to both trees
	What string
}

func (e *DifferenceError) Error() string { return fmt.Sprintf("%q differs in %s", e.Path, e.What) }

// changed is the error for a name that was there when its directory was read: if it is gone or
// something else now, that is a difference.
func changed(op string, err error) error {
	switch {
	case errors.Is(err, unix.ENOENT):
		return &DifferenceError{What: "existence"}
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENXIO):
		return &DifferenceError{What: "kind"}
	}
	return fmt.Errorf("%s: %w", op, err)
}
