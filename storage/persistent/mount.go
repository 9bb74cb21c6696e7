package persistent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"cambium/platform/device"
	"cambium/platform/disk"
	"cambium/platform/mount"
	"cambium/settings"
	"cambium/storage/decide"
	"cambium/storage/internal/machine"
	"cambium/storage/record"
)

// Mount makes a persistent disk ready and mounts it on the store, or, where another disk is
// there, on the migration target.
func (d *Disks) Mount(ctx context.Context, cid string) error {
	if err := d.Reload(ctx); err != nil {
		return err
	}
	if err := d.Machine.Lock(ctx); err != nil {
		return err
	}
	defer d.Machine.Unlock()
	if err := d.applyReleases(); err != nil {
		return err
	}
	return d.PutBack(ctx, cid)
}

// PutBack mounts a disk that a migration has unmounted. The caller has the lock.
func (d *Disks) PutBack(ctx context.Context, cid string) error {
	p, err := d.known(cid)
	if err != nil {
		return err
	}
	_, err = d.mount(ctx, p, false)
	return mountError(cid, err)
}

// mountError names the disk that cannot be mounted. One that is refused may be the wrong one, hence the list of all.
func mountError(cid string, err error) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf("mount disk %s: %w", cid, err)
	if _, refused := errors.AsType[*decide.Refusal](err); refused {
		err = fmt.Errorf("%w; %s", err, device.There("/"))
	}
	return err
}

// MountLast brings the persistent disk back after a reboot. A known disk that is missing is an error, and so is one
// that holds no store.
func (d *Disks) MountLast(ctx context.Context) (made []decide.Change, warning string, err error) {
	if err := d.Machine.Lock(ctx); err != nil {
		return nil, "", err
	}
	defer d.Machine.Unlock()
	if err := d.applyReleases(); err != nil {
		return nil, "", err
	}
	v, err := d.usable()
	if err != nil {
		return nil, "", err
	}
	cid, warning, err := decide.StoreDisk(v.Around)
	if cid == "" || err != nil {
		return nil, warning, err
	}
	made, err = d.mount(ctx, v.known[cid], true)
	return made, "", mountError(cid, err)
}

// mount waits for a disk, decides about it and does what was decided.
func (d *Disks) mount(ctx context.Context, p settings.PersistentDisk, atBoot bool) ([]decide.Change, error) {
	dev, err := d.Resolver.Resolve(ctx, d.hint(p))
	if err != nil {
		return nil, err
	}
	if !d.BindMounted && !dev.Directory {
		// Locked until it is mounted: udev would have the partitions taken away for a moment.
		release, err := disk.Hold(ctx, dev.Path)
		if err != nil {
			return nil, err
		}
		defer release()
	}
	v, err := d.usable()
	if err != nil {
		return nil, err
	}
	o, err := d.observe(ctx, v, p, dev, true)
	if err != nil {
		return nil, err
	}
	o.Boot = atBoot
	plan, err := decide.MountDisk(o)
	if err != nil {
		return nil, err
	}
	return d.apply(ctx, dev.Path, plan)
}

