package bootstrap

import (
	"context"
	"errors"

	"cambium/bootstrap/engine"
	"cambium/internal/oneline"
	"cambium/internal/status"
	"cambium/platform/host"
	"cambium/platform/tree"
	"cambium/settings/store"
)

// MountSettingsTmpfs mounts the tmpfs for settings that must not be stored on a disk.
func (m *Machine) MountSettingsTmpfs(ctx context.Context, _ string) error {
	if m.Tree == nil {
		return errors.New("a dummy machine cannot mount file systems")
	}
	changes, err := m.settingsTmpfs().Converge(ctx)
	if span := engine.SpanOf(ctx); span != nil {
		span.Changed(changes...)
	}
	return err
}

func (m *Machine) settingsTmpfs() engine.Goal {
	return m.tree(tree.Select(tree.Table(m.Dirs, tree.Options{SettingsTmpfs: true}), tree.Settings))
}

// reportLoaded reports problems of the settings as warnings, and returns what loading them changes besides mounts.
func reportLoaded(r engine.Report, loaded store.Loaded) (changes []engine.Change) {
	if loaded.Cached && !loaded.Spent {
		r.Warn("the settings sources failed; using the cached copy: %s", loaded.Why)
	}
	if loaded.NotCached != nil {
		r.Warn("cannot cache the settings: %s", loaded.NotCached)
	}
	if loaded.Foreign != "" {
		r.Warn("found the state of another agent, %s, and set it aside", loaded.Foreign)
		changes = append(changes, engine.Change{Text: "set aside the state of agent " + loaded.Foreign})
	}
	if loaded.Wrote != "" {
		changes = append(changes, engine.Change{Text: "write " + loaded.Wrote})
	}
	return changes
}

func (m *Machine) planSettings(ctx context.Context, f *engine.Forecast) (changes []engine.Change, err error) {
	loaded, err := m.Settings.Load(ctx)
	if err != nil {
		return nil, err
	}
	if m.Tree != nil && m.Settings.Effective().Settings.Env.Bosh.Agent.Settings.Tmpfs {
		if changes, err = m.settingsTmpfs().Plan(ctx, f); err != nil {
			return nil, err
		}
	}
	return append(changes, reportLoaded(f, loaded)...), nil
}

func (m *Machine) loadSettings(ctx context.Context, s *engine.Span) error {
	loaded, err := m.Settings.Load(engine.WithSpan(ctx, s))
	if err != nil {
		return err
	}
	s.Changed(reportLoaded(s, loaded)...)
	e := m.Settings.Effective()
	described := status.Settings{From: loaded.From, Cached: loaded.Cached}
	if loaded.Why != nil {
		described.Why = oneline.Of(loaded.Why.Error())
	}
	first := m.First != nil && m.First()
	if err := m.Status.Update(func(d *status.Document) {
		d.AgentID, d.Settings, d.First = e.Settings.AgentID, &described,
			first
	}); err != nil {
		m.Log.WithError(err).Warn("cannot write the status")
	}
	s.Evidence("from %s", loaded.From)
	if loaded.Spent {
		s.Evidence("the sources were cleared when the settings were cached")
	}
	for _, entry := range loaded.Report.Entries {
		s.Evidence("%s", entry)
	}
	return nil
}

// inMemory reports whether the machine's secrets do not survive a reboot.
func (m *Machine) inMemory() bool {
	bosh := m.Settings.Effective().Settings.Env.Bosh
	return m.Host != nil && (bosh.Agent.Settings.Tmpfs || bosh.JobDir.Tmpfs)
}

func (m *Machine) bootOnce(context.Context, engine.Report) ([]engine.Goal, error) {
	return []engine.Goal{m.host(host.Desired{Marks: bootOnceSentinels(m.Dirs)})}, nil
}
