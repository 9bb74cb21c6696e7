package copytree

import (
	"bytes"
	"context"
	"fmt"
	"maps"

	"golang.org/x/sys/unix"
)

// verifier is the visitor of Verify.
type verifier struct {
	*Trees
	progress *Counter
	links    *links
}

func (v *verifier) enter(d *dir) (err error) {
	if d.parent == nil {
		return nil // Complete sets its attributes
	}
	if d.to, err = openDir(d.parent.to, d.name); err != nil {
		return changed("open", err)
	}
	var have unix.Stat_t
	if err := unix.Fstat(d.to, &have); err != nil {
		return err
	}
	if err := v.compareStat(&d.st, &have, d.ownPath); err != nil {
		return err
	}
	return compareXattrs(d.from, d.to, &d.st)
}

// finishDir sets the flags of a directory after its content, since flags may prevent changes.
func (v *verifier) finishDir(d *dir) error {
	if d.parent == nil {
		return nil // done by Complete
	}
	return v.setFlags(d.from, d.to)
}

// setFlags copies the flags of chattr(1) to a file that was compared.
func (v *verifier) setFlags(source, target int) error {
	if !v.flagged.Load() {
		return nil
	}
	want, err := getFlags(source)
	if err != nil {
		return err
	}
	return copyFlags(target, want)
}

// compareStat compares the results of stat(2). path is called for the first file with a clamped time.
func (v *verifier) compareStat(st, have *unix.Stat_t, path func() string) error {
	if what := difference(st, have); what != "" {
		return &DifferenceError{What: what}
	}
	if st.Mtim == have.Mtim {
		return nil
	}
	held, err := v.clampedTime(st.Mtim)
	if err == nil && held != have.Mtim {
		err = &DifferenceError{What: "modification time"}
	}
	if err != nil {
		return err
	}
	v.probing.Lock()
	defer v.probing.Unlock()
	if v.clamped.Files++; v.clamped.First == "" {
		v.clamped.First = path()
	}
	return nil
}

// clampedTime returns a time as the target's file system stores it. No system call reports that, so it sets the times
// of the target's top directory; Complete sets them again.
func (v *verifier) clampedTime(t unix.Timespec) (unix.Timespec, error) {
	v.probing.Lock()
	defer v.probing.Unlock()
	top := int(v.to.Fd())
	var st unix.Stat_t
	if err := unix.UtimesNanoAt(top, "", []unix.Timespec{t, t}, unix.AT_EMPTY_PATH); err != nil {
		return t, fmt.Errorf("set the time of %s: %w", v.to.Name(), err)
	}
	err := unix.Fstat(top, &st)
	return st.Mtim, err
}

func compareXattrs(source, target int, st *unix.Stat_t) error {
	want, err := xattrs(source, st)
	if err != nil {
		return err
	}
	got, err := xattrs(target, st)
	same := maps.Equal(got, want)
	if err == nil && !same {
		err = &DifferenceError{What: "extended attributes"}
	}
	return err
}

func (v *verifier) entry(d *dir, e entry, me *worker) error {
	target, err := openEntry(d.to, e.name, e.kind)
	if err != nil {
		return changed("open the copy", err)
	}
	defer unix.Close(target)
	st := &unix.Stat_t{}
	if err := unix.Fstatat(d.from, e.name, st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return changed("stat", err)
	}
	var have unix.Stat_t
	if err := unix.Fstat(target, &have); err != nil {
		return err
	}
	if err := v.compareStat(st, &have, func() string { return d.path(e.name) }); err != nil {
		return err
	}
	if st.Nlink > 1 {
		l, first := v.links.meet(st, d, e.name)
		if first {
			l.target = have.Ino
			close(l.done)
		} else if <-l.done; l.target != have.Ino {
			return &DifferenceError{What: "the hard link to " + l.name}
		} else {
			return nil
		}
	}
	same := false
	if kindOf(st) == unix.DT_REG {
		if same, err = v.sameDigest(target, st, me); err != nil || same && !v.flagged.Load() {
			return err
		}
	}
	source, err := openEntry(d.from, e.name, kindOf(st))
	if err != nil {
		return changed("open", err)
	}
	defer unix.Close(source)
	if same {
		return v.setFlags(source, target)
	}
	if err := compareXattrs(source, target, st); err != nil {
		return err
	}
	switch kindOf(st) {
	case unix.DT_REG:
		if err := v.compareContent(source, target, st.Size, me); err != nil {
			return err
		}
		return v.setFlags(source, target)
	case unix.DT_LNK:
		return compareLinks(source, target)
	}
	return nil
}

