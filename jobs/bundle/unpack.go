package bundle

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"cambium/internal/blob"
)

// Limits of an archive. The largest known packages have only a few hundred thousand files and a few GiB.
const (
	maxEntries   = 2_000_000
	maxBytes     = 64 << 30
	maxNameBytes = 4096
	// maxDepth bounds the directories in a path, because the kernel resolves each of them for each entry.
	maxDepth = 256
	// maxDirBytes bounds the length of the names of all directories, which are kept in memory until the end.
	maxDirBytes = 32 << 20
	// spare defines the part of the file system's free space that is kept, as a divisor.
	spare = 20
)

// errHostile means that an archive was refused for its content.
var errHostile = errors.New("archive refused")

func refuse(name, why string) error { return fmt.Errorf("%w: entry %q: %s", errHostile, name, why) }

// Target decides where an entry of an archive goes. It returns the root to write below, and the path in it. If root is
// nil, the entry is skipped. name is clean, and has no leading slash and no "..".
type Target func(name string) (root *os.Root, rel string)

// Rules configures Unpack.
type Rules struct {
	Target Target
	// NoLinks refuses symbolic and hard links.
	NoLinks bool
	// Mode, if set, returns the mode of an entry, in place of that in the archive.
	Mode func(rel string, dir bool) fs.FileMode
	// UID and GID own all files.
	UID, GID int
	// MaxBytes, MaxEntries and MaxDirBytes replace the constants if they are set.
	MaxBytes    int64
	MaxEntries  int
	MaxDirBytes int
}

// Into returns a Target that writes all entries below root.
func Into(root *os.Root) Target {
	return func(name string) (*os.Root, string) { return root, name }
}

// Compression names the compression of an archive; Plain means none.
type Compression string

const (
	Plain Compression = "tar"
	Gzip  Compression = "gzip"
	Zstd  Compression = "zstd"
)

// Unpack unpacks a tar archive, plain or compressed. It reads r to the end, so that a digest computed by r covers
// everything. It writes nothing outside the target's roots, whatever the archive contains, because the kernel resolves
// paths and links below the root.
func Unpack(ctx context.Context, r io.Reader, rules Rules) (Compression, error) {
	compression, err := unpack(ctx, r, rules)
	if err == nil || ctx.Err() != nil {
		return compression, err
	}
	// Content with a wrong digest may make the tar reader fail anywhere. The digest is known at the end of
	// r; if it does not match, report that alone.
	var mismatch *blob.Mismatch
	if _, end := io.Copy(io.Discard, &contextReader{ctx, r}); errors.As(end, &mismatch) {
		return compression, fmt.Errorf("read archive: %w", end)
	}
	return compression, err
}

func unpack(ctx context.Context, r io.Reader, rules Rules) (Compression, error) {
	buffered := bufio.NewReaderSize(r, 256<<10)
	compression, decompressed, closeDecompressed, err := decompress(buffered)
	if err != nil {
		return compression, err
	}
	defer closeDecompressed()
	u := &unpacking{
		ctx:    ctx,
		rules:  rules,
		seen:   map[dirKey]bool{},
		dirs:   map[dirKey]finalDir{},
		buffer: make([]byte, 256<<10),
	}
	if u.rules.MaxBytes == 0 {
		u.rules.MaxBytes = maxBytes
	}
	if u.rules.MaxEntries == 0 {
		u.rules.MaxEntries = maxEntries
	}
	if u.rules.MaxDirBytes == 0 {
		u.rules.MaxDirBytes = maxDirBytes
	}
	defer u.parent.forget()
	if err := u.entries(tar.NewReader(decompressed)); err != nil {
		return compression, err
	}
	// Padding and trailing garbage of the tar, then whatever follows the compressed stream. The
	// amount is bounded by the same limit.
	if _, err := io.Copy(io.Discard, io.LimitReader(&contextReader{ctx, decompressed}, u.rules.MaxBytes)); err != nil {
		return compression, fmt.Errorf("read archive: %w", err)
	}
	if _, err := io.Copy(io.Discard, &contextReader{ctx, buffered}); err != nil {
		return compression, fmt.Errorf("read archive: %w", err)
	}
	return compression, u.finish()
}

