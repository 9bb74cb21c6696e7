// Package copytree makes one directory tree the same as another, and proves it. Copy carries
// over everything a file system stores about a file: owners, modes, times to the nanosecond,
// hard links, symbolic links, holes, extended attributes and with them ACLs and capabilities,
// device nodes, fifos and sockets. It may be stopped at any moment and started again. Verify
// then compares both trees, names, attributes and every byte. Finish opens the copy to its
// owners and sets the flags of chattr(1), which would have stood in the way before.
//
// Other users may rename and replace what is below either tree at any moment. Each file is
// therefore opened by its name in a directory that is open already, with O_NOFOLLOW, and changed
// through its descriptor only: there is no path that a link could lead astray, and none that is too
// long. While a directory of the target is filled it belongs to root alone. Package apart has both
// trees mounted privately, so that nothing is mounted inside them.
package copytree

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Progress is how far a Copy or Verify has come.
type Progress struct {
	Files int64
	Bytes int64 // of content, holes not counted
}

// Counter is a Progress that may be read at any time.
type Counter struct{ files, bytes atomic.Int64 }

// Load returns the present state.
func (c *Counter) Load() Progress { return Progress{Files: c.files.Load(), Bytes: c.bytes.Load()} }

// Trees are a source, which is only read, and a target.
type Trees struct {
	from, to *os.File
	exact    bool
	digests  digests
	flagged  atomic.Bool // the source has files with flags to keep
}

// New returns the trees below two directories. It waits until no other process works on the
// target: one that was killed may not have ended yet. Exact says that the target held nothing
// before the first Copy: what is there and not in the source is left over from an interrupted one,
// and is removed. The caller closes the directories when it is done.
func New(from, to *os.File, exact bool) (*Trees, error) {
	err := unix.Flock(int(to.Fd()), unix.LOCK_EX)
	for errors.Is(err, unix.EINTR) {
		err = unix.Flock(int(to.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		return nil, &os.PathError{Op: "lock", Path: to.Name(), Err: err}
	}
	return &Trees{from: from, to: to, exact: exact, digests: newDigests()}, nil
}

// Copy brings the target into the state of the source and flushes it, except for what Finish does:
// until then the target's top directory belongs to root alone.
func (t *Trees) Copy(ctx context.Context, progress *Counter) error {
	c := &copier{Trees: t, progress: progress, links: newLinks(), flushDue: make(chan struct{}, 1)}
	flushed := make(chan error, 1)
	go func() { flushed <- c.flushWhenDue() }()
	err := t.walk(ctx, c, progress).run()
	close(c.flushDue)
	if err = errors.Join(err, <-flushed); err == nil {
		err = c.flush() // where the kernel reports what it could not write
	}
	if err != nil {
		return fmt.Errorf("copy %s to %s: %w", t.from.Name(), t.to.Name(), err)
	}
	return nil
}

// Verify compares the two trees and returns a *DifferenceError if there is any difference.
func (t *Trees) Verify(ctx context.Context, progress *Counter) error {
	w := t.walk(ctx, &verifier{Trees: t, progress: progress, links: newLinks()}, progress)
	w.collects = true
	err := w.run()
	var differs *DifferenceError
	if w.differences > 0 && (err == nil || errors.As(err, &differs)) {
		w.first.Others = w.differences - 1
		err = w.first
	}
	if err != nil {
		return fmt.Errorf("verify %s against %s: %w", t.to.Name(), t.from.Name(), err)
	}
	return nil
}

// Finish completes a target that has been copied and verified.
func (t *Trees) Finish(ctx context.Context) error {
	err := t.finish(ctx)
	if err == nil {
		err = unix.Syncfs(int(t.to.Fd()))
	}
	if err != nil {
		return fmt.Errorf("finish the copy of %s to %s: %w", t.from.Name(), t.to.Name(), err)
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

	inode uint64 // of the source, for files that Verify has compared
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

// changed is the error for a name that was there when its directory was read: if it is gone or
// something else now, that is a difference.
func changed(op string, err error) error {
	switch {
	case errors.Is(err, unix.ENOENT):
		return &DifferenceError{What: "being there"}
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENXIO):
		return &DifferenceError{What: "kind"}
	}
	return fmt.Errorf("%s: %w", op, err)
}
