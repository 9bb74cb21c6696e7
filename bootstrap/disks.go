package bootstrap

import (
	"context"
	"errors"

	"cambium/bootstrap/engine"
	"cambium/internal/advice"
	"cambium/internal/status"
	"cambium/platform/device"
	"cambium/settings"
	"cambium/storage"
	"cambium/storage/decide"
)

// disks returns the goal for disks, which package storage plans and sets up. If a disk is missing, its plan is a
// warning, because what a boot does depends on the content of the disk.
func disks[D any](plan, setUp func(context.Context, D) ([]storage.Change, error), want D) engine.Goal {
	return engine.Goal{
		Plan: func(ctx context.Context, f *engine.Forecast) ([]engine.Change, error) {
			changes, err := plan(ctx, want)
			var known []storage.Change
			for _, c := range changes {
				if c.Op == decide.Await {
					f.Warn("%s", c)
				} else {
					known = append(known, c)
				}
			}
			return engine.Changes(known), err
		},
		Converge: func(ctx context.Context) ([]engine.Change, error) {
			made, err := setUp(ctx, want)
			return engine.Changes(made), adviseAttaching(err)
		},
	}
}

// adviseAttaching adds advice to an error about a disk that is in the settings but not attached.
func adviseAttaching(err error) error {
	if errors.Is(err, device.ErrAbsent) || errors.Is(err, device.ErrTimedOut) {
		return advice.With(
			"attach the disk that the settings name: the CPI has written where it is to be found ('agent settings')",
			err)
	}
	return err
}

func (m *Machine) hasRawDisks() bool {
	return m.Ephemeral != nil && !m.Linux.SkipDiskSetup && len(m.Settings.Effective().Settings.Disks.RawEphemeral) > 0
}

func (m *Machine) rawDisks(context.Context, engine.Report) ([]engine.Goal, error) {
	return []engine.Goal{disks(m.Ephemeral.PlanRaw, m.Ephemeral.SetupRaw,
		m.Settings.Effective().Settings.Disks.RawHints())}, nil
}

func (m *Machine) ephemeralDisk(context.Context, engine.Report) ([]engine.Goal, error) {
	return []engine.Goal{disks(
		func(ctx context.Context, s settings.Settings) ([]storage.Change, error) {
			return m.Ephemeral.Plan(ctx, s.Disks.Ephemeral, s.Env.Bosh.SwapSizeMiB, s.AgentID)
		},
		func(ctx context.Context, s settings.Settings) ([]storage.Change, error) {
			return m.Ephemeral.Setup(ctx, s.Disks.Ephemeral, s.Env.Bosh.SwapSizeMiB, s.AgentID)
		}, m.Settings.Effective().Settings)}, nil
}

func (m *Machine) rootDisk(context.Context, engine.Report) ([]engine.Goal, error) {
	return []engine.Goal{disks(m.Ephemeral.PlanGrowRoot, m.Ephemeral.GrowRoot,
		m.Settings.Effective().Settings.Disks.Ephemeral)}, nil
}

// persistentDisk mounts the store, and renews the names of associated disks. The names are optional, because jobs
// report themselves if such a disk is missing.
func (m *Machine) persistentDisk(_ context.Context, r engine.Report) ([]engine.Goal, error) {
	names := disks(m.Persistent.PlanAssociate, m.associate, m.Settings.Effective().Associations)
	names.Optional = true
	return []engine.Goal{disks(m.planStore, m.setUpStore, r), names}, nil
}

// associate renews the names of associated disks. While the store is still being checked or mounted, it leaves that to
// storeMounted.
func (m *Machine) associate(ctx context.Context, associations []settings.DiskAssociation) ([]storage.Change, error) {
	if cid, _, _ := m.Persistent.CurrentWork(); cid != "" {
		return nil, nil
	}
	return m.Persistent.Associate(ctx, associations)
}

func (m *Machine) setUpStore(ctx context.Context, r engine.Report) ([]storage.Change, error) {
	o, working := m.mountStore(ctx)
	if working != "" {
		return o.changes, nil
	}
	return o.changes, m.judgeStore(ctx, r, o)
}

// planStore plans mounting the store. It also notes what mount_disk would do with disks that a boot does not mount.
func (m *Machine) planStore(ctx context.Context, r engine.Report) ([]storage.Change, error) {
	var o mountOutcome
	o.changes, o.warning, o.err = m.Persistent.PlanMountStore(ctx)
	if err := m.judgeStore(ctx, r, o); err != nil {
		return o.changes, err
	}
	if reason := m.JobsWithheld(); reason != "" {
		r.Warn("%s: %s", status.JobsWithheld, reason)
	}
	others, err := m.Persistent.PlanMount(ctx)
	for _, c := range others {
		r.Evidence("%s", c)
	}
	if err != nil {
		r.Evidence("%s", err)
	}
	return o.changes, nil
}

// judgeStore withholds the jobs if the store is not mounted, and returns an error for disks that nothing accounts for.
func (m *Machine) judgeStore(ctx context.Context, r engine.Report, o mountOutcome) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	reason := ""
	if o.err != nil {
		reason = o.err.Error()
	}
	m.withhold(reason)
	if o.warning != "" {
		r.Warn("%s", o.warning)
	}
	return m.Persistent.CheckKnown(m.Settings.Effective().Associations)
}
