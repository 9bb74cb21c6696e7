package bootstrap

import (
	"context"
	"fmt"
	"slices"
	"time"

	"cambium/storage"
	"cambium/storage/decide"
)

// A machine whose store cannot be mounted serves without its jobs: they would initialize themselves on the empty directory. The
// phase ends when the disk is mounted, or is no longer attached.

// checkHold is how long the boot waits for a check of the store's file system. A check goes on for as long as it takes.
const checkHold = 30 * time.Second

// JobsWithheld is why no job may be started; empty if they may.
func (m *Machine) JobsWithheld() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.withheld
}

// withhold begins the phase, or changes its reason.
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

// mountOutcome is what mounting the store came to.
type mountOutcome struct {
	changes []storage.Change
	warning string
	err     error
}

// mountStore mounts the disk of the store. A long check of its file system goes on without the boot; then still is true.
func (m *Machine) mountStore(ctx context.Context) (o mountOutcome, still bool) {
	if cid, _ := m.Persistent.Checking(); cid != "" {
		return o, true // since an earlier attempt
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
		o.changes, o.warning, o.err = m.Persistent.MountLast(within)
		outcome <- o
	})
	tick := time.NewTicker(checkHold / 60)
	defer tick.Stop()
	for {
		select {
		case o = <-outcome:
			return o, false
		case <-tick.C:
			if cid, since := m.Persistent.Checking(); cid != "" && time.Since(since) > checkHold {
				close(left)
				m.Deferred.Go(func(agent context.Context) {
					select {
					case o := <-outcome:
						m.settle(agent, o.err)
					case <-agent.Done():
					}
				})
				return o, true
			}
		}
	}
}

// settle ends the phase if the store has been mounted, or names the reason why not.
func (m *Machine) settle(ctx context.Context, err error) {
	if err == nil {
		if _, err := m.Persistent.Associate(ctx, m.Settings.Effective().Associations); err != nil {
			m.Log.WithError(err).Warn("associated disks have no names")
		}
		err = m.releaseJobs(ctx)
	}
	if err != nil && ctx.Err() == nil {
		m.withhold(err.Error())
	}
}

// releaseJobs starts the supervisor as after any reboot.
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

// SettleStore ends the phase if a disk action has mounted the store or ended the attachment of its disk.
func (m *Machine) SettleStore(ctx context.Context) {
	if m.JobsWithheld() == "" {
		return
	}
	changes, err := m.Persistent.PlanMountLast(ctx)
	if err == nil && !slices.ContainsFunc(changes, notMounted) {
		m.settle(ctx, nil)
	}
}

// notMounted is a planned change that shows that the store is not mounted yet.
func notMounted(c storage.Change) bool {
	return c.Op == decide.Await || c.Op == decide.Mount || c.Op == decide.BindMount
}

// AwaitStore tries again to mount the store, when the machine has other disks and after pauses, until the phase is over.
func (m *Machine) AwaitStore(ctx context.Context) {
	for attempt := 0; m.JobsWithheld() != ""; attempt++ {
		within, cancel := context.WithTimeout(ctx, retryPauses.Pause(attempt))
		m.AwaitHardware(within, m.Hardware())
		cancel()
		if ctx.Err() != nil {
			return
		}
		if cid, _ := m.Persistent.Checking(); cid != "" {
			continue
		}
		// Looked at first: waiting for a disk would keep disk actions waiting.
		changes, err := m.Persistent.PlanMountLast(ctx)
		if err == nil && slices.ContainsFunc(changes, func(c storage.Change) bool { return c.Op == decide.Await }) {
			continue
		}
		if err == nil {
			_, _, err = m.Persistent.MountLast(ctx)
		}
		m.settle(ctx, err)
	}
}
