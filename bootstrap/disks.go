package bootstrap

import (
	"context"
	"errors"

	"cambium/bootstrap/engine"
	"cambium/internal/advice"
	"cambium/internal/status"
	"cambium/platform/device"
	"cambium/storage"
	"cambium/storage/decide"
)

// disks returns the goal for disks, which package storage plans or, if acting, sets up. If a disk is missing, its plan
// is a warning, because what a boot does depends on the content of the disk.
func disks(setUp func(ctx context.Context, acting bool) ([]storage.Change, error)) engine.Goal {
	return engine.Goal{
		Plan: func(ctx context.Context, f *engine.Forecast) ([]engine.Change, error) {
			changes, err := setUp(ctx, false)
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
			made, err := setUp(ctx, true)
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
	hints := m.Settings.Effective().Settings.Disks.RawHints()
	return []engine.Goal{disks(func(ctx context.Context, acting bool) ([]storage.Change, error) {
		return m.Ephemeral.SetupRaw(ctx, hints, acting)
	})}, nil
}

func (m *Machine) ephemeralDisk(context.Context, engine.Report) ([]engine.Goal, error) {
	s := m.Settings.Effective().Settings
	return []engine.Goal{disks(func(ctx context.Context, acting bool) ([]storage.Change, error) {
		return m.Ephemeral.Setup(ctx, s.Disks.Ephemeral, s.Env.Bosh.SwapSizeMiB, s.AgentID, acting)
	})}, nil
}

func (m *Machine) rootDisk(context.Context, engine.Report) ([]engine.Goal, error) {
	hint := m.Settings.Effective().Settings.Disks.Ephemeral
	return []engine.Goal{disks(func(ctx context.Context, acting bool) ([]storage.Change, error) {
		return m.Ephemeral.GrowRoot(ctx, hint, acting)
	})}, nil
}

// persistentDisk mounts the store, and renews the names of associated disks. The names are optional, because jobs
// report themselves if such a disk is missing. While the store is still being checked or mounted, storeMounted will
// renew them.
func (m *Machine) persistentDisk(_ context.Context, r engine.Report) ([]engine.Goal, error) {
	associations := m.Settings.Effective().Associations
	names := disks(func(ctx context.Context, acting bool) ([]storage.Change, error) {
		if cid, _, _ := m.Persistent.CurrentWork(); acting && cid != "" {
			return nil, nil
		}
		return m.Persistent.Associate(ctx, associations, acting)
	})
	names.Optional = true
	store := disks(func(ctx context.Context, acting bool) ([]storage.Change, error) {
		if acting {
			return m.setUpStore(ctx, r)
		}
		return m.planStore(ctx, r)
	})
	return []engine.Goal{store, names}, nil
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
	o.changes, o.warning, o.err = m.Persistent.MountStore(ctx, false)
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
