// Package rootdir works in directories that other users can change at the same time. os.Root keeps every access below
// the directory, but neither it nor fs.WalkDir is designed for a hostile owner: opening a FIFO in place of a directory
// blocks, directories are read whole, and each level of a tree resolves its whole path again.
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

// maxDepth bounds the nesting of directories, and maxPath the length of a path below the root. maxPath is the kernel's
// limit, so other programs cannot access deeper files either. A walk has two open files per level.
const (
	maxDepth = 256
	maxPath  = unix.PathMax
)

// ErrTooDeep means that a path is longer than maxPath, or below more than maxDepth directories.
var ErrTooDeep = errors.New("the path is too long")

// batch bounds the entries of a directory that are read at a time.
const batch = 1024

// OpenDir opens a directory for reading. It fails at once if name is anything else.
func OpenDir(root *os.Root, name string) (*os.File, error) {
	return root.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
}

// Open opens a directory below root. It follows links only within root. Root.OpenRoot would block if name is a FIFO.
func Open(root *os.Root, name string) (*os.Root, error) {
	dir, err := OpenDir(root, name)
	if err != nil {
		return nil, err
	}
	opened, err := sameDirectory(dir)
	return opened, errors.Join(err, dir.Close())
}

// sameDirectory opens the same directory as a Root, through /proc, even if its name was replaced meanwhile.
func sameDirectory(dir *os.File) (*os.Root, error) {
	return os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", dir.Fd()))
}

// Visit is called for each entry. name is its path below the root. dir is the directory that contains it, in which it
// is called entry.Name(); access through dir does not resolve the whole path again.
type Visit func(dir *os.Root, name string, entry fs.DirEntry, err error) error

// Walk calls visit for everything below root, a directory before its content. The entries of a directory are sorted in
// batches of 1024. Links are not followed. If something cannot be read, visit is called with the error. Walk returns
// the first error of visit, or when ctx ends. Its time depends only on the number of entries, and not on the depth.
func Walk(ctx context.Context, root *os.Root, visit Visit) error {
	dir, err := OpenDir(root, ".")
	if err != nil {
		return visit(root, ".", nil, err)
	}
	return walker{ctx, visit}.read(dir, root, ".", nil, 0)
}

type walker struct {
	ctx   context.Context
	visit Visit
}

// read visits the content of dir, and closes dir. root is the same directory.
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
	dir, err := OpenDir(parent, entry.Name())
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
