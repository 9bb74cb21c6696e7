package bootstrap

import (
	"context"
	"fmt"
	"slices"
	"time"

	"cambium/storage"
	"cambium/storage/decide"
)

// A machine whose store cannot be mounted serves the Director, but its jobs are withheld: they would initialize
// themselves on the empty directory. They are released when the disk is mounted, or is no longer attached.

// storeHold bounds how long the boot waits for a check of the store's file system, or for a mount that replays its
// journal. After that they continue in the background, because the Health Monitor declares an agent lost after a minute
// without heartbeats.
const storeHold = 30 * time.Second

// JobsWithheld returns the reason why no job may start, or "" if jobs may start.
func (m *Machine) JobsWithheld() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.withheld
}

// withhold sets the reason why no job may start; "" if jobs may start.
func (m *Machine) withhold(reason string) {
	m.mu.Lock()
	changed := m.withheld != reason
	m.withheld = reason
	m.mu.Unlock()
	if !changed {
		return
	}
	if reason != "" {
		m.Log.WithField("reason", reason).Warn("no job is started: the store is not mounted")
	} else {
		m.Log.Info("the store is mounted, jobs may be started")
	}
	if m.WithheldChanged != nil {
		m.WithheldChanged(reason)
	}
}

// mountOutcome is the result of mounting the store.
type mountOutcome struct {
	changes []storage.Change
	warning string
	err     error
}

// mountStore mounts the store's disk. If checking or mounting takes long, it continues in the background: mountStore
// then returns what is being done, and jobs are withheld until that has ended.
func (m *Machine) mountStore(ctx context.Context) (o mountOutcome, working string) {
	if cid, what, _ := m.Persistent.CurrentWork(); cid != "" {
		m.withhold(what)
		return o, what // since an earlier attempt
	}
	outcome := make(chan mountOutcome, 1)
	left := make(chan struct{}) // closed when the boot goes on without it
	m.Deferred.Go(func(agent context.Context) {
		within, cancel := context.WithCancelCause(agent)
		defer cancel(nil)
		defer context.AfterFunc(ctx, func() {
			select {
			case <-left:
			default:
				cancel(context.Cause(ctx))
			}
		})()
		var o mountOutcome
		o.changes, o.warning, o.err = m.Persistent.MountStore(within, true)
		outcome <- o
	})
	tick := time.NewTicker(storeHold / 60)
	defer tick.Stop()
	for {
		select {
		case o = <-outcome:
			return o, ""
		case <-tick.C:
			if cid, what, since := m.Persistent.CurrentWork(); cid != "" && time.Since(since) > storeHold {
				close(left)
				m.withhold(what) // before its end can release them
				m.Deferred.Go(func(agent context.Context) {
					select {
					case o := <-outcome:
						m.storeMounted(agent, o.err)
					case <-agent.Done():
					}
				})
				return o, what
			}
		}
	}
}

// storeMounted handles the result of mounting the store: it releases the jobs, or withholds them with the error as the
// reason.
func (m *Machine) storeMounted(ctx context.Context, err error) {
	if err == nil {
		if _, err := m.Persistent.Associate(ctx, m.Settings.Effective().Associations, true); err != nil {
			m.Log.WithError(err).Warn("cannot link the associated disks by name")
		}
		err = m.releaseJobs(ctx)
	}
	if err != nil && ctx.Err() == nil {
		m.withhold(err.Error())
	}
}

// releaseJobs starts the supervisor, as a boot does, and then permits jobs to start.
func (m *Machine) releaseJobs(ctx context.Context) error {
	if m.JobsWithheld() == "" {
		return nil
	}
	if m.Supervisor != nil {
		m.supervising.Lock()
		defer m.supervising.Unlock()
		if _, err := m.Supervisor.Start(ctx); err != nil {
			return fmt.Errorf("supervisor: %w", err)
		}
	}
	m.withhold("")
	return nil
}

// RecheckStore releases the jobs if a disk action has mounted the store or detached its disk.
func (m *Machine) RecheckStore(ctx context.Context) {
	if m.JobsWithheld() == "" {
		return
	}
	changes, _, err := m.Persistent.MountStore(ctx, false)
	if err == nil && !slices.ContainsFunc(changes, notMounted) {
		m.storeMounted(ctx, nil)
	}
}

// notMounted reports whether a planned change shows that the store is not mounted.
func notMounted(c storage.Change) bool {
	return c.Op == decide.Await || c.Op == decide.Mount || c.Op == decide.BindMount
}

// AwaitStore tries to mount the store again until jobs are no longer withheld: when the machine's disks change, on
// request, and after pauses.
func (m *Machine) AwaitStore(ctx context.Context) {
	for attempt := 0; m.JobsWithheld() != ""; attempt++ {
		within, cancel := context.WithTimeout(ctx, retryPauses.Pause(attempt))
		m.awaitHardware(within, m.hardware())
		cancel()
		if ctx.Err() != nil {
			return
		}
		if cid, _, _ := m.Persistent.CurrentWork(); cid != "" {
			continue
		}
		// Planned first: waiting for a disk would block the disk actions.
		changes, _, err := m.Persistent.MountStore(ctx, false)
		if err == nil && slices.ContainsFunc(changes, func(c storage.Change) bool { return c.Op == decide.Await }) {
			continue
		}
		if err == nil {
			_, _, err = m.Persistent.MountStore(ctx, true)
		}
		m.storeMounted(ctx, err)
	}
}
