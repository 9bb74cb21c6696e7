// Package bundle stores unpacked archives: jobs and packages, each in a directory named after its content, with a link
// to the one in use. A bundle is unpacked beside its place, synced and renamed, so that an existing directory is always
// complete. Links are switched with a record from which they can be restored.
package bundle

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"cambium/internal/atomicfile"

	"golang.org/x/sys/unix"
)

// Owner is the owner of installed files: root and the group vcap.
type Owner struct{ UID, GID int }

// Collection stores one kind of bundles: jobs or packages.
type Collection struct {
	// Store contains the directories <name>/<hash>.
	Store string
	// Links contains one link per name.
	Links string
	// Mode is the mode of Links, and of the directories <name> and <name>/<hash>.
	Mode  fs.FileMode
	Owner Owner
}

// Bundle identifies an unpacked archive.
type Bundle struct{ Name, Hash string }

// Dir returns the directory of the bundle in the store.
func (c Collection) Dir(b Bundle) string { return filepath.Join(c.Store, b.Name, b.Hash) }

// Link returns the path of the link to the bundle in use: jobs/NAME or packages/NAME.
func (c Collection) Link(name string) string { return filepath.Join(c.Links, name) }

// Installed reports whether the bundle is in the store.
func (c Collection) Installed(b Bundle) bool {
	info, err := os.Lstat(c.Dir(b))
	return err == nil && info.IsDir()
}

const stagingPrefix = ".staging-"

// Staged is an unpacked bundle that is not in its place yet.
type Staged struct {
	Bundle
	Root *os.Root
	dir  string
	c    Collection
}

// Stage creates an empty directory beside the bundle's place.
func (c Collection) Stage(b Bundle) (*Staged, error) {
	if err := c.ensure(c.Store); err != nil {
		return nil, err
	}
	parent := filepath.Join(c.Store, b.Name)
	if err := c.ensure(parent); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(parent, stagingPrefix+b.Hash+"-")
	if err != nil {
		return nil, fmt.Errorf("stage %s: %w", b.Name, err)
	}
	if err := c.claim(dir); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("stage %s: %w", b.Name, err), os.RemoveAll(dir))
	}
	return &Staged{Bundle: b, Root: root, dir: dir, c: c}, nil
}

// ensure creates a directory with the right mode and owner, if it does not exist.
func (c Collection) ensure(dir string) error {
	err := os.Mkdir(dir, 0o700)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		if err := c.ensure(filepath.Dir(dir)); err != nil {
			return err
		}
		err = os.Mkdir(dir, 0o700)
	}
	if err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	return c.claim(dir)
}

func (c Collection) claim(dir string) error {
	if err := os.Chown(dir, c.Owner.UID, c.Owner.GID); err != nil {
		return fmt.Errorf("set owner: %w", err)
	}
	if err := os.Chmod(dir, c.Mode); err != nil {
		return fmt.Errorf("set mode: %w", err)
	}
	return nil
}

// Discard removes the staged bundle.
func (s *Staged) Discard() error { return errors.Join(s.Root.Close(), os.RemoveAll(s.dir)) }

// Commit syncs all staged bundles and moves them into place.
func Commit(staged []*Staged) error {
	if err := syncStaged(staged); err != nil {
		for _, s := range staged {
			err = errors.Join(err, s.Discard())
		}
		return err
	}
	var faults []error
	for _, s := range staged {
		if err := s.commit(); err != nil {
			faults = append(faults, errors.Join(err, os.RemoveAll(s.dir)))
		}
	}
	return errors.Join(faults...)
}

// fsyncLimit is the number of files up to which each file is synced. Beyond it, one syncfs is cheaper, although it also
// writes the dirty pages of other processes.
const fsyncLimit = 256

