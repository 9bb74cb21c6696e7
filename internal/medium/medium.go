// Package medium reads files from config drives and CDs without mounting them: ISO 9660 (plain, Rock Ridge, Joliet) and
// FAT. It never writes and does not trust the medium: sizes, depths and the number of bytes read are limited, and a
// damaged medium is an error.
//
// FAT is read by go-diskfs, after the structures that it does not check were checked here (see fat.go). ISO 9660 is
// read here (iso.go), because go-diskfs allocates any size that a descriptor claims, and finds nothing below the first
// level of a medium that has only Joliet.
package medium

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"sync/atomic"
)

// Limits. A config drive has at most a few tens of MiB, with a handful of short files.
const (
	maxReadBytes = 64 << 20 // read from a volume in total
	maxDirectory = 1 << 20  // bytes of one directory
	maxDepth     = 16       // names in a path
)

// ErrUnknown means that there is no file system that this package can read.
var ErrUnknown = errors.New("no iso9660 or vfat file system")

// ErrDamaged means that the medium is inconsistent. A retry does not help.
var ErrDamaged = errors.New("damaged file system")

// Volume is a file system on the medium.
type Volume struct {
	Kind string // "iso9660" or "vfat"
	// Labels has its labels: one, none, or two if Joliet has a different one.
	Labels []string

	in    *guarded
	trees []tree
}

// tree is a directory hierarchy of a volume. An ISO may have two.
type tree interface {
	// list returns the entries of a directory that was returned by list; nil is the root.
	list(dir *entry) ([]entry, error)
	read(file entry, limit int64) ([]byte, error)
}

type entry struct {
	name    string
	dir     bool
	link    bool
	size    int64
	extents []extent // ISO
	path    string   // FAT
}

// Open returns the file system on r. It returns ErrUnknown if there is none: like mount, it does not look into the
// partitions of a device, which have devices of their own. Reads fail after ctx has ended.
func Open(ctx context.Context, r io.ReaderAt, size int64) (v *Volume, err error) {
	defer recovered(&err)
	in := newGuarded(ctx, r, size)
	if v, err = openISO(in); err == nil || !errors.Is(err, ErrUnknown) {
		return v, err
	}
	return openFAT(in)
}

// recovered turns a panic into an error. go-diskfs slices by lengths that it reads from the medium.
func recovered(err *error) {
	if r := recover(); r != nil {
		*err = ErrDamaged
	}
}

// HasLabel reports whether the volume has the label. The case does not matter, because mkfs.vfat writes labels in upper
// case.
func (v *Volume) HasLabel(label string) bool {
	for _, l := range v.Labels {
		if strings.EqualFold(l, label) {
			return true
		}
	}
	return false
}

// ReadFile returns the content of a file. If no name matches exactly, it ignores case, a trailing dot, and the ";1"
// that plain ISO 9660 appends. If the file does not exist, the error is fs.ErrNotExist and lists the files that do.
func (v *Volume) ReadFile(name string, limit int64) (content []byte, err error) {
	defer recovered(&err)
	clean := strings.TrimPrefix(path.Clean("/"+name), "/")
	parts := strings.Split(clean, "/")
	if clean == "" || len(parts) > maxDepth {
		return nil, fmt.Errorf("%s: not a valid name", name)
	}
	var missing error
	for _, t := range v.trees {
		content, err = readFrom(t, parts, limit)
		// go-diskfs drops read errors and goes on with zeros; the guard remembers them.
		if failed := v.in.failure(); failed != nil {
			return nil, fmt.Errorf("%s: %w", clean, failed)
		}
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			if err != nil {
				err = fmt.Errorf("%s: %w", clean, err)
			}
			return content, err
		}
		if missing == nil { // the first tree has the better names
			missing = err
		}
	}
	return nil, fmt.Errorf("%s: %w", clean, missing)
}

