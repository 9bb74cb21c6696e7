package bootstrap

import (
	"context"

	"cambium/bootstrap/engine"
	"cambium/platform/tree"
)

// hardening lists the groups of directories that only harden the machine. needed lists those that jobs require.
var (
	hardening = []string{tree.SharedMemory, tree.Home}
	needed    = []string{tree.Log, tree.Opt, tree.Data, tree.Temp, tree.CanRestart, tree.Blobs, tree.Store, tree.SSH,
		tree.Associations}
)

// groups returns the goal for groups in the table of directories.
func (m *Machine) groups(names ...string) engine.Goal {
	options := tree.Options{}
	if m.Settings != nil {
		bosh := m.Settings.Effective().Settings.Env.Bosh
		options = tree.Options{UseDefaultTmpDir: m.Linux.UseDefaultTmpDir, JobDirTmpfs: bosh.JobDir.Tmpfs,
			JobDirSize: bosh.JobDir.TmpfsSize, RunDirSize: bosh.RunDir.TmpfsSize,
			SettingsTmpfs: bosh.Agent.Settings.Tmpfs}
	}
	return m.tree(tree.Select(tree.Table(m.Dirs, options), names...))
}

func (m *Machine) directories(context.Context, engine.Report) (goals []engine.Goal, err error) {
	for _, group := range hardening {
		g := m.groups(group)
		g.Optional = true
		goals = append(goals, g)
	}
	return append(goals, m.groups(needed...)), nil
}

func (m *Machine) jobDirectories(context.Context, engine.Report) ([]engine.Goal, error) {
	names, err := m.JobNames()
	return []engine.Goal{m.tree(tree.JobDirs(m.Dirs, names))}, err
}

func (m *Machine) planSupervisor(ctx context.Context, _ *engine.Forecast) ([]engine.Change, error) {
	changes, err := m.Supervisor.Plan(ctx)
	return engine.Changes(changes), err
}

func (m *Machine) startSupervisor(ctx context.Context, s *engine.Span) error {
	m.supervising.Lock()
	defer m.supervising.Unlock()
	changes, err := m.Supervisor.Start(ctx)
	s.Changed(engine.Changes(changes)...)
	return err
}
