package copytree

import (
	"bytes"
	"errors"
	"fmt"
	"maps"

	"golang.org/x/sys/unix"
)

type verifier struct{ *walk }

func (v verifier) before(rel string, st *unix.Stat_t) error {
	var have unix.Stat_t
	if err := lstatat(v.to, rel, &have); err != nil {
		return missing(rel, err)
	}
	if d := difference(st, &have); d != "" {
		return &DifferenceError{Path: rel, What: d}
	}
	return v.sameXattrs(rel)
}

func (v verifier) after(string, *unix.Stat_t) error { return nil }

func (v verifier) entry(rel string, st *unix.Stat_t, me *worker) (err error) {
	var have unix.Stat_t
	if err := lstatat(v.to, rel, &have); err != nil {
		return missing(rel, err)
	}
	if d := difference(st, &have); d != "" {
		return &DifferenceError{Path: rel, What: d}
	}
	if st.Nlink > 1 {
		state, first := v.links.first(st, rel)
		if !first {
			var other unix.Stat_t
			if err := lstatat(v.to, state.rel, &other); err != nil {
				return missing(state.rel, err)
			}
			if other.Ino != have.Ino {
				return &DifferenceError{Path: rel, What: "being a link to " + state.rel}
			}
			return nil
		}
		close(state.done)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return v.sameFile(rel, st, me)
	case unix.S_IFLNK:
		want, err := readlink(v.from, rel)
		if err != nil {
			return err
		}
		got, err := readlink(v.to, rel)
		if err != nil {
			return err
		}
		// Reading counts as an access; where it does not, or must not, there is nothing to undo.
		_ = unix.UtimesNanoAt(v.to, rel, []unix.Timespec{have.Atim, {Nsec: unix.UTIME_OMIT}}, unix.AT_SYMLINK_NOFOLLOW)
		if got != want {
			return &DifferenceError{Path: rel, What: "link target"}
		}
	}
	return v.sameXattrs(rel)
}

// open opens the copy of a file of which there is a digest. Whatever is not as it should be is left to entry,
// which finds out what it is.
func (v verifier) open(rel string, p *piece) (bool, error) {
	if err := lstatat(v.from, rel, &p.st); err != nil {
		return false, vanished("stat", rel, err)
	}
	if !readable(&p.st) || !v.options.Sums.has(&p.st) {
		return false, nil
	}
	var err error
	if p.fd, err = openFile(v.to, rel, unix.O_RDONLY|unix.O_DIRECT); err != nil {
		return false, nil // a file system without such reads, or an error that will show again
	}
	var have unix.Stat_t
	if err := fstat(p.fd, &have); err != nil || !same(&p.st, &have) {
		return false, closeFile(p.fd)
	}
	return true, nil
}

// done compares the copy with the digest of the source. It comes from the disk and not from memory, since it was
// read past the page cache. False means that the two have to be compared.
func (v verifier) done(p *piece) (bool, error) {
	content, whole := p.content()
	if !whole {
		return false, nil
	}
	attributes, err := fdXattrs(p.fd)
	if err != nil {
		return false, err
	}
	if !v.options.Sums.equal(&p.st, v.options.Sums.block(content, 0), v.options.Sums.attributes(attributes)) {
		return false, nil
	}
	v.options.Progress.bytes.Add(p.st.Size)
	return true, nil
}

func missing(rel string, err error) error {
	if errors.Is(err, unix.ENOENT) {
		return &DifferenceError{Path: rel, What: "being there"}
	}
	return err
}

func (v verifier) sameXattrs(rel string) error {
	want, err := xattrs(v.from, rel)
	if err != nil {
		return err
	}
	got, err := xattrs(v.to, rel)
	if err != nil {
		return err
	}
	if !maps.Equal(got, want) {
		return &DifferenceError{Path: rel, What: "extended attributes"}
	}
	return nil
}

// sameFile compares the content. Only ranges where one side has data are read; the other
// side's holes read as zeros.
func (v verifier) sameFile(rel string, st *unix.Stat_t, me *worker) error {
	open := func(dir int) (directFile, error) {
		if st.Size >= largeFile {
			return openDirect(dir, rel, unix.O_RDONLY)
		}
		fd, err := openFile(dir, rel, unix.O_RDONLY)
		return directFile{plain: fd, direct: -1}, err
	}
	source, err := open(v.from)
	if err != nil {
		return err
	}
	defer source.close()
	target, err := open(v.to)
	if err != nil {
		return err
	}
	defer target.close()
	sourceNames, err := fdXattrs(source.plain)
	if err != nil {
		return err
	}
	targetNames, err := fdXattrs(target.plain)
	if err != nil {
		return err
	}
	if !maps.Equal(sourceNames, targetNames) {
		return &DifferenceError{Path: rel, What: "extended attributes"}
	}
	// What was flushed leaves the page cache, so that the disk is asked and not the memory.
	_ = unix.Fadvise(target.plain, 0, 0, unix.FADV_DONTNEED)
	if st.Size < largeFile {
		return v.compare(rel, source, target, 0, st.Size, me)
	}
	if err := v.sameLarge(rel, source, target, st, targetNames, me); err != nil {
		return err
	}
	return holes(source.plain, st.Size, func(from, to int64) error {
		return extentsIn(target.plain, from, to, func(from, to int64) error { return v.compare(rel, source, target, from, to, me) })
	})
}

func fdXattrs(f int) (map[string]string, error) {
	names, err := listXattr(func(b []byte) (int, error) { return flistxattr(f, b) })
	if err != nil || len(names) == 0 {
		return nil, err
	}
	all := make(map[string]string, len(names))
	for _, name := range names {
		value, err := getXattr(func(b []byte) (int, error) { return unix.Fgetxattr(f, name, b) })
		if err != nil {
			return nil, fmt.Errorf("attribute %s: %w", name, err)
		}
		all[name] = string(value)
	}
	return all, nil
}

func (v verifier) compare(rel string, source, target directFile, from, to int64, me *worker) error {
	return blocks(from, to, func(at int64, n int) error {
		if err := v.stopped(); err != nil {
			return err
		}
		if err := source.readAt(me.a[:n], at); err != nil {
			return err
		}
		if err := target.readAt(me.b[:n], at); err != nil {
			return err
		}
		if !bytes.Equal(me.a[:n], me.b[:n]) {
			return &DifferenceError{Path: rel, What: "content"}
		}
		v.options.Progress.bytes.Add(int64(n))
		return nil
	})
}

// holes calls f for each range of a file that holds no data.
func holes(file int, size int64, f func(from, to int64) error) error {
	at := int64(0)
	err := extents(file, size, func(from, to int64) error {
		var err error
		if from > at {
			err = f(at, from)
		}
		at = to
		return err
	})
	if err == nil && at < size {
		err = f(at, size)
	}
	return err
}
