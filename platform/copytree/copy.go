package copytree

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

type copier struct {
	*walk
	*flusher
}

// flushEvery is after how much the target is flushed while the copying goes on: the one disk
// writes while the other is read, and little is left to wait for at the end.
const flushEvery = 128 << 20

type flusher struct {
	written atomic.Int64
	due     chan struct{}
}

func (c copier) wrote(n int64) {
	c.options.Progress.bytes.Add(n)
	if now := c.written.Add(n); now/flushEvery != (now-n)/flushEvery {
		select {
		case c.due <- struct{}{}:
		default: // one is due already
		}
	}
}

func (c copier) before(rel string, _ *unix.Stat_t) error {
	if rel == "." {
		return c.handNothingDown(rel)
	}
	err := unix.Mkdirat(c.to, rel, 0o700)
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	var have unix.Stat_t
	if err := lstatat(c.to, rel, &have); err != nil {
		return err
	}
	if have.Mode&unix.S_IFMT == unix.S_IFDIR {
		return c.handNothingDown(rel)
	}
	if !c.options.Exact {
		return errors.New("the target has something else of that name")
	}
	if err := unix.Unlinkat(c.to, rel, 0); err != nil {
		return err
	}
	return unix.Mkdirat(c.to, rel, 0o700)
}

// handNothingDown takes away the default ACL of a directory that was there before: what is made in it would get
// it as its own. If the source has one it is set again in the end.
func (c copier) handNothingDown(rel string) error {
	err := unix.Lremovexattr(procPath(c.to, rel), "system.posix_acl_default")
	if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	return err
}

func (c copier) after(rel string, st *unix.Stat_t) error { return c.attributes(rel, st) }

// open opens a source that is read together with others.
func (c copier) open(rel string, p *piece) (bool, error) {
	var err error
	if p.fd, err = openFile(c.from, rel, unix.O_RDONLY|unix.O_DIRECT); errors.Is(err, unix.EINVAL) {
		p.fd, err = openFile(c.from, rel, unix.O_RDONLY) // a file system without such reads
	}
	if err != nil {
		return false, vanished("open", rel, err)
	}
	if err := fstat(p.fd, &p.st); err != nil {
		return false, errors.Join(err, closeFile(p.fd))
	}
	if !readable(&p.st) {
		return false, closeFile(p.fd)
	}
	return true, nil
}

// done writes what was read of a source. False means that the target has something of that name, or that the
// source could not be read so.
func (c copier) done(p *piece) (bool, error) {
	content, whole := p.content()
	if !whole {
		return false, nil
	}
	target, err := c.create(p.rel, &p.st)
	if errors.Is(err, unix.EEXIST) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err = writeAt(target, content, 0); err == nil {
		c.wrote(p.st.Size)
		err = c.finishFile(p.fd, target, &p.st, c.options.Sums.block(content, 0), true)
	}
	return true, errors.Join(err, closeFile(target))
}

