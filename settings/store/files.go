package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"cambium/internal/atomicfile"
	"cambium/internal/jsondoc"
	"cambium/internal/vcap"
)

// corruptSuffix marks a file that could not be read and was set aside.
const corruptSuffix = ".corrupt"

// Aside returns the settings files that were damaged and set aside, under their new names.
func Aside(dirs vcap.Dirs) (paths []string) {
	for _, place := range dirs.Places() {
		for _, file := range moving {
			path := file(place) + corruptSuffix
			if _, err := os.Lstat(path); err == nil {
				paths = append(paths, path)
			}
		}
	}
	return paths
}

// disk makes the changes below the base directory. Every change passes step first, so that a
// test can end the process between any two of them.
type disk struct {
	readOnly bool
	step     func(what string)
}

var errReadOnly = errors.New("the store was opened for reading only")

func (d disk) begin(what, path string) error {
	if d.readOnly {
		return fmt.Errorf("%s %s: %w", what, path, errReadOnly)
	}
	if d.step != nil {
		d.step(what + " " + filepath.Base(path))
	}
	return nil
}

// write replaces a file unless it already has this content, and keeps the generation before.
func (d disk) write(path string, data []byte) error {
	if err := d.begin("write", path); err != nil {
		return err
	}
	_, err := atomicfile.WriteIfChanged(path, data, 0o600, atomicfile.KeepPrevious())
	return err
}

// restore replaces a damaged file by an older generation, which stays where it is.
func (d disk) restore(path string, data []byte) error {
	if err := d.begin("restore", path); err != nil {
		return err
	}
	return atomicfile.Write(path, data, 0o600)
}

// remove deletes both generations, the older first: a crash in between leaves the file as it
// was, not an older one alone.
func (d disk) remove(path string) error {
	for _, p := range []string{path + atomicfile.PreviousSuffix, path} {
		if _, err := os.Lstat(p); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := d.begin("remove", p); err != nil {
			return err
		}
		if err := atomicfile.Remove(p); err != nil {
			return err
		}
	}
	return nil
}

// move renames within one file system; a missing file is not an error.
func (d disk) move(from, to string) error {
	if _, err := os.Lstat(from); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := d.begin("move", from); err != nil {
		return err
	}
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return errors.Join(atomicfile.SyncDir(filepath.Dir(to)), atomicfile.SyncDir(filepath.Dir(from)))
}

func (d disk) mkdir(path string) error {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return nil
	}
	if err := d.begin("make", path); err != nil {
		return err
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}
	return atomicfile.SyncDir(filepath.Dir(path))
}

// tighten restricts the mode of a file that cloudfoundry/bosh-agent wrote, which is readable by
// others, to 0600.
func (d disk) tighten(path string) error {
	for _, p := range []string{path, path + atomicfile.PreviousSuffix} {
		info, err := os.Lstat(p)
		if err != nil || !info.Mode().IsRegular() || info.Mode().Perm() == 0o600 || d.readOnly {
			continue
		}
		if err := d.begin("tighten", p); err != nil {
			return err
		}
		if err := os.Chmod(p, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// finding is the result of reading a file.
type finding struct {
	data []byte
	// damaged is the error that makes the current generation unusable; data is then the previous one, or nil if
	// that is unusable, too.
	damaged error
}

// read returns the newest generation that accept takes. A missing file has no data and no
// error: a previous generation alone does not count, since removal takes it first.
func read(path string, accept func([]byte) error) finding {
	data, err := readLimited(path)
	if errors.Is(err, fs.ErrNotExist) {
		return finding{}
	}
	if err == nil {
		err = accept(data)
	}
	if err == nil {
		return finding{data: data}
	}
	f := finding{damaged: err}
	if previous, err := readLimited(path + atomicfile.PreviousSuffix); err == nil && accept(previous) == nil {
		f.data = previous
	}
	return f
}

func readLimited(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // read only
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("read %s: not a regular file", path)
	}
	return io.ReadAll(io.LimitReader(file, jsondoc.MaxSize+1))
}

// repair sets a damaged file aside and restores the previous generation, so that the next write
// does not make the damaged content the previous generation.
func (d disk) repair(path string, f finding) error {
	if f.data != nil {
		evidence, err := readLimited(path)
		if err == nil {
			err = d.restore(path+corruptSuffix, evidence)
		}
		return errors.Join(err, d.restore(path, f.data))
	}
	return errors.Join(
		d.move(path+atomicfile.PreviousSuffix, path+atomicfile.PreviousSuffix+corruptSuffix),
		d.move(path, path+corruptSuffix))
}