// syncStaged syncs the content of all staged bundles.
func syncStaged(staged []*Staged) error {
	var paths []string
	for _, s := range staged {
		err := filepath.WalkDir(s.dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && (d.IsDir() || d.Type().IsRegular()) {
				paths = append(paths, path)
			}
			if len(paths) > fsyncLimit {
				return fs.SkipAll
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("sync %s: %w", s.Name, err)
		}
	}
	if len(paths) <= fsyncLimit {
		for _, path := range paths {
			if err := flush(path, unix.Fsync); err != nil {
				return err
			}
		}
		return nil
	}
	flushed := map[string]bool{}
	for _, s := range staged {
		if !flushed[s.c.Store] {
			if err := flush(s.c.Store, unix.Syncfs); err != nil {
				return err
			}
			flushed[s.c.Store] = true
		}
	}
	return nil
}

func (s *Staged) commit() error {
	if err := s.Root.Close(); err != nil {
		return err
	}
	place := s.c.Dir(s.Bundle)
	err := os.Rename(s.dir, place)
	if errors.Is(err, fs.ErrExist) || errors.Is(err, unix.ENOTEMPTY) {
		return os.RemoveAll(s.dir) // another task has installed it meanwhile; the same hash means the same content
	}
	if err != nil {
		return fmt.Errorf("install %s: %w", s.Name, err)
	}
	return errors.Join(atomicfile.SyncDir(filepath.Dir(place)), atomicfile.SyncDir(s.c.Store))
}

func flush(path string, by func(fd int) error) error {
	handle, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	defer handle.Close()
	if err := by(int(handle.Fd())); err != nil {
		return fmt.Errorf("sync %s: %w", path, err)
	}
	return nil
}

// Sweep removes staged bundles that a crash has left. Nothing may be staged meanwhile.
func (c Collection) Sweep() error {
	left, err := filepath.Glob(filepath.Join(c.Store, "*", stagingPrefix+"*"))
	if err != nil {
		return fmt.Errorf("sweep: %w", err)
	}
	var faults []error
	for _, dir := range left {
		faults = append(faults, os.RemoveAll(dir))
	}
	return errors.Join(faults...)
}

// EnsureLinks creates the directory of the links.
func (c Collection) EnsureLinks() error {
	if err := c.ensure(c.Links); err != nil {
		return err
	}
	return c.claim(c.Links)
}

// Linked returns the names that have a link.
func (c Collection) Linked() ([]string, error) {
	entries, err := os.ReadDir(c.Links)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	var names []string
	for _, e := range entries {
		if e.Type()&fs.ModeSymlink != 0 && !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// Prune deletes all bundles except those in keep, and names without bundles. It renames a bundle before deleting it, so
// that a crash leaves nothing that looks complete.
func (c Collection) Prune(ctx context.Context, keep []Bundle) error {
	kept := map[Bundle]bool{}
	names := map[string]bool{}
	for _, b := range keep {
		kept[b] = true
		names[b.Name] = true
	}
	entries, err := os.ReadDir(c.Store)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("prune: %w", err)
	}
	var faults []error
	for _, e := range entries {
		if !e.IsDir() || e.Name() == "lost+found" {
			continue
		}
		if err := ctx.Err(); err != nil {
			return errors.Join(append(faults, context.Cause(ctx))...)
		}
		dir := filepath.Join(c.Store, e.Name())
		versions, err := os.ReadDir(dir)
		faults = append(faults, err)
		for _, v := range versions {
			if !kept[Bundle{e.Name(), v.Name()}] {
				faults = append(faults, remove(dir, v.Name()))
			}
		}
		if !names[e.Name()] {
			// Fails when something could not be deleted, which is reported already.
			_ = os.Remove(dir)
		}
	}
	return errors.Join(faults...)
}

func remove(dir, name string) error {
	path := filepath.Join(dir, name)
	if !strings.HasPrefix(name, ".") {
		doomed := filepath.Join(dir, stagingPrefix+name+"-gone")
		if err := os.RemoveAll(doomed); err != nil {
			return err
		}
		if err := os.Rename(path, doomed); err != nil {
			return fmt.Errorf("prune: %w", err)
		}
		path = doomed
	}
	return os.RemoveAll(path)
}
