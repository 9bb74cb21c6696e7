package copytree

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// flushEvery is after how many bytes the target is flushed while the copying goes on: one disk
// writes while the other is read, and little is left to wait for at the end.
const flushEvery = 128 << 20

// copier is the visitor of Copy.
type copier struct {
	*Trees
	progress *Counter
	links    *links
	written  atomic.Int64
	flushDue chan struct{}
}

func (c *copier) flush() error {
	if err := unix.Syncfs(int(c.to.Fd())); err != nil {
		return fmt.Errorf("flush: %w", err)
	}
	return nil
}

func (c *copier) flushWhenDue() (err error) {
	for range c.flushDue {
		err = errors.Join(err, c.flush())
	}
	return err
}

func (c *copier) wrote(n int64) {
	c.progress.bytes.Add(n)
	if now := c.written.Add(n); now/flushEvery != (now-n)/flushEvery {
		select {
		case c.flushDue <- struct{}{}:
		default: // one is due already
		}
	}
}

func (c *copier) enter(d *dir) error {
	if flags, err := getFlags(d.from); err != nil {
		return err
	} else if flags != 0 {
		c.flagged.Store(true)
	}
	if d.parent == nil {
		return takeOver(d.to)
	}
	err := unix.Mkdirat(d.parent.to, d.name, 0o700)
	d.fresh = err == nil
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	d.to, err = openDir(d.parent.to, d.name)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		if !c.exact {
			return errors.New("the target has something else of that name")
		}
		if err := removeAll(d.parent.to, d.name); err != nil {
			return err
		}
		if err := unix.Mkdirat(d.parent.to, d.name, 0o700); err != nil {
			return err
		}
		d.fresh = true
		d.to, err = openDir(d.parent.to, d.name)
	}
	if err != nil || d.fresh {
		return err
	}
	return takeOver(d.to)
}

// takeOver makes an existing directory accessible to root only. From then on no other user can
// change its content, and new entries inherit nothing from it: no group, no flags, no ACL.
func takeOver(fd int) error {
	if err := clearFlags(fd); err != nil {
		return err
	}
	if err := unix.Fchown(fd, 0, 0); err != nil {
		return err
	}
	if err := unix.Fchmod(fd, 0o700); err != nil {
		return err
	}
	err := unix.Fremovexattr(fd, "system.posix_acl_default")
	if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	return err
}

func (c *copier) finishDir(d *dir) error {
	if d.parent == nil {
		return nil // Finish does it
	}
	return copyAttributes(d.from, d.to, &d.st)
}

func (c *copier) surplus(d *dir, name string) error { return removeAll(d.to, name) }

func (c *copier) open(d *dir, e entry) (int, error) {
	fd, err := openAhead(d.from, e.name, e.kind)
	if err != nil {
		return -1, changed("open", err)
	}
	return fd, nil
}

func (c *copier) entry(d *dir, e entry, source int, me *worker) error {
	var st unix.Stat_t
	if err := unix.Fstat(source, &st); err != nil {
		return err
	}
	if kindOf(&st) != e.kind {
		return &DifferenceError{What: "kind"} // it was replaced since the directory was read
	}
	if st.Nlink <= 1 {
		return c.make(d, e.name, source, &st, me)
	}
	l, first := c.links.meet(&st, d, e.name)
	if !first {
		<-l.done
		if l.err != nil {
			return nil // reported under the first name
		}
		return c.link(l, d, e.name)
	}
	defer close(l.done)
	var made unix.Stat_t
	if l.err = c.make(d, e.name, source, &st, me); l.err == nil {
		l.err = unix.Fstatat(d.to, e.name, &made, unix.AT_SYMLINK_NOFOLLOW)
	}
	l.target = made.Ino
	return l.err
}

