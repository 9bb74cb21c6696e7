// Package rootdir works below directories that other users can change while it does. os.Root keeps every name below
// them, but neither it nor fs.WalkDir is meant for a hostile owner: opening a FIFO in place of a directory blocks
// until it has a writer, a directory is read whole, and each level of a tree costs its whole path.
package rootdir

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// maxDepth bounds the nesting of directories, and maxPath the length of a path below the root. The latter is the
// kernel's limit, so that other programs could not name anything deeper either. A walk has two files open per level.
const (
	maxDepth = 256
	maxPath  = unix.PathMax
)

// ErrTooDeep means that a path is longer than maxPath, or below more than maxDepth directories.
var ErrTooDeep = errors.New("the path is too long")

// batch bounds the entries of a directory that are in memory at a time.
const batch = 1024

// File opens a directory for reading, and fails at once for anything else.
func File(root *os.Root, name string) (*os.File, error) {
	return root.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
}

// Open opens a directory below root, following links only inside it. Root.OpenRoot blocks where name is a FIFO.
func Open(root *os.Root, name string) (*os.Root, error) {
	dir, err := File(root, name)
	if err != nil {
		return nil, err
	}
	opened, err := sameDirectory(dir)
	return opened, errors.Join(err, dir.Close())
}

// sameDirectory opens a directory again through /proc, so that it is the same one even if the name was replaced.
func sameDirectory(dir *os.File) (*os.Root, error) {
	return os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", dir.Fd()))
}

// Visit is called for each entry. Name is its path below the root; dir is the directory that it is in, where
// entry.Name() names it: what is done there does not cost the whole path again.
type Visit func(dir *os.Root, name string, entry fs.DirEntry, err error) error

// Walk calls visit for everything below root, directories before what is in them, in the order of names among up to
// 1024 entries of a directory. It does not descend into links. What cannot be read is visited with the error. Walk ends
// with the first error that visit returns, or when ctx ends. It takes as long as there are entries, however deep.
func Walk(ctx context.Context, root *os.Root, visit Visit) error {
	dir, err := File(root, ".")
	if err != nil {
		return visit(root, ".", nil, err)
	}
	return walker{ctx, visit}.read(dir, root, ".", nil, 0)
}

type walker struct {
	ctx   context.Context
	visit Visit
}

// read visits what is in dir, which it closes; root is the same directory.
func (w walker) read(dir *os.File, root *os.Root, name string, entry fs.DirEntry, depth int) error {
	defer func() { _ = dir.Close() }() // only read from
	for {
		entries, err := dir.ReadDir(batch)
		slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
		for _, e := range entries {
			if w.ctx.Err() != nil {
				return context.Cause(w.ctx)
			}
			if err := w.entry(root, path.Join(name, e.Name()), e, depth); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return w.visit(root, name, entry, err)
		}
	}
}

func (w walker) entry(parent *os.Root, name string, entry fs.DirEntry, depth int) error {
	if len(name) >= maxPath || depth == maxDepth && entry.IsDir() {
		return w.visit(parent, name[:min(len(name), 64)]+"…", entry, ErrTooDeep)
	}
	if err := w.visit(parent, name, entry, nil); err != nil || !entry.IsDir() {
		return err
	}
	dir, err := File(parent, entry.Name())
	if err != nil {
		return w.visit(parent, name, entry, err)
	}
	root, err := sameDirectory(dir)
	if err != nil {
		return errors.Join(w.visit(parent, name, entry, err), dir.Close())
	}
	defer func() { _ = root.Close() }() // nothing was written
	return w.read(dir, root, name, entry, depth+1)
}
