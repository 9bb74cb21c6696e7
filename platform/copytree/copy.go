package copytree

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// flushEvery is the number of bytes after which the target is flushed during the copy, so that one disk writes while
// the other reads, and little remains to be flushed at the end.
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
		return fmt.Errorf("syncfs: %w", err)
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
		default: // a flush is already due
		}
	}
}

// removeLeftovers removes the files of an interrupted copy. An empty lost+found may stay.
func (c *copier) removeLeftovers() error {
	if !c.exact {
		return nil
	}
	top := int(c.to.Fd())
	entries, err := readDir(top)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if c.belongs(e.name, top) {
			continue
		}
		if err := removeAll(top, e.name); err != nil {
			return fmt.Errorf("remove %q: %w", e.name, err)
		}
	}
	return nil
}

// belongs reports whether a name at the top of the target is not part of the copy.
func (t *Trees) belongs(name string, top int) bool {
	return name == t.mark || name == lostFound && isEmptyDir(top, name)
}

func (c *copier) enter(d *dir) error {
	if flags, err := getFlags(d.from); err != nil {
		return err
	} else if flags != 0 {
		c.flagged.Store(true)
	}
	if d.parent == nil {
		return RestrictToRoot(d.to)
	}
	made := unix.Mkdirat(d.parent.to, d.name, 0o700)
	if made != nil && !errors.Is(made, unix.EEXIST) {
		return made
	}
	var err error
	d.to, err = openDir(d.parent.to, d.name)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return errors.New("the target already has something other than a directory of that name")
	}
	if err != nil || made == nil {
		return err
	}
	return RestrictToRoot(d.to)
}

// RestrictToRoot makes root the owner of an existing directory and denies access to all others. From then on no other
// user can change its content, and new entries inherit nothing from it: no group, flags or ACL.
func RestrictToRoot(fd int) error {
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
		return nil // done by Complete
	}
	want, err := xattrs(d.from, &d.st)
	if err != nil {
		return err
	}
	return copyAttributes(d.to, &d.st, want)
}

func (c *copier) entry(d *dir, e entry, me *worker) error {
	source, err := openEntry(d.from, e.name, e.kind)
	if err != nil {
		return changed("open", err)
	}
	defer unix.Close(source)
	var st unix.Stat_t
	if err := unix.Fstat(source, &st); err != nil {
		return err
	}
	if kindOf(&st) != e.kind {
		return &DifferenceError{What: "kind"} // replaced since the directory was read
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
	l.err = c.make(d, e.name, source, &st, me)
	return l.err
}

// link adds a hard link to a file that has been copied.
func (c *copier) link(l *link, d *dir, name string) error {
	if err := c.clear(d, name); err != nil {
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
	return nil
}

// clear removes an existing file of that name from the target, but not a directory. If leftovers were removed, there is
// none.
func (c *copier) clear(d *dir, name string) error {
	if c.exact {
		return nil
	}
	err := removeFile(d.to, name)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.EISDIR):
		return errors.New("the target has a directory of that name")
	}
	return err
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
	if err := c.clear(d, name); err != nil {
		return err
	}
	const exclusive = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	target, err := unix.Openat(d.to, name, exclusive, createMode)
	if err != nil {
		return err
	}
	err = c.makeFile(source, target, st, me)
	return errors.Join(err, unix.Close(target))
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
	c.digests.put(st, c.digests.addAttributes(digest, all))
	return nil
}

// content copies the data and keeps the holes, in whole pages.
func (c *copier) content(source, target int, st *unix.Stat_t, me *worker) (digest uint64, err error) {
	holes := sparse(st)
	if holes {
		leaveHoles(source)
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
			data, err := seek(source, at, st.Size, unix.SEEK_DATA)
			if err != nil || data == st.Size {
				return digest, err
			}
			hole, err := seek(source, data, st.Size, unix.SEEK_HOLE)
			if err != nil {
				return 0, err
			}
			at = data / pageSize * pageSize
			end = min(at+blockSize, (hole+pageSize-1)/pageSize*pageSize, st.Size)
		}
		block := me.a[:end-at]
		if err := readAt(source, block, at); err != nil {
			return 0, err
		}
		if err := writeAt(target, block, at); err != nil {
			return 0, err
		}
		digest = c.digests.add(digest, at, block)
		c.wrote(end - at)
		at = end
	}
	return digest, nil
}

// makeNode creates anything but a regular file. Such files cannot or must not be opened, so their descriptors are
// O_PATH.
func (c *copier) makeNode(d *dir, name string, source int, st *unix.Stat_t) error {
	if err := c.clear(d, name); err != nil {
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
	want, err := xattrs(source, st)
	if err != nil {
		return err
	}
	return copyAttributes(target, st, want)
}

// openBeneath opens a directory by its path below another one, component by component.
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