func readFrom(t tree, parts []string, limit int64) ([]byte, error) {
	var at *entry
	for i, part := range parts {
		entries, err := t.list(at)
		if err != nil {
			return nil, err
		}
		next := pick(entries, part)
		if next == nil {
			return nil, fmt.Errorf("%w%s", fs.ErrNotExist, instead(entries))
		}
		last := i == len(parts)-1
		switch {
		case next.link:
			return nil, errors.New("is a symbolic link, which is not followed")
		case last && next.dir:
			return nil, errors.New("is a directory")
		case !last && !next.dir:
			return nil, fmt.Errorf("%w: %s is not a directory", fs.ErrNotExist, part)
		}
		at = next
	}
	if at.size > limit {
		return nil, fmt.Errorf("too large: %d KiB, the limit is %d KiB", at.size>>10, limit>>10)
	}
	return t.read(*at, limit)
}

func pick(entries []entry, name string) *entry {
	for i := range entries {
		if entries[i].name == name {
			return &entries[i]
		}
	}
	for i := range entries {
		if strings.EqualFold(withoutVersion(entries[i].name), withoutVersion(name)) {
			return &entries[i]
		}
	}
	return nil
}

// withoutVersion removes what ISO 9660 appends to names: ";1", and the dot of an empty extension.
func withoutVersion(name string) string {
	if i := strings.LastIndexByte(name, ';'); i > 0 {
		digits := name[i+1:]
		if digits != "" && strings.Trim(digits, "0123456789") == "" {
			name = name[:i]
		}
	}
	if trimmed := strings.TrimSuffix(name, "."); trimmed != "" {
		name = trimmed
	}
	return name
}

// instead lists a few names, so that "META_DAT.JSO" shows why there is no "meta-data.json": the medium was made without
// long names. The agent does not guess.
func instead(entries []entry) string {
	if len(entries) == 0 {
		return "; the directory is empty"
	}
	const most = 8
	var names []string
	short := true
	for i, e := range entries {
		short = short && isShort(withoutVersion(e.name))
		if i < most {
			names = append(names, fmt.Sprintf("%q", e.name))
		}
	}
	text := "; there are " + strings.Join(names, ", ")
	if len(entries) > most {
		text += fmt.Sprintf(" and %d more", len(entries)-most)
	}
	if short {
		text += " (only 8.3 names: the medium was made without Rock Ridge, Joliet or long names)"
	}
	return text
}

func isShort(name string) bool {
	base, extension, _ := strings.Cut(name, ".")
	return name == strings.ToUpper(name) && len(base) <= 8 && len(extension) <= 3
}

// guarded is a device that contains a volume, with a limit on the bytes read from it.
type guarded struct {
	ctx    context.Context
	r      io.ReaderAt
	size   int64
	budget atomic.Int64
	failed atomic.Pointer[error]
}

func newGuarded(ctx context.Context, r io.ReaderAt, size int64) *guarded {
	g := &guarded{ctx: ctx, r: r, size: size}
	g.budget.Store(maxReadBytes)
	return g
}

// ReadAt reads all of p or fails. Each read counts as a little more than its length, so that an endless sequence of
// empty reads ends, too.
func (g *guarded) ReadAt(p []byte, off int64) (int, error) {
	n, err := g.readAt(p, off)
	if err != nil {
		g.failed.CompareAndSwap(nil, &err)
	}
	return n, err
}

func (g *guarded) readAt(p []byte, off int64) (int, error) {
	switch {
	case g.ctx.Err() != nil:
		return 0, context.Cause(g.ctx)
	case off < 0 || off > g.size || int64(len(p)) > g.size-off:
		return 0, fmt.Errorf("%w: points beyond its end", ErrDamaged)
	case g.budget.Add(-int64(len(p))-512) < 0:
		return 0, fmt.Errorf("%w: more than %d MiB to read", ErrDamaged, maxReadBytes>>20)
	}
	n, err := g.r.ReadAt(p, off)
	if n == len(p) {
		return n, nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// failure returns the first error of a read since the last call.
func (g *guarded) failure() error {
	if p := g.failed.Swap(nil); p != nil {
		return *p
	}
	return nil
}

func (g *guarded) bytes(off int64, n int) ([]byte, error) {
	b := make([]byte, n)
	_, err := g.ReadAt(b, off)
	return b, err
}
