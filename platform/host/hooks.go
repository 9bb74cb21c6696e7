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

	"cambium/internal/atomicfile"
	"cambium/internal/command"

	"github.com/sirupsen/logrus"
)

// Hook runs one of the stemcell's own programs, found in the agent's directory of programs or
// in PATH. That there is none is no error: hooks are optional, and ran says whether it was
// there. One that has ended well is not run again before the next boot of the machine: a restart
// of the agent changes nothing of what hooks set up.
func (h *Host) Hook(ctx context.Context, name string) (ran bool, err error) {
	path := h.at(filepath.Join(h.Dirs.BoshBin(), name))
	if info, err := os.Stat(path); err != nil || info.IsDir() {
		if path = command.Find(name); path == "" {
			return false, nil
		}
	}
	if h.hookDone(name) {
		return true, nil
	}
	return true, h.runHook(ctx, name, path)
}

func (h *Host) hookMark(name string) string { return h.at(filepath.Join("/run/cambium/hooks", name)) }

// hookDone reports whether a hook has ended well in this boot of the machine.
func (h *Host) hookDone(name string) bool {
	_, err := os.Lstat(h.hookMark(name))
	return err == nil
}

func (h *Host) runHook(ctx context.Context, name, path string) error {
	done := h.hookMark(name)
	if err := atomicfile.Remove(done); err != nil { // it is to be run again if it fails now
		return fmt.Errorf("hook %s: %w", name, err)
	}
	if _, err := command.Run(ctx, command.Cmd{Name: path}); err != nil {
		return fmt.Errorf("hook %s: %w", name, err)
	}
	if err := os.MkdirAll(filepath.Dir(done), 0o755); err != nil {
		return fmt.Errorf("hook %s: %w", name, err)
	}
	return atomicfile.Write(done, nil, 0o644, atomicfile.Volatile())
}

// RemoveListed removes what a file of the stemcell lists, one path per line: compilers, static
// libraries. A missing list is an empty one. Paths that no list may sensibly name (relative
// ones, the root, its children) are refused; the others are removed all the same.
func (h *Host) RemoveListed(ctx context.Context, list string) (removed int, err error) {
	data, err := h.read(list)
	if err != nil {
		return 0, fmt.Errorf("remove what %s lists: %w", list, err)
	}
	var failed []error
	for s := bufio.NewScanner(bytes.NewReader(data)); s.Scan(); {
		if ctx.Err() != nil {
			failed = append(failed, context.Cause(ctx))
			break
		}
		path := strings.TrimSpace(s.Text())
		if path == "" {
			continue
		}
		if err := h.removable(path); err != nil {
			failed = append(failed, err)
			continue
		}
		full := h.at(path)
		if _, err := os.Lstat(full); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := os.RemoveAll(full); err != nil {
			failed = append(failed, err)
			continue
		}
		removed++
	}
	if removed > 0 && h.Log != nil {
		h.Log.WithFields(logrus.Fields{"path": list, "removed": removed}).Info("removed what the stemcell lists")
	}
	if len(failed) > 0 {
		return removed, fmt.Errorf("remove what %s lists: %w", list, errors.Join(failed...))
	}
	return removed, nil
}

func (h *Host) removable(path string) error {
	clean := filepath.Clean(path)
	base := h.Dirs.Base()
	switch {
	case !filepath.IsAbs(path), strings.ContainsRune(path, 0):
		return fmt.Errorf("%q is not an absolute path", path)
	case strings.Count(clean, "/") < 2:
		return fmt.Errorf("%q is too near the root", path)
	case clean == base, strings.HasPrefix(base, clean+"/"):
		return fmt.Errorf("%q holds the agent", path)
	}
	return nil
}
