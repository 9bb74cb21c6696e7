package host

import (
	"context"
	"os"
	"path/filepath"

	"cambium/internal/atomicfile"
	"cambium/internal/command"
	"cambium/internal/vcap"
)

// hookState describes a hook of the stemcell as observed.
type hookState struct {
	path      string // of the program, without the root; "" if there is none
	succeeded bool   // since the machine booted
}

// HasHook reports whether the stemcell has a hook of that name.
func (h *Host) HasHook(name string) bool { return h.observeHook(name).path != "" }

func (h *Host) observeHooks(names []string) map[string]hookState {
	all := make(map[string]hookState)
	for _, name := range names {
		all[name] = h.observeHook(name)
	}
	return all
}

func (h *Host) observeHook(name string) (s hookState) {
	own := h.Dirs.Program(name)
	if info, err := os.Stat(h.joinRoot(own)); err == nil && !info.IsDir() {
		s.path = own
	} else if found := command.Find(name); found != "" {
		s.path = found
	}
	_, err := os.Lstat(h.succeededMark(s.path))
	s.succeeded = s.path != "" && err == nil
	return s
}

func diffHooks(have State, names []string) (changes []Change) {
	for _, name := range names {
		if hook := have.hooks[name]; hook.path != "" && !hook.succeeded {
			changes = append(changes, Change{Op: OpRunHook, Path: hook.path})
		}
	}
	return changes
}

// succeededMark returns the path of a file that exists from a hook's success until the next boot.
func (h *Host) succeededMark(path string) string {
	return h.joinRoot(vcap.RunDir.HookSucceeded(filepath.Base(path)))
}

func (h *Host) runHook(ctx context.Context, path string) error {
	mark := h.succeededMark(path)
	if err := atomicfile.Remove(mark); err != nil { // if the hook fails now, it runs again
		return err
	}
	program := path
	if filepath.Dir(path) == h.Dirs.BoshBin() {
		program = h.joinRoot(path)
	}
	if _, err := command.Run(ctx, command.Cmd{Name: program}); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(mark), 0o755); err != nil {
		return err
	}
	return atomicfile.Write(mark, nil, 0o644, atomicfile.Volatile())
}
