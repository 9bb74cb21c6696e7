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

// corruptSuffix is added to the name of a damaged file that was set aside.
const corruptSuffix = ".corrupt"

// CorruptFiles lists the damaged settings files that were set aside, under their new names.
func CorruptFiles(dirs vcap.Dirs) (paths []string) {
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

// disk changes files below the base directory. It calls step before each change, so that a test can end the process
// between any two.
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

// write replaces a file and keeps the previous generation. It does nothing if the content is the same.
func (d disk) write(path string, data []byte) error {
	if err := d.begin("write", path); err != nil {
		return err
	}
	_, err := atomicfile.WriteIfChanged(path, data, 0o600, atomicfile.KeepPrevious())
	return err
}

// restore replaces a damaged file with the content of an older generation.
func (d disk) restore(path string, data []byte) error {
	if err := d.begin("restore", path); err != nil {
		return err
	}
	return atomicfile.Write(path, data, 0o600)
}

// remove deletes both generations, the older one first, so that a crash never leaves only the older one.
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

// tighten restricts a file to mode 0600. Files that cloudfoundry/bosh-agent wrote are readable by others.
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
	// damaged is the error of reading the current generation. data is then the previous one, or nil if that is
	// unusable, too.
	damaged error
}

// read returns the newest generation that accept approves. A missing file yields neither data nor an error, even if
// there is a previous generation: a removal in progress deletes that one first.
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

// repair sets a damaged file aside and restores the previous generation. Otherwise the next write would make the
// damaged content the previous generation.
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