func decompress(r *bufio.Reader) (Compression, io.Reader, func(), error) {
	magic, err := r.Peek(6)
	if err != nil && err != io.EOF {
		return Plain, nil, nil, fmt.Errorf("read archive: %w", err)
	}
	nothing := func() {}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(r)
		if err != nil {
			return Gzip, nil, nil, fmt.Errorf("read archive: %w", err)
		}
		return Gzip, z, func() { _ = z.Close() }, nil
	case bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		// The window limit bounds memory, whatever the frame asks for.
		z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(128<<20))
		if err != nil {
			return Zstd, nil, nil, fmt.Errorf("read archive: %w", err)
		}
		return Zstd, z, z.Close, nil
	case bytes.HasPrefix(magic, []byte("BZh")):
		return Plain, nil, nil, errors.New("read archive: bzip2 compression is not supported; use gzip or zstd")
	case bytes.HasPrefix(magic, []byte{0xfd, '7', 'z', 'X', 'Z', 0}):
		return Plain, nil, nil, errors.New("read archive: xz compression is not supported; use gzip or zstd")
	}
	return Plain, r, nothing, nil
}

type dirKey struct {
	root *os.Root
	rel  string
}

// finalDir is a directory whose mode and time are set at the end, because writing to it would change the time, and the
// mode may not permit it.
type finalDir struct {
	mode  fs.FileMode
	mtime time.Time
}

// openDir keeps the last directory open. The kernel resolves a path component by component, and most entries are in the
// directory of the previous one.
type openDir struct {
	key  dirKey
	root *os.Root
}

func (d *openDir) forget() {
	if d.root != nil {
		_ = d.root.Close() // read only
	}
	*d = openDir{}
}

// openParent opens the directory of rel. The result is valid until the next call.
func (d *openDir) openParent(root *os.Root, rel string) (dir *os.Root, base string, err error) {
	parent := path.Dir(rel)
	if parent == "." {
		return root, rel, nil
	}
	if key := (dirKey{root, parent}); d.key != key {
		d.forget()
		opened, err := root.OpenRoot(parent)
		if err != nil {
			return nil, "", err
		}
		d.key, d.root = dirKey{root, strings.Clone(parent)}, opened
	}
	return d.root, path.Base(rel), nil
}

type unpacking struct {
	ctx      context.Context
	rules    Rules
	seen     map[dirKey]bool
	dirs     map[dirKey]finalDir
	dirBytes int // of the names in seen
	parent   openDir
	written  int64
	room     int64 // free bytes at the first entry
	buffer   []byte
}

func (u *unpacking) entries(archive *tar.Reader) error {
	for count := 0; ; count++ {
		if err := u.ctx.Err(); err != nil {
			return context.Cause(u.ctx)
		}
		header, err := archive.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read archive: %w", err)
		}
		if count >= u.rules.MaxEntries {
			return fmt.Errorf("%w: more than %d entries", errHostile, u.rules.MaxEntries)
		}
		if header.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		if err := u.entry(archive, header); err != nil {
			return err
		}
	}
}

// cleanName converts "./a/b/" to "a/b". It fails for a name that is not below the root.
func cleanName(name string) (string, error) {
	switch {
	case len(name) > maxNameBytes:
		return "", refuse(name[:64]+"…", "the name is too long")
	case strings.HasPrefix(name, "/"):
		return "", refuse(name, "the path is absolute")
	case strings.ContainsRune(name, 0):
		return "", refuse(name, "the name contains a NUL byte")
	}
	depth := 0
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", refuse(name, "the path leaves the archive")
		}
		depth++
	}
	if depth > maxDepth {
		return "", refuse(name[:64]+"…", fmt.Sprintf("more than %d directories deep", maxDepth))
	}
	return path.Clean(name), nil
}

