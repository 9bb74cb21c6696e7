package migration

import (
	"context"
	"errors"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/platform/copytree/worker"
	"cambium/platform/mount"
	"cambium/storage/decide"
	"cambium/storage/identity"
	"cambium/storage/persistent"
)

// A migration reports its progress every second, and logs it every ten.
const (
	progressInterval    = time.Second
	progressLogInterval = 10 * time.Second
)

// attempt is one attempt at a migration.
type attempt struct {
	*Migration
	disks decide.Migration
	old   mount.Entry
	mark  identity.Store
	// unmounted is set once the store is unmounted.
	unmounted bool
}

// run copies and verifies the store, records the new disk, and mounts it on the store. The copying process ends before
// the last two steps, so that only the agent uses the disks then.
func (a *attempt) run(ctx context.Context, total decide.Usage) error {
	if err := a.copyApart(ctx, total); err != nil {
		return err
	}
	a.Machine.CrashPoint("complete copy")
	if err := a.Disks.MarkComplete(a.mark); err != nil {
		return err
	}
	if err := a.Disks.Commit(a.disks.To.CID); err != nil {
		return err
	}
	return a.Disks.Remount(context.WithoutCancel(ctx), a.disks.To.CID, persistent.Migrated)
}

func (a *attempt) copyApart(ctx context.Context, total decide.Usage) (err error) {
	process, err := worker.Start(ctx, a.Program, worker.Request{
		From: a.disks.Store, To: a.disks.Target, Mark: persistent.MarkName, Own: identity.Attribute,
		Exact: a.mark.Empty})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, process.Close()) }()
	return a.transfer(ctx, process, total)
}

// transfer makes the migration target identical to the store and verifies it. It unmounts the old disk before it marks
// the new one complete, so that data is never written to both.
func (a *attempt) transfer(ctx context.Context, process *worker.Copying, total decide.Usage) error {
	r := &copyReporter{Migration: a.Migration, total: total}
	if err := process.Copy(r.report); err != nil {
		return err
	}
	if err := a.renewTarget(ctx); err != nil {
		return err
	}
	clamped, err := process.Verify(r.report)
	if err != nil {
		return err
	}
	a.Machine.Log.Info("the copy, read back from the new disk, is what was read from the old one")
	if clamped.Files > 0 {
		a.Machine.Log.WithFields(logrus.Fields{"files": clamped.Files, "path": clamped.First}).
			Warn("the new disk cannot store some file times exactly")
	}
	a.Machine.CrashPoint("unmount old store")
	if err := a.unmountStore(ctx); err != nil {
		return err
	}
	a.unmounted = true
	// The new disk is complete. unmount_disk waits for processes that still use the old one.
	if err := a.Disks.Detach(a.old); err != nil {
		a.Machine.Log.WithError(err).Warn("old disk is still in use")
	}
	a.Machine.CrashPoint("complete tree")
	return process.Complete()
}

func (a *attempt) renewTarget(ctx context.Context) error {
	limited, cancel := busyLimit(ctx)
	defer cancel()
	return a.Disks.RenewTarget(limited, a.disks.To.CID)
}

func (a *attempt) unmountStore(ctx context.Context) error {
	limited, cancel := busyLimit(ctx)
	defer cancel()
	return mount.UnmountReporting(limited, a.disks.Store, a.Disks.LogBusy(a.disks.Store))
}

// giveUp makes the old disk the store again, writable, which makes the copy out of date. It mounts the new disk on the
// migration target again, for the next call.
func (a *attempt) giveUp(ctx context.Context) error {
	if !a.unmounted {
		return a.Disks.MakeWritable(ctx)
	}
	err := a.Disks.Remount(ctx, a.disks.From.CID, persistent.Asked)
	if err == nil {
		if err := a.Disks.Remount(ctx, a.disks.To.CID, persistent.Asked); err != nil {
			a.Machine.Log.WithError(err).Warn("the new disk is not on the migration target")
		}
	}
	return err
}

// copyReporter writes the progress of a copy to log and status.
type copyReporter struct {
	*Migration
	total                   decide.Usage
	begun, reported, logged time.Time
}

func (r *copyReporter) report(now worker.Report) {
	if now.Begin {
		r.Machine.CrashPoint(now.Phase)
		r.begun = time.Now()
	}
	p := Progress{Phase: now.Phase, Files: now.Files, Bytes: now.Bytes,
		TotalBytes: r.total.Bytes, Elapsed: time.Since(r.begun)}
	due := func(last *time.Time, interval time.Duration) bool {
		if !now.Begin && !now.End && time.Since(*last) < interval {
			return false
		}
		*last = time.Now()
		return true
	}
	if due(&r.reported, progressInterval) && r.Progress != nil {
		r.Progress(p)
	}
	if due(&r.logged, progressLogInterval) {
		r.Machine.Log.WithFields(logrus.Fields{"phase": p.Phase, "files": p.Files, "bytes": p.Bytes, "of_bytes": p.TotalBytes,
			"rate": p.Rate(), "remaining": p.Remaining().String()}).
			Info("disk migration")
	}
}
