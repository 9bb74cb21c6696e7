package bootstrap

import (
	"context"
	"io/fs"
	"maps"
	"strings"

	"cambium/bootstrap/engine"
	"cambium/platform"
	"cambium/platform/host"
	"cambium/platform/tree"
	"cambium/platform/user"
	"cambium/storage"
	"cambium/storage/decide"
)

// goal returns the goal of a domain's desired state. expect, if not nil, changes what a plan observes to what earlier
// steps will have left.
func goal[S, D any, C engine.DomainChange](k platform.Kernel[S, D, C], diff platform.Diff[S, D, C], want D,
	expect func(f *engine.Forecast, have S, want D) S) engine.Goal {
	return engine.Goal{
		Plan: func(ctx context.Context, f *engine.Forecast) ([]engine.Change, error) {
			changes, err := platform.Plan(ctx, foreseen[S, D, C]{k, f, expect}, diff, want)
			return setAfter(f, engine.Changes(changes)), err
		},
		Converge: func(ctx context.Context) ([]engine.Change, error) {
			made, err := platform.Converge(ctx, k, diff, want)
			return engine.Changes(made), err
		},
	}
}

// foreseen is a domain in the state that earlier steps of a plan will leave.
type foreseen[S, D, C any] struct {
	platform.Kernel[S, D, C]
	forecast *engine.Forecast
	expect   func(f *engine.Forecast, have S, want D) S
}

func (k foreseen[S, D, C]) Observe(ctx context.Context, want D) (S, error) {
	have, err := k.Kernel.Observe(ctx, want)
	if err == nil && k.expect != nil {
		have = k.expect(k.forecast, have, want)
	}
	return have, err
}

func (m *Machine) host(want host.Desired) engine.Goal {
	return goal(m.Host, host.Diff, want, func(f *engine.Forecast, have host.State, want host.Desired) host.State {
		for _, path := range want.Marks {
			if _, empty, hidden := hides(f, path); hidden && empty {
				have.Marks[path] = false
			}
		}
		return have
	})
}

func (m *Machine) users(want user.Desired) engine.Goal {
	return goal(m.Users, user.Diff, want, func(f *engine.Forecast, have user.State, _ user.Desired) user.State {
		var planned []user.Change
		for _, c := range f.Planned() {
			if of, ok := c.Detail.(user.Change); ok {
				planned = append(planned, of)
			}
		}
		return have.After(planned)
	})
}

func (m *Machine) tree(want tree.Desired) engine.Goal {
	return goal(m.Tree, tree.Diff, want, m.expectTree)
}

// expectTree changes the observed state to what it will be when the planned file systems are mounted. The content of an
// existing file system is not visible before that, so the agent's own directories are presumed to be as the agent
// creates them.
func (m *Machine) expectTree(f *engine.Forecast, have tree.State, want tree.Desired) tree.State {
	have.Paths = maps.Clone(have.Paths)
	// These two are made along with the ephemeral disk and with the settings.
	for _, path := range []string{m.Dirs.Data(), m.Dirs.SettingsTmpfs()} {
		if !have.Paths[path].Exists {
			have.Paths[path] = tree.Found{Exists: true, Type: fs.ModeDir}
		}
	}
	corrected := map[string]bool{}
	for _, e := range want {
		for _, path := range []string{e.Path, e.Source} {
			_, empty, hidden := hides(f, path)
			if !hidden || corrected[path] {
				continue
			}
			corrected[path] = true
			have.Paths[path] = tree.Found{}
			if !empty && path == e.Path {
				have.Paths[path] = asMade(have, e)
			}
		}
	}
	for _, text := range tree.Warnings(have, want) {
		f.Warn("%s", text)
	}
	return have
}

// asMade returns the state in which an earlier boot has left an entry. Only the directory of a mount is left, because a
// mount ends with the boot.
func asMade(have tree.State, e tree.Entry) tree.Found {
	found := tree.Found{Exists: true, Type: fs.ModeDir, Mode: e.Mode,
		UID: have.Users[e.Owner.User], GID: have.Groups[e.Owner.Group]}
	switch e.Kind {
	case tree.File:
		found.Type = 0
	case tree.Symlink:
		found.Type, found.LinkTo = fs.ModeSymlink, e.Source
	}
	return found
}

// hides returns the last step with a planned mount that will hide path. empty reports whether the file system is new;
// if it is not, it has what earlier boots have left on it.
func hides(f *engine.Forecast, path string) (step string, empty, hidden bool) {
	formats := ""
	for _, c := range f.Planned() {
		target, isNew := "", true
		switch d := c.Detail.(type) {
		case storage.Change:
			switch d.Op {
			case decide.MakeFileSystem:
				formats = c.Step
			case decide.Mount:
				target, isNew = d.Target, formats == c.Step
			}
		case tree.Change:
			if d.Op == tree.OpMountTmpfs {
				target = d.Entry.Path
			}
		}
		if target != "" && strings.HasPrefix(path, target+"/") {
			step, empty, hidden = c.Step, isNew, true
		}
	}
	return step, empty, hidden
}

// setAfter sets After, the step whose planned mount a change depends on.
func setAfter(f *engine.Forecast, changes []engine.Change) []engine.Change {
	for i := range changes {
		var paths []string
		switch d := changes[i].Detail.(type) {
		case tree.Change:
			paths = []string{d.Entry.Source, d.Entry.Path}
		case host.Change:
			paths = []string{d.Path}
		}
		for _, path := range paths {
			if step, _, hidden := hides(f, path); hidden {
				changes[i].After = step
			}
		}
	}
	return changes
}