func (u *unpacking) entry(archive *tar.Reader, header *tar.Header) error {
	name, err := cleanName(header.Name)
	if err != nil {
		return err
	}
	root, rel := u.rules.Target(name)
	if root == nil {
		return nil
	}
	if u.room == 0 {
		if u.room, err = room(root); err != nil {
			return err
		}
	}
	mode := header.FileInfo().Mode()
	if u.rules.Mode != nil {
		mode = u.rules.Mode(rel, header.Typeflag == tar.TypeDir)
	}
	if rel != "." {
		if err := u.parents(root, path.Dir(rel)); err != nil {
			return fmt.Errorf("unpack %s: %w", name, err)
		}
	}
	switch header.Typeflag {
	case tar.TypeDir:
		if err := u.directory(root, rel); err != nil {
			return fmt.Errorf("unpack %s: %w", name, err)
		}
		// The caller sets the mode of the root itself.
		if rel != "." {
			u.dirs[dirKey{root, rel}] = finalDir{mode, header.ModTime}
		}
	case tar.TypeReg, tar.TypeGNUSparse:
		if rel == "." {
			return refuse(name, "a file in place of the directory")
		}
		return u.file(archive, header, root, rel, mode)
	case tar.TypeSymlink, tar.TypeLink:
		if u.rules.NoLinks {
			return refuse(name, "links are not allowed here")
		}
		return u.link(header, name, root, rel)
	default:
		return refuse(name, "not a file, directory or link")
	}
	return nil
}

// room returns the number of bytes that may still be written to root's file system: its free space minus the reserve,
// and never less than 1.
func room(root *os.Root) (int64, error) {
	dir, err := root.Open(".")
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &st); err != nil {
		return 0, fmt.Errorf("free space: %w", err)
	}
	free := int64(min(st.Bavail, 1<<40)) * st.Bsize
	return max(free-free/spare, 1), nil
}

// parents creates directories that the archive has not listed, or not yet.
func (u *unpacking) parents(root *os.Root, rel string) error {
	if rel == "." || u.seen[dirKey{root, rel}] {
		return nil
	}
	if err := u.parents(root, path.Dir(rel)); err != nil {
		return err
	}
	if err := u.directory(root, rel); err != nil {
		return err
	}
	mode := fs.FileMode(0o755)
	if u.rules.Mode != nil {
		mode = u.rules.Mode(rel, true)
	}
	u.dirs[dirKey{root, rel}] = finalDir{mode: mode}
	return nil
}

func (u *unpacking) directory(root *os.Root, rel string) error {
	key := dirKey{root, rel}
	if u.seen[key] {
		return nil
	}
	if rel != "." {
		dir, base, err := u.parent.openParent(root, rel)
		if err != nil {
			return err
		}
		if err := dir.Mkdir(base, 0o700); err != nil {
			// An existing symbolic link to a directory is not one of ours to write through.
			info, statErr := dir.Lstat(base)
			if !errors.Is(err, fs.ErrExist) || statErr != nil || !info.IsDir() {
				return err
			}
		}
		if err := u.own(dir, base); err != nil {
			return err
		}
	}
	// The two maps cost about 200 bytes beside each name.
	if u.dirBytes += len(rel) + 200; u.dirBytes > u.rules.MaxDirBytes {
		return fmt.Errorf("%w: the names of its directories take more than %d bytes", errHostile, u.rules.MaxDirBytes)
	}
	u.seen[dirKey{root, strings.Clone(rel)}] = true
	return nil
}

func (u *unpacking) own(root *os.Root, rel string) error {
	if u.rules.UID == os.Geteuid() && u.rules.GID == os.Getegid() {
		return nil // new files have this owner
	}
	return root.Lchown(rel, u.rules.UID, u.rules.GID)
}