func (c copier) entry(rel string, st *unix.Stat_t, me *worker) (err error) {
	if st.Nlink > 1 {
		state, first := c.links.first(st, rel)
		if !first {
			<-state.done
			if state.err != nil {
				return nil // reported where it happened
			}
			return c.link(state.rel, rel)
		}
		defer func() { state.err = err; close(state.done) }()
	}
	if st.Mode&unix.S_IFMT == unix.S_IFREG {
		// As a rule nothing is there yet, and nobody need look.
		if err := c.file(rel, st, me); !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	var have unix.Stat_t
	switch err := lstatat(c.to, rel, &have); {
	case errors.Is(err, unix.ENOENT):
	case err != nil:
		return err
	case c.complete(rel, st, &have):
		c.options.Progress.bytes.Add(min(st.Blocks*512, st.Size))
		return nil
	case have.Mode&unix.S_IFMT == unix.S_IFDIR && !c.options.Exact:
		return errors.New("the target has a directory of that name")
	default:
		if err := removeAll(c.to, rel); err != nil {
			return err
		}
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return c.file(rel, st, me)
	case unix.S_IFLNK:
		target, err := readlink(c.from, rel)
		if err != nil {
			return err
		}
		if err := unix.Symlinkat(target, c.to, rel); err != nil {
			return err
		}
	default:
		if err := unix.Mknodat(c.to, rel, st.Mode&^0o7777|0o600, int(st.Rdev)); err != nil {
			return err
		}
	}
	return c.attributes(rel, st)
}

// complete reports whether a file looks as if it was copied before an interruption: the times are set last. It
// can look so and have lost its content in a power cut; Verify compares the bytes and suspects it then.
func (c copier) complete(rel string, st, have *unix.Stat_t) bool {
	if st.Mode&unix.S_IFMT != unix.S_IFREG || !same(st, have) || c.options.Sums.suspected(st) {
		return false
	}
	return verifier{c.walk}.sameXattrs(rel) == nil
}

func (c copier) link(first, rel string) error {
	var have, want unix.Stat_t
	if err := lstatat(c.to, first, &want); err != nil {
		return err
	}
	if lstatat(c.to, rel, &have) == nil {
		if have.Ino == want.Ino {
			return nil
		}
		if err := removeAll(c.to, rel); err != nil {
			return err
		}
	}
	return unix.Linkat(c.to, first, c.to, rel, 0)
}

func (c copier) file(rel string, st *unix.Stat_t, me *worker) error {
	if st.Size >= largeFile {
		return c.largeFile(rel, st, me)
	}
	source, err := openFile(c.from, rel, unix.O_RDONLY)
	if err != nil {
		return vanished("open", rel, err)
	}
	defer closeFile(source)
	target, err := c.create(rel, st)
	if err != nil {
		return err
	}
	digest, err := c.content(source, target, st, me.a)
	if err == nil {
		err = c.finishFile(source, target, st, digest, st.Blocks*512 >= st.Size)
	}
	return errors.Join(err, closeFile(target))
}

// finishFile gives a file its attributes, and remembers its digest where there is one.
func (c copier) finishFile(source, target int, st *unix.Stat_t, digest uint64, whole bool) error {
	attributes, err := setAttributes(source, target, st)
	if err == nil && whole {
		c.options.Sums.put(st, digest, c.options.Sums.attributes(attributes))
	}
	return err
}

func (c copier) create(rel string, st *unix.Stat_t) (int, error) {
	return openat(c.to, rel, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, firstMode(st))
}

// firstMode is what a file is made with. In a process of its own, which has no mask, that is its mode as a rule:
// nobody gets at a file before its time, since the directories are root's alone until they are done.
func firstMode(st *unix.Stat_t) uint32 {
	if alone {
		return st.Mode & 0o777
	}
	return 0o600
}

func (c copier) largeFile(rel string, st *unix.Stat_t, me *worker) error {
	source, err := openDirect(c.from, rel, unix.O_RDONLY)
	if err != nil {
		return vanished("open", rel, err)
	}
	defer source.close()
	made, err := c.create(rel, st)
	if err != nil {
		return err
	}
	defer closeFile(made)
	shared, err := c.shared(source.plain, made, st)
	if err != nil {
		return err
	}
	if shared {
		return c.finishFile(source.plain, made, st, 0, false)
	}
	target, err := openDirect(c.to, rel, unix.O_WRONLY)
	if err != nil {
		return err
	}
	digest, err := c.large(source, target, st, me)
	if err := errors.Join(err, target.close()); err != nil {
		return err
	}
	return c.finishFile(source.plain, made, st, digest, true)
}

// shared lets two files of one file system have the same blocks, where it knows how to.
func (c copier) shared(source, target int, st *unix.Stat_t) (bool, error) {
	var other unix.Stat_t
	if err := unix.Fstat(target, &other); err != nil {
		return false, err
	}
	if other.Dev != st.Dev || unix.IoctlFileClone(target, source) != nil {
		return false, nil
	}
	c.options.Progress.bytes.Add(min(st.Blocks*512, st.Size))
	return true, nil
}

// content copies the data and leaves the holes. The digest is that of a file without holes.
func (c copier) content(source, target int, st *unix.Stat_t, buffer []byte) (digest uint64, err error) {
	if st.Blocks*512 >= st.Size {
		return c.extent(source, target, 0, st.Size, buffer)
	}
	if err := unix.Ftruncate(target, st.Size); err != nil {
		return 0, err
	}
	return 0, extents(source, st.Size, func(from, to int64) error {
		_, err := c.extent(source, target, from, to, buffer)
		return err
	})
}

func (c copier) extent(source, target int, from, to int64, buffer []byte) (digest uint64, err error) {
	for from < to {
		n := min(int64(len(buffer)), to-from)
		if err := readAt(source, buffer[:n], from); err != nil {
			return 0, err
		}
		if err := writeAt(target, buffer[:n], from); err != nil {
			return 0, err
		}
		digest ^= c.options.Sums.block(buffer[:n], from)
		c.wrote(n)
		from += n
	}
	return digest, nil
}

// The files are read and written by descriptor alone: a tree has many, and os.File asks the
// kernel about each whether it can be polled.

func readAt(fd int, b []byte, offset int64) error {
	for len(b) > 0 {
		n, err := pread(fd, b, offset)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("read: %w", err)
		case n == 0:
			return fmt.Errorf("read: it became shorter meanwhile: %w", io.ErrUnexpectedEOF)
		}
		b, offset = b[n:], offset+int64(n)
	}
	return nil
}

