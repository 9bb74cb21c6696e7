package bootstrap

import (
	"context"
	"io/fs"
	"maps"
	"os"

	"cambium/bootstrap/engine"
	"cambium/jobs/monit"
	"cambium/platform/tree"
)

// hardening are the groups of directories that only harden the machine; needed are those that
// jobs require.
var (
	hardening = []string{tree.SharedMemory, tree.Home}
	needed    = []string{tree.Log, tree.Opt, tree.Data, tree.Temp, tree.CanRestart, tree.Blobs, tree.Store, tree.SSH, tree.Associations}
)

func (m *Machine) planDirectories(ctx context.Context, f *engine.Forecast) (all []engine.Change, err error) {
	for _, group := range hardening {
		changes, err := m.planTree(ctx, f, m.directories(group))
		if err != nil {
			f.Warn("%s", err)
		}
		all = append(all, changes...)
	}
	changes, err := m.planTree(ctx, f, m.directories(needed...))
	return append(all, changes...), err
}

// makeDirectories sets TMPDIR, too: from then on the agent and what it starts have a place for
// temporary files in which programs can be executed, unlike /tmp.
func (m *Machine) makeDirectories(ctx context.Context, s *engine.Span) error {
	for _, group := range hardening {
		if err := converge(ctx, s, m.Tree, m.directories(group)); err != nil {
			s.Warn("%s", err)
		}
	}
	if err := converge(ctx, s, m.Tree, m.directories(needed...)); err != nil {
		return err
	}
	return os.Setenv("TMPDIR", m.Dirs.Tmp())
}

func (m *Machine) jobDirectories() (tree.Desired, error) {
	names, err := m.JobNames()
	if err != nil {
		return nil, err
	}
	return tree.JobDirs(m.Dirs, names), nil
}

func (m *Machine) planJobDirectories(ctx context.Context, f *engine.Forecast) ([]engine.Change, error) {
	want, err := m.jobDirectories()
	if err != nil {
		return nil, err
	}
	return m.planTree(ctx, f, want)
}

func (m *Machine) makeJobDirectories(ctx context.Context, s *engine.Span) error {
	want, err := m.jobDirectories()
	if err != nil {
		return err
	}
	return converge(ctx, s, m.Tree, want)
}

// supervisorChanges marks the start among the changes.
func supervisorChanges(changes []monit.Change) []engine.Change {
	all := engine.Changes(changes)
	for i, c := range changes {
		all[i].Runs = c.Op == monit.OpStart || c.Op == monit.OpRestart
	}
	return all
}

func (m *Machine) planSupervisor(ctx context.Context, _ *engine.Forecast) ([]engine.Change, error) {
	changes, err := m.Supervisor.Plan(ctx)
	return supervisorChanges(changes), err
}

func (m *Machine) startSupervisor(ctx context.Context, s *engine.Span) error {
	m.supervising.Lock()
	defer m.supervising.Unlock()
	changes, err := m.Supervisor.Start(ctx)
	s.Changed(supervisorChanges(changes)...)
	return err
}

// planTree plans directories for what earlier steps will leave, and forecasts the file systems in
// memory that it will mount.
func (m *Machine) planTree(ctx context.Context, f *engine.Forecast, want tree.Desired) ([]engine.Change, error) {
	have, err := m.Tree.Observe(ctx, want)
	if err != nil {
		return nil, err
	}
	have = forecastTree(f, have, want)
	for _, text := range tree.Warnings(have, want) {
		f.Warn("%s", text)
	}
	changes, err := tree.Diff(have, want)
	all := engine.Changes(changes)
	for i, c := range changes {
		for _, path := range []string{c.Entry.Source, c.Entry.Path} {
			if mount, hidden := f.Hidden(path); hidden {
				all[i].After = mount.Step
			}
		}
	}
	for _, c := range changes {
		if c.Op == tree.OpMountTmpfs {
			f.AddMount(c.Entry.Path, true)
		}
	}
	return all, err
}

// forecastTree corrects what was observed by what will be there once the file systems of the
// forecast are mounted. What an existing file system carries cannot be seen before that: the
// agent's own directories are presumed to be as the agent made them.
func forecastTree(f *engine.Forecast, have tree.State, want tree.Desired) tree.State {
	have.Paths = maps.Clone(have.Paths)
	for _, path := range f.Directories() {
		if !have.Paths[path].Exists {
			have.Paths[path] = tree.Found{Exists: true, Type: fs.ModeDir}
		}
	}
	corrected := map[string]bool{}
	for _, e := range want {
		for _, path := range []string{e.Path, e.Source} {
			mount, hidden := f.Hidden(path)
			if !hidden || corrected[path] {
				continue
			}
			corrected[path] = true
			have.Paths[path] = tree.Found{}
			if !mount.Empty && path == e.Path {
				have.Paths[path] = asMade(have, e)
			}
		}
	}
	return have
}

// asMade is what is found where an earlier boot has made an entry and nothing has changed it since.
// A mount is not: it ends with the boot that made it.
func asMade(have tree.State, e tree.Entry) tree.Found {
	found := tree.Found{Exists: true, Type: fs.ModeDir, Mode: e.Mode, UID: have.Users[e.Owner.User], GID: have.Groups[e.Owner.Group]}
	switch e.Kind {
	case tree.File:
		found.Type = 0
	case tree.Symlink:
		found.Type, found.LinkTo = fs.ModeSymlink, e.Source
	}
	return found
}