func (u *unpacking) file(archive io.Reader, header *tar.Header, root *os.Root, rel string,
	mode fs.FileMode) (err error) {
	u.written += header.Size
	if u.written > u.rules.MaxBytes {
		return fmt.Errorf("%w: unpacks to more than %d bytes", errHostile, u.rules.MaxBytes)
	}
	if u.written > u.room {
		return fmt.Errorf("unpack %s: %w", rel, unix.ENOSPC)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("unpack %s: %w", rel, err)
		}
	}()
	dir, base, err := u.parent.openParent(root, rel)
	if err != nil {
		return err
	}
	f, err := create(dir, base)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	n, err := io.CopyBuffer(onlyWriter{f}, &contextReader{u.ctx, archive}, u.buffer)
	if err != nil {
		return err
	}
	if n != header.Size {
		return refuse(rel, "its size differs from its header")
	}
	if err := u.own(dir, base); err != nil {
		return err
	}
	// After chown, which clears setuid and setgid bits.
	if err := f.Chmod(mode); err != nil {
		return err
	}
	// The modification time is what make compares in the sources of a package.
	return setTime(dir, base, header.ModTime)
}

// create creates a file. It replaces an earlier entry with the same name, as tar does, and never writes through it,
// because it could be a link.
func create(dir *os.Root, base string) (*os.File, error) {
	f, err := dir.OpenFile(base, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if !errors.Is(err, fs.ErrExist) {
		return f, err
	}
	if info, statErr := dir.Lstat(base); statErr != nil || info.IsDir() {
		return nil, err
	}
	if err := dir.Remove(base); err != nil {
		return nil, err
	}
	return dir.OpenFile(base, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
}

func setTime(dir *os.Root, base string, t time.Time) error {
	if t.IsZero() || t.Unix() < 0 {
		return nil
	}
	return dir.Chtimes(base, t, t)
}

func (u *unpacking) link(header *tar.Header, name string, root *os.Root, rel string) error {
	if rel == "." || header.Linkname == "" {
		return refuse(name, "a link without a name or target")
	}
	u.parent.forget() // a link may replace it
	if _, err := root.Lstat(rel); err == nil {
		if err := root.Remove(rel); err != nil {
			return fmt.Errorf("unpack %s: %w", name, err)
		}
		delete(u.seen, dirKey{root, rel})
	}
	if header.Typeflag == tar.TypeSymlink {
		// The target may be anything: packages link to other packages by absolute paths. It is
		// never followed out of the root while unpacking.
		if err := root.Symlink(header.Linkname, rel); err != nil {
			return fmt.Errorf("unpack %s: %w", name, err)
		}
		return u.own(root, rel)
	}
	target, err := cleanName(header.Linkname)
	if err != nil {
		return err
	}
	targetRoot, targetRel := u.rules.Target(target)
	if targetRoot != root {
		return refuse(name, "a hard link to an entry that is not unpacked")
	}
	if info, err := root.Lstat(targetRel); err != nil || !info.Mode().IsRegular() {
		return refuse(name, "a hard link to something other than a file of the archive")
	}
	if err := root.Link(targetRel, rel); err != nil {
		return fmt.Errorf("unpack %s: %w", name, err)
	}
	return nil
}

// finish sets modes and times of directories, the innermost first.
func (u *unpacking) finish() error {
	keys := slices.SortedFunc(maps.Keys(u.dirs), func(a, b dirKey) int { return strings.Compare(b.rel, a.rel) })
	for _, d := range keys {
		dir, base, err := u.parent.openParent(d.root, d.rel)
		if err != nil {
			continue // a later entry replaced it
		}
		if info, err := dir.Lstat(base); err != nil || !info.IsDir() {
			continue
		}
		if err := dir.Chmod(base, u.dirs[d].mode); err != nil {
			return fmt.Errorf("unpack %s: %w", d.rel, err)
		}
		if err := setTime(dir, base, u.dirs[d].mtime); err != nil {
			return fmt.Errorf("unpack %s: %w", d.rel, err)
		}
	}
	return nil
}

// contextReader fails when its context has ended.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c *contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, context.Cause(c.ctx)
	}
	return c.r.Read(p)
}
