package store

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"cambium/internal/vcap"
)

// setAside moves the files of another agent id, its owner, to separate directories. Previous generations and damaged
// files go first, and the settings last: while the settings are in place, the next start continues an interrupted move.
// Directories stay.
func (c *Current) setAside(owner string) error {
	paths := c.dirs.OfAgentID()
	for _, path := range paths {
		if err := c.moveCompanions(path, owner); err != nil {
			return err
		}
	}
	for _, path := range paths {
		err := filepath.WalkDir(path, func(found string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil || d.IsDir() {
				return err
			}
			return c.moveAside(path, found, owner)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// moveCompanions moves the files named PATH.SUFFIX: the previous generation, and damaged ones.
func (c *Current) moveCompanions(path, owner string) error {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() && strings.HasPrefix(e.Name(), filepath.Base(path)+".") {
			if err := c.moveAside(path, filepath.Join(filepath.Dir(path), e.Name()), owner); err != nil {
				return err
			}
		}
	}
	return nil
}

// moveAside moves a file that belongs to path.
func (c *Current) moveAside(path, file, owner string) error {
	rel, err := filepath.Rel(filepath.Dir(path), file)
	if err != nil {
		return err
	}
	to := filepath.Join(vcap.ForeignPath(path, owner), rel)
	if err := c.disk.mkdir(filepath.Dir(to)); err != nil {
		return err
	}
	return c.disk.move(file, to)
}
