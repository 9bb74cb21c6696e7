// Package rootdir works below directories that other users can change while it does. os.Root keeps every name below
// them, but neither it nor fs.WalkDir is meant for a hostile owner: opening a FIFO in the place of a directory blocks
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

// maxPath is how long a path below the root may be. It is the kernel's limit of a path, so that other programs could not
// name what is deeper either.
const maxPath = unix.PathMax

// ErrTooDeep means that a path is longer than maxPath.
var ErrTooDeep = errors.New("the path is too long")

// batch is how many entries of a directory are in memory at a time.
const batch = 1024

// File opens a directory for reading, and fails at once for anything else.
func File(root *os.Root, name string) (*os.File, error) {
	return root.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
}

// Open opens a directory below root, following links only inside of it. Root.OpenRoot blocks where name is a FIFO.
func Open(root *os.Root, name string) (*os.Root, error) {
	dir, err := File(root, name)
	if err != nil {
		return nil, err
	}
	// Through /proc, so that it is the same directory even if the name was replaced.
	opened, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", dir.Fd()))
	return opened, errors.Join(err, dir.Close())
}

// Walk calls visit for everything below root, directories before what is in them, in the order of names among up to 1024
// entries of a directory. It does not descend into links. What cannot be read is visited with the error. Walk ends
// with the first error that visit returns, or when ctx ends.
func Walk(ctx context.Context, root *os.Root, visit func(name string, entry fs.DirEntry, err error) error) error {
	return walk(ctx, root, ".", nil, visit)
}

func walk(ctx context.Context, root *os.Root, name string, entry fs.DirEntry, visit func(string, fs.DirEntry, error) error) error {
	dir, err := File(root, name)
	if err != nil {
		return visit(name, entry, err)
	}
	defer func() { _ = dir.Close() }() // only read from
	for {
		entries, err := dir.ReadDir(batch)
		slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
		for _, e := range entries {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			below := path.Join(name, e.Name())
			if len(below) >= maxPath {
				if err := visit(below[:64]+"…", e, ErrTooDeep); err != nil {
					return err
				}
				continue
			}
			if err := visit(below, e, nil); err != nil {
				return err
			}
			if e.IsDir() {
				if err := walk(ctx, root, below, e, visit); err != nil {
					return err
				}
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return visit(name, entry, err)
		}
	}
}