func writeAt(fd int, b []byte, offset int64) error {
	for len(b) > 0 {
		n, err := pwrite(fd, b, offset)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("write: %w", err)
		}
		b, offset = b[n:], offset+int64(n)
	}
	return nil
}

// extents calls f for each range of a file that holds data.
func extents(file int, size int64, f func(from, to int64) error) error {
	return extentsIn(file, 0, size, f)
}

func extentsIn(file int, from, to int64, f func(from, to int64) error) error {
	for from < to {
		start, err := unix.Seek(file, from, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) || err == nil && start >= to {
			return nil
		}
		if err != nil {
			return err
		}
		end, err := unix.Seek(file, start, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		if end <= start {
			return nil
		}
		if err := f(start, min(end, to)); err != nil {
			return err
		}
		from = end
	}
	return nil
}

func openFile(dir int, rel string, flags int) (int, error) {
	flags |= unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK
	fd, err := openat(dir, rel, flags|unix.O_NOATIME, 0)
	if errors.Is(err, unix.EPERM) {
		fd, err = openat(dir, rel, flags, 0)
	}
	return fd, err
}

// setAttributes finishes a regular file through its descriptor. The order matters: changing
// the owner clears modes and capabilities, and the times, last, are what a resumed copy trusts.
// It returns the extended ones.
func setAttributes(source, fd int, st *unix.Stat_t) (map[string]string, error) {
	if st.Uid != 0 || st.Gid != 0 {
		if err := fchown(fd, st.Uid, st.Gid); err != nil {
			return nil, err
		}
	}
	if st.Mode&0o7777 != firstMode(st) {
		if err := fchmod(fd, st.Mode&0o7777); err != nil {
			return nil, err
		}
	}
	all, err := fdXattrs(source)
	if err != nil {
		return nil, err
	}
	for name, value := range all {
		if err := unix.Fsetxattr(fd, name, []byte(value), 0); err != nil {
			return nil, fmt.Errorf("attribute %s: %w", name, err)
		}
	}
	return all, setTimes(fd, st)
}

// attributes finishes anything else, by name, since not everything can be opened.
func (c copier) attributes(rel string, st *unix.Stat_t) error {
	if err := unix.Fchownat(c.to, rel, int(st.Uid), int(st.Gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := unix.Fchmodat(c.to, rel, st.Mode&0o7777, 0); err != nil {
			return err
		}
	}
	want, err := xattrs(c.from, rel)
	if err != nil {
		return err
	}
	have, err := xattrs(c.to, rel) // a directory may have been there before
	if err != nil {
		return err
	}
	for name := range have {
		if _, wanted := want[name]; !wanted {
			if err := unix.Lremovexattr(procPath(c.to, rel), name); err != nil {
				return fmt.Errorf("attribute %s: %w", name, err)
			}
		}
	}
	for name, value := range want {
		if err := unix.Lsetxattr(procPath(c.to, rel), name, []byte(value), 0); err != nil {
			return fmt.Errorf("attribute %s: %w", name, err)
		}
	}
	return unix.UtimesNanoAt(c.to, rel, []unix.Timespec{st.Atim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
}

// procPath names an entry below a directory descriptor for calls that know only paths. The directory
// itself needs its dot: without, the link in /proc would be meant.
func procPath(dir int, rel string) string { return fmt.Sprintf("/proc/self/fd/%d/%s", dir, rel) }

func xattrs(dir int, rel string) (map[string]string, error) {
	p := procPath(dir, rel)
	names, err := listXattr(func(b []byte) (int, error) { return unix.Llistxattr(p, b) })
	if err != nil || len(names) == 0 {
		return nil, err
	}
	all := make(map[string]string, len(names))
	for _, name := range names {
		value, err := getXattr(func(b []byte) (int, error) { return unix.Lgetxattr(p, name, b) })
		if err != nil {
			return nil, fmt.Errorf("attribute %s: %w", name, err)
		}
		all[name] = string(value)
	}
	return all, nil
}

// listXattr leaves out the other names under which xfs lists its ACLs: where they are written they would be attributes like
// any, or, in xfs, ACLs a second time.
func listXattr(list func([]byte) (int, error)) ([]string, error) {
	n, err := list(nil)
	if errors.Is(err, unix.ENOTSUP) || err == nil && n == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	raw, err := getXattr(list)
	if err != nil {
		return nil, err
	}
	var names []string
	for start, i := 0, 0; i < len(raw); i++ {
		if raw[i] == 0 {
			if name := string(raw[start:i]); !strings.HasPrefix(name, "trusted.SGI_ACL_") {
				names = append(names, name)
			}
			start = i + 1
		}
	}
	return names, nil
}

func getXattr(get func([]byte) (int, error)) ([]byte, error) {
	for size := 256; ; size *= 4 {
		b := make([]byte, size)
		n, err := get(b)
		if errors.Is(err, unix.ERANGE) && size < 1<<20 {
			continue
		}
		if err != nil {
			return nil, err
		}
		return b[:n], nil
	}
}

func readlink(dir int, rel string) (string, error) {
	b := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(dir, rel, b)
	if err != nil {
		return "", err
	}
	return string(b[:n]), nil
}

// same compares what stat tells, but not what belongs to the file system itself.
func same(a, b *unix.Stat_t) bool { return difference(a, b) == "" }

func difference(a, b *unix.Stat_t) string {
	kind := a.Mode & unix.S_IFMT
	switch {
	case kind != b.Mode&unix.S_IFMT:
		return "kind"
	case kind != unix.S_IFLNK && a.Mode != b.Mode:
		return "mode"
	case a.Uid != b.Uid || a.Gid != b.Gid:
		return "owner"
	case kind != unix.S_IFDIR && a.Size != b.Size:
		return "size"
	case a.Mtim != b.Mtim:
		return "modification time"
	case (kind == unix.S_IFBLK || kind == unix.S_IFCHR) && a.Rdev != b.Rdev:
		return "device number"
	case kind != unix.S_IFDIR && (a.Nlink > 1) != (b.Nlink > 1):
		return "number of links"
	}
	return ""
}
