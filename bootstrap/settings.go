package bootstrap

import (
	"context"
	"errors"
	"path/filepath"

	"cambium/bootstrap/engine"
	"cambium/internal/status"
	"cambium/platform/tree"
	"cambium/settings/store"
)

// SettingsWait records what the sources wait for in the boot step that asks them. It reports whether the step had
// not logged that reason before.
func (m *Machine) SettingsWait(text string) (news bool) {
	span := m.LoadingSpan()
	return span != nil && span.Waiting(text)
}

// LoadingSpan is that of the step that asks the sources, while it does; nil else.
func (m *Machine) LoadingSpan() *engine.Span {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.loading
}

func (m *Machine) setLoading(s *engine.Span) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.loading = s
}

// MountSettingsTmpfs gives the store the tmpfs for settings that must not reach a disk.
func (m *Machine) MountSettingsTmpfs(ctx context.Context, _ string) error {
	if m.Tree == nil {
		return errors.New("a dummy machine mounts nothing")
	}
	changes, err := m.Tree.Converge(ctx, m.settingsTmpfs())
	if span := m.LoadingSpan(); span != nil {
		span.Changed(engine.Changes(changes)...)
	}
	return err
}

func (m *Machine) settingsTmpfs() tree.Desired {
	return tree.Select(tree.Table(m.Dirs, tree.Options{SettingsTmpfs: true}), tree.Settings)
}

// settingsChanges are what loading the settings changes besides mounts.
func settingsChanges(loaded store.Loaded) (changes []engine.Change) {
	if loaded.Foreign != "" {
		changes = append(changes, engine.Change{Text: "set aside the state of agent " + loaded.Foreign})
	}
	if loaded.Wrote != "" {
		changes = append(changes, engine.Change{Text: "write " + loaded.Wrote})
	}
	return changes
}

func (m *Machine) planSettings(ctx context.Context, f *engine.Forecast) ([]engine.Change, error) {
	loaded, err := m.Settings.Load(ctx)
	if err != nil {
		return nil, err
	}
	if loaded.Cached && !loaded.Spent {
		f.Warn("the sources failed and the cached copy serves: %s", loaded.Why)
	}
	var changes []engine.Change
	if m.Tree != nil && m.Settings.Effective().Settings.Env.Bosh.SettingsTmpfs {
		f.AddDirectory(m.Dirs.SettingsTmpfs()) // the store makes it
		mounts, err := m.planTree(ctx, f, m.settingsTmpfs())
		if err != nil {
			return nil, err
		}
		changes = mounts
	}
	return append(changes, settingsChanges(loaded)...), nil
}

func (m *Machine) loadSettings(ctx context.Context, s *engine.Span) error {
	m.setLoading(s)
	loaded, err := m.Settings.Load(ctx)
	m.setLoading(nil)
	if err != nil {
		return err
	}
	s.Changed(settingsChanges(loaded)...)
	e := m.Settings.Effective()
	described := status.Settings{From: loaded.From, Cached: loaded.Cached}
	if loaded.Why != nil {
		described.Why = engine.OneLine(loaded.Why.Error())
	}
	first := m.First != nil && m.First()
	if err := m.Status.Update(func(d *status.Document) { d.AgentID, d.Settings, d.First = e.Settings.AgentID, &described, first }); err != nil {
		m.Log.WithError(err).Warn("status not written")
	}
	s.Evidence("from %s", loaded.From)
	switch {
	case loaded.Spent:
		s.Evidence("the sources were cleared when the settings were cached")
	case loaded.Cached:
		s.Warn("the sources failed and the cached copy serves: %s", described.Why)
	}
	if loaded.NotCached != nil {
		s.Warn("settings are not cached: %s", loaded.NotCached)
	}
	if loaded.Foreign != "" {
		s.Warn("found the state of another agent, %s, and set it aside", loaded.Foreign)
	}
	for _, entry := range loaded.Report.Entries {
		s.Evidence("%s", entry)
	}
	return nil
}

// inMemory reports a machine whose secrets do not survive a reboot.
func (m *Machine) inMemory() bool {
	bosh := m.Settings.Effective().Settings.Env.Bosh
	return m.Tree != nil && (bosh.SettingsTmpfs || bosh.JobDirTmpfs)
}

// planBootOnce presumes the tmpfs that the directories step mounts.
func (m *Machine) planBootOnce(_ context.Context, f *engine.Forecast) (changes []engine.Change, err error) {
	for _, path := range bootOnceSentinels(m.Dirs) {
		mount, hidden := f.Hidden(path)
		if hidden && mount.Empty || !exists(path) {
			changes = append(changes, engine.Change{Text: "write " + path, After: mount.Step})
		}
	}
	return changes, nil
}

func (m *Machine) armBootOnce(_ context.Context, s *engine.Span) error {
	written, err := armBootOnce(m.Dirs)
	for _, path := range written {
		s.Changed(engine.Change{Text: "write " + filepath.Clean(path)})
	}
	return err
}