// link gives a file that has been copied one more name.
func (c *copier) link(l *link, d *dir, name string) error {
	var have unix.Stat_t
	err := unix.Fstatat(d.to, name, &have, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case err == nil && have.Ino == l.target:
		return nil
	case err == nil:
		err = c.removeConflict(d, name, &have)
	case errors.Is(err, unix.ENOENT):
		err = nil
	}
	if err != nil {
		return err
	}
	first, err := openBeneath(int(c.to.Fd()), l.dir)
	if err != nil {
		return err
	}
	defer unix.Close(first)
	if err := unix.Linkat(first, l.name, d.to, name, 0); err != nil {
		return fmt.Errorf("link to %q: %w", l.name, err)
	}
	if err := unix.Fstatat(d.to, name, &have, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if have.Ino != l.target {
		return &DifferenceError{What: "being a link to " + l.name}
	}
	return nil
}

// removeConflict removes what the target has under a name that is of another type in the source. A
// directory is removed only if it is left over from an interrupted copy.
func (c *copier) removeConflict(d *dir, name string, have *unix.Stat_t) error {
	if kindOf(have) == unix.DT_DIR && !c.exact {
		return errors.New("the target has a directory of that name")
	}
	return removeAll(d.to, name)
}

func (c *copier) make(d *dir, name string, source int, st *unix.Stat_t, me *worker) error {
	if kindOf(st) != unix.DT_REG {
		return c.makeNode(d, name, source, st)
	}
	if flags, err := getFlags(source); err != nil {
		return err
	} else if flags != 0 {
		c.flagged.Store(true)
	}
	const exclusive = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	target, err := unix.Openat(d.to, name, exclusive, createMode)
	if errors.Is(err, unix.EEXIST) {
		complete, err := c.resume(d, name, source, st)
		if err != nil || complete {
			return err
		}
		target, err = unix.Openat(d.to, name, exclusive, createMode)
		if err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	err = c.makeFile(source, target, st, me)
	return errors.Join(err, unix.Close(target))
}

// resume looks at what the target has in the place of a regular file. It reports whether that
// is a complete copy, and removes anything else. The times are set last, so that a file with the
// right ones looks complete; it can still have lost its content in a power cut, which Verify finds.
func (c *copier) resume(d *dir, name string, source int, st *unix.Stat_t) (complete bool, err error) {
	var have unix.Stat_t
	if err := unix.Fstatat(d.to, name, &have, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return false, err
	}
	if kindOf(&have) == unix.DT_REG {
		target, err := openFile(d.to, name, unix.O_RDONLY)
		if err != nil {
			return false, err
		}
		defer unix.Close(target)
		if err := clearFlags(target); err != nil {
			return false, err
		}
		same, err := sameXattrs(source, target, st)
		if err != nil {
			return false, err
		}
		if same && difference(st, &have) == "" && !c.digests.suspected(st) {
			c.progress.bytes.Add(min(st.Blocks*512, st.Size))
			return true, nil
		}
	}
	return false, c.removeConflict(d, name, &have)
}

func (c *copier) makeFile(source, target int, st *unix.Stat_t, me *worker) error {
	digest, err := c.content(source, target, st, me)
	if err != nil {
		return err
	}
	all, err := xattrs(source, st)
	if err != nil {
		return err
	}
	if err := setAttributes(target, st, all); err != nil {
		return err
	}
	if !sparse(st) {
		c.digests.put(st, c.digests.addAttributes(digest, all))
	}
	return nil
}

// content copies the data and leaves the holes. The digest is that of a file without holes.
func (c *copier) content(source, target int, st *unix.Stat_t, me *worker) (digest uint64, err error) {
	holes := sparse(st)
	if holes {
		if err := unix.Ftruncate(target, st.Size); err != nil {
			return 0, err
		}
	}
	for at := int64(0); at < st.Size; {
		if err := context.Cause(me.ctx); err != nil {
			return 0, err
		}
		end := min(at+blockSize, st.Size)
		if holes {
			if at, err = seek(source, at, st.Size, unix.SEEK_DATA); err != nil || at == st.Size {
				return 0, err
			}
			hole, err := seek(source, at, st.Size, unix.SEEK_HOLE)
			if err != nil {
				return 0, err
			}
			end = min(at+blockSize, hole)
		}
		block := me.a[:end-at]
		if err := readAt(source, block, at); err != nil {
			return 0, err
		}
		if err := writeAt(target, block, at); err != nil {
			return 0, err
		}
		digest = c.digests.add(digest, block)
		c.wrote(end - at)
		at = end
	}
	return digest, nil
}

// makeNode makes what is not a regular file. Since it cannot be opened, or must not, it has a
// descriptor that only stands for it.
func (c *copier) makeNode(d *dir, name string, source int, st *unix.Stat_t) error {
	var have unix.Stat_t
	if err := unix.Fstatat(d.to, name, &have, unix.AT_SYMLINK_NOFOLLOW); err == nil {
		err = c.removeConflict(d, name, &have)
		if err != nil {
			return err
		}
	} else if !errors.Is(err, unix.ENOENT) {
		return err
	}
	if kindOf(st) == unix.DT_LNK {
		target, err := readlink(source)
		if err != nil {
			return err
		}
		if err := unix.Symlinkat(target, d.to, name); err != nil {
			return err
		}
	} else if err := unix.Mknodat(d.to, name, st.Mode&unix.S_IFMT|0o600, int(st.Rdev)); err != nil {
		return err
	}
	target, err := openFile(d.to, name, unix.O_PATH)
	if err != nil {
		return err
	}
	defer unix.Close(target)
	if err := unix.Fstat(target, &have); err != nil {
		return err
	}
	if kindOf(&have) != kindOf(st) {
		return &DifferenceError{What: "kind"}
	}
	return copyAttributes(source, target, st)
}

// openBeneath opens a directory by its path below another, one name at a time.
func openBeneath(top int, path string) (int, error) {
	at, err := unix.Openat(top, ".", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil || path == "." {
		return at, err
	}
	for name := range strings.SplitSeq(path, "/") {
		next, err := unix.Openat(at, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		closeAll(at)
		if err != nil {
			return -1, err
		}
		at = next
	}
	return at, nil
}
