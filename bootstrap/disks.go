package bootstrap

import (
	"cmp"
	"context"
	"slices"

	"cambium/bootstrap/engine"
	"cambium/platform/tree"
	"cambium/storage"
	"cambium/storage/decide"
)

func (m *Machine) hasRawDisks() bool {
	return m.Ephemeral != nil && !m.Options.SkipDiskSetup && len(m.Settings.Effective().Settings.Disks.RawEphemeral) > 0
}

// diskChanges are planned changes without the waits for disks that are not there yet: what a boot
// does with them depends on what they carry, hence a warning.
func diskChanges(f *engine.Forecast, changes []storage.Change) []engine.Change {
	var known []storage.Change
	for _, c := range changes {
		if c.Op == decide.Await {
			f.Warn("%s", c)
		} else {
			known = append(known, c)
		}
	}
	return engine.Changes(known)
}

func (m *Machine) planRawDisks(ctx context.Context, f *engine.Forecast) ([]engine.Change, error) {
	changes, err := m.Ephemeral.PlanRaw(ctx, m.Settings.Effective().Settings.Disks.RawEphemeral)
	return diskChanges(f, changes), err
}

func (m *Machine) setUpRawDisks(ctx context.Context, s *engine.Span) error {
	defer s.WaitingSoon("the raw ephemeral disks")()
	changes, err := m.Ephemeral.SetupRaw(ctx, m.Settings.Effective().Settings.Disks.RawEphemeral)
	return record(s, changes, err)
}

// planEphemeralDisk also forecasts what later steps will find on the data directory.
func (m *Machine) planEphemeralDisk(ctx context.Context, f *engine.Forecast) ([]engine.Change, error) {
	s := m.Settings.Effective().Settings
	changes, err := m.Ephemeral.Plan(ctx, s.Disks.Ephemeral, s.Env.Bosh.SwapSizeMiB, s.AgentID)
	if err != nil {
		return diskChanges(f, changes), err
	}
	f.AddDirectory(m.Dirs.Data())
	if slices.ContainsFunc(changes, func(c storage.Change) bool { return c.Op == decide.Mount && c.Target == m.Dirs.Data() }) {
		f.AddMount(m.Dirs.Data(), slices.ContainsFunc(changes, func(c storage.Change) bool { return c.Op == decide.MakeFileSystem }))
	}
	return diskChanges(f, changes), nil
}

func (m *Machine) setUpEphemeralDisk(ctx context.Context, span *engine.Span) error {
	s := m.Settings.Effective().Settings
	if hint := s.Disks.Ephemeral; hint != nil {
		defer span.WaitingSoon("the disk " + cmp.Or(hint.Path, hint.DeviceID, hint.VolumeID, hint.LUN))()
	}
	changes, err := m.Ephemeral.Setup(ctx, s.Disks.Ephemeral, s.Env.Bosh.SwapSizeMiB, s.AgentID)
	return record(span, changes, err)
}

func (m *Machine) planRootDisk(ctx context.Context, _ *engine.Forecast) ([]engine.Change, error) {
	changes, err := m.Ephemeral.PlanGrowRoot(ctx, m.Settings.Effective().Settings.Disks.Ephemeral)
	return engine.Changes(changes), err
}

func (m *Machine) growRootDisk(ctx context.Context, s *engine.Span) error {
	changes, err := m.Ephemeral.GrowRoot(ctx, m.Settings.Effective().Settings.Disks.Ephemeral)
	return record(s, changes, err)
}

func (m *Machine) planPersistentDisk(ctx context.Context, f *engine.Forecast) ([]engine.Change, error) {
	changes, warning, err := m.Persistent.PlanMountLast(ctx)
	planned := diskChanges(f, changes)
	if warning != "" {
		f.Warn("%s", warning)
	}
	if err != nil {
		return planned, err
	}
	associations := m.Settings.Effective().Associations
	if err := m.Persistent.CheckKnown(associations); err != nil {
		return planned, err
	}
	links, err := m.Persistent.PlanAssociate(ctx, associations)
	if err != nil {
		f.Warn("%s", err)
	}
	others, err := m.Persistent.PlanMount(ctx)
	if err != nil {
		f.Note("%s", err)
	}
	for _, c := range others {
		f.Note("%s", c)
	}
	return append(planned, diskChanges(f, links)...), nil
}

// mountPersistentDisk also renews the names of associated disks. Without their devices jobs that
// use them fail by themselves and say so, hence only a warning. Without its store the machine serves, and no job is started.
func (m *Machine) mountPersistentDisk(ctx context.Context, s *engine.Span) error {
	defer s.WaitingSoon("the persistent disk")()
	o, working := m.mountStore(ctx)
	s.Changed(engine.Changes(o.changes)...)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case working != "":
		return nil // the names of associated disks follow when it is mounted
	case o.err != nil:
		m.withhold(o.err.Error())
	default:
		m.withhold("")
	}
	if o.warning != "" {
		s.Warn("%s", o.warning)
	}
	associations := m.Settings.Effective().Associations
	if err := m.Persistent.CheckKnown(associations); err != nil {
		return err
	}
	changes, err := m.Persistent.Associate(ctx, associations)
	if err := record(s, changes, err); err != nil {
		s.Warn("%s", err)
	}
	return nil
}

// directories are groups of the table of directories.
func (m *Machine) directories(groups ...string) tree.Desired {
	options := tree.Options{}
	if m.Settings != nil {
		bosh := m.Settings.Effective().Settings.Env.Bosh
		options = tree.Options{UseDefaultTmpDir: m.Options.UseDefaultTmpDir, JobDirTmpfs: bosh.JobDirTmpfs,
			JobDirSize: bosh.JobDirTmpfsSize, RunDirSize: bosh.RunDirTmpfsSize, SettingsTmpfs: bosh.SettingsTmpfs}
	}
	return tree.Select(tree.Table(m.Dirs, options), groups...)
}
