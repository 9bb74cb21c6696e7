package bundle

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"cambium/internal/atomicfile"
)

// Switch changes a set of links and files, each atomically, and can restore all of them.
type Switch struct {
	undo []func() error
	dirs map[string]bool
}

// Set points a link to target. It replaces an existing link, but nothing else.
func (s *Switch) Set(path, target string) error {
	old, err := os.Readlink(path)
	switch {
	case err == nil && old == target:
		return nil
	case err == nil:
		s.changed(path, func() error { return place(old, path) })
	case errors.Is(err, fs.ErrNotExist):
		s.changed(path, func() error { return os.Remove(path) })
	default:
		return fmt.Errorf("link %s: it exists and is not a symbolic link", path)
	}
	if err := place(target, path); err != nil {
		s.undo = s.undo[:len(s.undo)-1]
		return err
	}
	return nil
}

// Drop removes a link.
func (s *Switch) Drop(path string) error {
	old, err := os.Readlink(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("unlink: %w", err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("unlink: %w", err)
	}
	s.changed(path, func() error { return place(old, path) })
	return nil
}

// Write replaces a file.
func (s *Switch) Write(path string, data []byte, mode fs.FileMode) error {
	old, err := os.ReadFile(path)
	switch {
	case err == nil:
		s.AddUndo(func() error { return atomicfile.Write(path, old, mode) })
	case errors.Is(err, fs.ErrNotExist):
		s.AddUndo(func() error { return atomicfile.Remove(path) })
	default:
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = atomicfile.WriteIfChanged(path, data, mode)
	return err
}

// AddUndo adds a function that undoes another change, for Rollback.
func (s *Switch) AddUndo(undo func() error) { s.undo = append(s.undo, undo) }

func (s *Switch) changed(path string, undo func() error) {
	if s.dirs == nil {
		s.dirs = map[string]bool{}
	}
	s.dirs[filepath.Dir(path)] = true
	s.undo = append(s.undo, undo)
}

// Sync makes the changes durable.
func (s *Switch) Sync() error {
	var faults []error
	for dir := range s.dirs {
		err := atomicfile.SyncDir(dir)
		if !errors.Is(err, fs.ErrNotExist) {
			faults = append(faults, err)
		}
	}
	return errors.Join(faults...)
}

// Rollback undoes all changes, the last one first.
func (s *Switch) Rollback() error {
	var faults []error
	for i := len(s.undo) - 1; i >= 0; i-- {
		faults = append(faults, s.undo[i]())
	}
	s.undo = nil
	return errors.Join(append(faults, s.Sync())...)
}

// place atomically creates or replaces a link. It does not sync: hundreds of links are switched together, and then each
// directory is synced once.
func place(target, path string) error {
	temp := filepath.Join(filepath.Dir(path), ".link-"+filepath.Base(path))
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("link %s: %w", path, err)
	}
	if err := os.Symlink(target, temp); err != nil {
		return fmt.Errorf("link %s: %w", path, err)
	}
	if err := os.Rename(temp, path); err != nil {
		return errors.Join(fmt.Errorf("link %s: %w", path, err), os.Remove(temp))
	}
	return nil
}
