package persistent

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"cambium/internal/atomicfile"
	"cambium/platform/copytree"
	"cambium/platform/filesystem"
	"cambium/storage/decide"
)

// MarkName is the file at the top of a disk whose copy is not complete.
const MarkName = ".cambium-incomplete-copy"

// markLimit bounds what is read of a mark.
const markLimit = 64 << 10

// readMark returns the mark at the top of a file system; nil if there is none. A file of that name that is not root's
// alone is a job's.
func readMark(top *os.Root) (m *decide.Mark, err error) {
	info, err := top.Lstat(MarkName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 || info.Sys().(*syscall.Stat_t).Uid != 0 {
		return nil, nil
	}
	f, err := top.Open(MarkName)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, markLimit))
	if err != nil {
		return nil, err
	}
	m = &decide.Mark{}
	if json.Unmarshal(data, m) != nil {
		m = &decide.Mark{} // of what is not known; it is one all the same
	}
	return m, nil
}

// Mark returns the mark of what is mounted on a directory; nil if it has none.
func (d *Disks) Mark(dir string) (m *decide.Mark, err error) {
	top, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, top.Close()) }()
	return readMark(top)
}

// lookForMark returns the mark of a disk that is not mounted, as far as it can be looked at without replaying a
// journal: a mount may know better.
func lookForMark(part string) *decide.Mark {
	c, err := filesystem.Probe(part)
	if err != nil || !c.Kind.Managed() {
		return nil
	}
	var m *decide.Mark
	_ = filesystem.Look(part, c.Kind, func(top *os.Root) (err error) {
		m, err = readMark(top)
		return err
	})
	return m
}

// SetMark marks the disk on the migration target, and closes it to all but root. Flags of chattr(1) would forbid that:
// the top directory has those of the store if the copy was completed before.
func (d *Disks) SetMark(m decide.Mark) error {
	target := d.Machine.Dirs.StoreMigrationTarget()
	data, err := json.Marshal(m)
	if err == nil {
		err = takeOver(target)
	}
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(target, MarkName), data, 0o600)
}

func takeOver(dir string) (err error) {
	top, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, top.Close()) }()
	return errors.Join(copytree.TakeOver(int(top.Fd())), top.Sync())
}

// ignoredInEmpty reports a name at the top of a disk that is not content: what comes with a file system, or was left by
// a SetMark that was interrupted.
func ignoredInEmpty(top *os.Root, name string) (bool, error) {
	if strings.HasPrefix(name, "."+MarkName) {
		return true, nil
	}
	info, err := top.Lstat(name)
	if err != nil || name != "lost+found" || !info.IsDir() {
		return false, err
	}
	dir, err := top.Open(name)
	if err != nil {
		return false, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(1)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return len(names) == 0, err
}

// TargetIsEmpty reports whether the migration target holds nothing but what a new file system has.
func (d *Disks) TargetIsEmpty() (empty bool, err error) {
	top, err := os.OpenRoot(d.Machine.Dirs.StoreMigrationTarget())
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, top.Close()) }()
	dir, err := top.Open(".")
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	names, err := dir.Readdirnames(10) // a job may have filled it
	if errors.Is(err, io.EOF) {
		return true, nil
	}
	for _, name := range names {
		if ignored, err := ignoredInEmpty(top, name); err != nil || !ignored {
			return false, err
		}
	}
	return err == nil, err
}

// removeMark makes a disk a store as it is.
func (d *Disks) removeMark(cid, dir string) error {
	d.Machine.Log.WithField("cid", cid).Warn("an operator has accepted an incomplete copy as it is")
	d.Machine.CrashPoint("remove accepted mark")
	if err := takeOver(dir); err != nil {
		return err
	}
	return errors.Join(os.Chmod(dir, 0o755), atomicfile.Remove(filepath.Join(dir, MarkName)))
}