// apply does what was decided about the disk at path.
func (d *Disks) apply(ctx context.Context, path string, plan decide.Plan) (made []decide.Change, err error) {
	cid := plan.Records.CID
	if of := plan.Records.Correct; of != "" {
		d.Machine.Log.WithFields(logrus.Fields{"cid": of, "recorded": cid}).
			Warn("another agent has recorded the disk for the migration target as the store")
		if err := d.correct(of); err != nil {
			return nil, err
		}
	}
	if plan.Leave != "" {
		if err := mount.UnmountReporting(ctx, plan.Leave, d.Busy(plan.Leave)); err != nil {
			return nil, err
		}
	}
	if err := machine.EnsureDir(plan.Directory, 0o700); err != nil {
		return nil, err
	}
	if len(plan.Stale) > 0 {
		d.Machine.Log.WithFields(logrus.Fields{"cid": cid, "device": path, "others": plan.Stale}).
			Warn("another disk's hint resolves to the same device and is ignored")
	}
	d.warnNotGrown(path, plan.NotGrown)
	if !plan.Records.Store {
		// What is about to be migrated has not been, also where a crash comes before it is on record.
		if err := d.Machine.Record.Update(func(r *record.Record) { r.Migrated = "" }); err != nil {
			return nil, err
		}
	}
	if made, err = d.Machine.Apply(ctx, cid, plan); err != nil {
		return made, err
	}
	if plan.Records.Accepted {
		d.Machine.Log.WithField("cid", cid).Warn("an operator has accepted the disk that is attached")
	}
	if plan.MakeWritable {
		d.Machine.CrashPoint("store writable again")
		if err := d.MakeWritable(ctx); err != nil {
			return made, err
		}
	}
	if err := d.checkMark(plan, path); err != nil {
		return nil, err
	}
	if e, there, err := mount.At(plan.Directory); err == nil && there {
		d.note(cid, e, plan.Records.Store)
	}
	mounts := func(c decide.Change) bool { return c.Op == decide.Mount || c.Op == decide.BindMount }
	if slices.ContainsFunc(made, mounts) {
		d.Machine.Log.WithFields(logrus.Fields{"cid": cid, "device": path, "mount": plan.Directory}).
			Info("persistent disk mounted")
	}
	return made, d.record(plan.Records, path)
}

// checkMark refuses the store to a disk with a mark, which is mounted now, unless an operator has accepted it: then it
// loses the mark.
func (d *Disks) checkMark(plan decide.Plan, path string) error {
	m, err := d.Mark(plan.Directory)
	if err != nil || m == nil {
		return err
	}
	if plan.Records.Accepted {
		return d.removeMark(plan.Records.CID, plan.Directory)
	}
	if err := decide.CheckCopy(plan.Records.CID, path, m); err != nil && plan.Records.Store {
		return errors.Join(err, mount.Detach(plan.Directory, d.Busy(plan.Directory)))
	}
	return nil
}

// correct records the disk that is on the store.
func (d *Disks) correct(cid string) error {
	e, there, err := mount.At(d.Machine.Dirs.Store())
	if err != nil || !there {
		return err
	}
	path := e.Source
	if !d.BindMounted {
		if path, _, err = d.diskOf(e); err != nil {
			return err
		}
	}
	return d.record(decide.Records{CID: cid, Store: true}, path)
}

// record puts a disk on record that is mounted: as the store, or only as what it is. Its identity protects it from
// later mistakes; that it cannot be written is not a reason to keep the store away that is on record already.
func (d *Disks) record(what decide.Records, path string) error {
	d.Machine.CrashPoint("record disk")
	var found record.Disk
	if !d.BindMounted {
		var err error
		if found, err = d.foundFor(what.CID, path); err != nil {
			return err
		}
	}
	told, _ := d.Records.MountedCID()
	before, err := d.Machine.Record.Read()
	if err != nil {
		return err
	}
	err = d.Machine.Record.Update(func(r *record.Record) {
		_, wasStore := r.Disks[what.CID]
		switch {
		case d.BindMounted || !what.Store && !wasStore:
			delete(r.Asked, what.CID)
		default:
			r.Put(what.CID, found)
		}
		if what.Store && (r.Store != what.CID || told != what.CID) {
			r.Store, r.Published = what.CID, false
		}
	})
	if recorded, _ := before.StoreDisk(told); err != nil && what.Store && recorded == what.CID && cannotBeWritten(err) {
		d.Machine.Log.WithError(err).Warn("cannot write the disk record; retrying at the next mount")
		return nil
	}
	if err != nil || !what.Store {
		return err
	}
	return d.publish(what.CID, told)
}

// publish names the disk on the store where other agents look for it.
func (d *Disks) publish(cid, told string) error {
	if told != cid {
		d.Machine.CrashPoint("publish store")
		if err := d.Records.SetMountedCID(cid); err != nil {
			return err
		}
	}
	return d.Machine.Record.Update(func(r *record.Record) { r.Published = true })
}

// cannotBeWritten reports a directory that is full or read-only.
func cannotBeWritten(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EROFS) || errors.Is(err, unix.EDQUOT) ||
		errors.Is(err, os.ErrPermission)
}