// sameDigest compares a copy with the digest of the source. It returns false if there is no digest, or if the contents
// have to be compared.
func (v *verifier) sameDigest(target int, st *unix.Stat_t, me *worker) (bool, error) {
	want, known := v.digests.get(st)
	if !known {
		return false, nil
	}
	holes := sparse(st)
	if holes {
		leaveHoles(target)
	}
	var digest uint64
	var read int64
	for at := int64(0); at < st.Size; {
		if err := context.Cause(me.ctx); err != nil {
			return false, err
		}
		if holes {
			data, err := seek(target, at, st.Size, unix.SEEK_DATA)
			if err != nil {
				return false, err
			}
			if at = data / pageSize * pageSize; data == st.Size {
				break
			}
		}
		block := me.a[:min(blockSize, st.Size-at)]
		if err := readAt(target, block, at); err != nil {
			return false, err
		}
		digest = v.digests.add(digest, at, block)
		at, read = at+int64(len(block)), read+int64(len(block))
		v.progress.bytes.Add(int64(len(block)))
	}
	all, err := xattrs(target, st)
	if err != nil || v.digests.addAttributes(digest, all) != want {
		v.progress.bytes.Add(-read) // read again by compareContent
		return false, err
	}
	return true, nil
}

// compareContent compares all ranges that are data in either file. Holes read as zeros.
func (v *verifier) compareContent(source, target int, size int64, me *worker) error {
	for at := int64(0); at < size; {
		if err := context.Cause(me.ctx); err != nil {
			return err
		}
		ours, err := seek(source, at, size, unix.SEEK_DATA)
		if err != nil {
			return err
		}
		theirs, err := seek(target, at, size, unix.SEEK_DATA)
		if err != nil {
			return err
		}
		at = min(ours, theirs)
		n := min(blockSize, size-at)
		if err := readAt(source, me.a[:n], at); err != nil {
			return err
		}
		if err := readAt(target, me.b[:n], at); err != nil {
			return err
		}
		if !bytes.Equal(me.a[:n], me.b[:n]) {
			return &DifferenceError{What: "content"}
		}
		v.progress.bytes.Add(n)
		at += n
	}
	return nil
}

func compareLinks(source, target int) error {
	want, err := readlink(source)
	if err != nil {
		return err
	}
	got, err := readlink(target)
	if err == nil && got != want {
		err = &DifferenceError{What: "link target"}
	}
	return err
}

// difference compares the results of stat(2), except for times and values that depend on the file system.
func difference(source, target *unix.Stat_t) string {
	kind := kindOf(source)
	switch {
	case kind != kindOf(target):
		return "kind"
	case kind != unix.DT_LNK && source.Mode != target.Mode:
		return "mode"
	case source.Uid != target.Uid || source.Gid != target.Gid:
		return "owner"
	case kind != unix.DT_DIR && source.Size != target.Size:
		return "size"
	case (kind == unix.DT_BLK || kind == unix.DT_CHR) && source.Rdev != target.Rdev:
		return "device number"
	case kind != unix.DT_DIR && source.Nlink == 1 && target.Nlink > 1:
		return "number of links"
	}
	return ""
}
