package host

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// listedPath is a line of a list of paths to remove.
type listedPath struct {
	path   string
	exists bool
}

func (h *Host) observeLists(lists []string) (map[string][]listedPath, error) {
	all := make(map[string][]listedPath)
	for _, list := range lists {
		data, err := h.read(list)
		if err != nil {
			return nil, fmt.Errorf("read list of paths to remove: %w", err)
		}
		for s := bufio.NewScanner(bytes.NewReader(data)); s.Scan(); {
			path := strings.TrimSpace(s.Text())
			if path == "" {
				continue
			}
			_, err := os.Lstat(h.joinRoot(path))
			missing := errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR)
			all[list] = append(all[list], listedPath{path, !missing})
		}
	}
	return all, nil
}

// diffListed returns one change for each list, since a stemcell lists thousands of paths.
func diffListed(have State, lists []string) (changes []Change, err error) {
	var failed []error
	for _, list := range lists {
		var paths []string
		for _, p := range have.lists[list] {
			if err := removable(p.path, have.base); err != nil {
				failed = append(failed, fmt.Errorf("%s: %w", list, err))
			} else if p.exists {
				paths = append(paths, p.path)
			}
		}
		if len(paths) > 0 {
			changes = append(changes, Change{Op: OpRemoveListed, Path: list, Listed: paths})
		}
	}
	return changes, errors.Join(failed...)
}

func removable(path, base string) error {
	clean := filepath.Clean(path)
	switch {
	case !filepath.IsAbs(path), strings.ContainsRune(path, 0):
		return fmt.Errorf("%q is not an absolute path", path)
	case strings.Count(clean, "/") < 2:
		return fmt.Errorf("%q is too close to the root directory", path)
	case clean == base, strings.HasPrefix(base, clean+"/"):
		return fmt.Errorf("%q contains the agent", path)
	}
	return nil
}

// removeListed removes paths and returns those removed. It continues after an error.
func (h *Host) removeListed(ctx context.Context, paths []string) (removed []string, err error) {
	var failed []error
	for _, path := range paths {
		if ctx.Err() != nil {
			failed = append(failed, context.Cause(ctx))
			break
		}
		if err := os.RemoveAll(h.joinRoot(path)); err != nil {
			failed = append(failed, err)
			continue
		}
		removed = append(removed, path)
	}
	return removed, errors.Join(failed...)
}
