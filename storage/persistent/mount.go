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
	return d.Remount(ctx, cid, Asked)
}

// Occasion is the reason for mounting a disk.
type Occasion int

// The occasions.
const (
	Asked    Occasion = iota // mount_disk, or a migration puts a disk back
	AtBoot                   // it was the store
	Migrated                 // it was just copied, and the old disk is unmounted: this chooses it
)

// Remount is Mount with the settings in force, for a migration. The caller has the lock.
func (d *Disks) Remount(ctx context.Context, cid string, why Occasion) error {
	p, err := d.findKnown(cid)
	if err != nil {
		return err
	}
	_, err = d.mount(ctx, p, why)
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
	v, err := d.observeForDecision()
	if err != nil {
		return nil, "", err
	}
	cid, warning, err := d.storeDisk(ctx, v, true)
	if cid == "" || err != nil {
		return nil, warning, err
	}
	for range 2 {
		made, err = d.mount(ctx, d.Known.Disks()[cid], AtBoot)
		outranked, ok := errors.AsType[*decide.Outranked](err)
		if !ok {
			break
		}
		err = mountError(cid, err)
		d.Machine.Log.WithError(err).WithField("cid", outranked.By).Warn("another disk is the store")
		cid = outranked.By
	}
	return made, "", mountError(cid, err)
}

// storeDisk is the disk that a boot mounts; empty if there is none.
func (d *Disks) storeDisk(ctx context.Context, v surroundings, replay bool) (cid, warning string, err error) {
	cid, warning, err = decide.StoreDisk(v.Surroundings)
	if cid == decide.Pick {
		cid, err = d.pick(ctx, v, replay)
	}
	return cid, warning, err
}

// mount waits for a disk, decides about it and does what was decided.
func (d *Disks) mount(ctx context.Context, p settings.PersistentDisk, why Occasion) ([]decide.Change, error) {
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
	// A crash may have left it where it is looked at.
	if err := mount.Detach(d.Machine.Dirs.DiskLook(), func([]mount.Process) {}); err != nil {
		return nil, err
	}
	v, err := d.observeForDecision()
	if err != nil {
		return nil, err
	}
	if err := d.lapse(v, p.CID, dev, true); err != nil {
		return nil, err
	}
	o, err := d.observe(ctx, v, p, dev, true)
	if err != nil {
		return nil, err
	}
	o.Boot = why == AtBoot
	plan, err := decide.MountDisk(o)
	if err != nil {
		return nil, err
	}
	at := &placing{Disks: d, o: o, plan: plan, identified: dev.Identified}
	if plan.Placed.Store && why != Migrated {
		at.others = d.candidates(ctx, v, p.CID, true)
	}
	if plan.Placed.Store && (plan.Formats() || plan.Leave != "") { // what is lost, or left, is not brought back by a refusal
		if err := at.choose(decide.Disk{CID: p.CID, Path: dev.Path, FileSystem: o.Found.FileSystem, Said: o.Said}); err != nil {
			return nil, err
		}
	}
	return at.apply(ctx, dev.Path)
}

// apply does what was decided about the disk at path.
func (p *placing) apply(ctx context.Context, path string) (made []decide.Change, err error) {
	d, plan, cid := p.Disks, p.plan, p.plan.Placed.CID
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
	if made, err = d.Machine.ApplyAdmitting(ctx, cid, plan, p.admit); err != nil {
		return made, err
	}
	if p.o.Request() == record.Accept {
		d.Machine.Log.WithField("cid", cid).Warn("an operator has accepted the disk that is attached")
	}
	if plan.MakeWritable {
		d.Machine.CrashPoint("store writable again")
		if err := d.MakeWritable(ctx); err != nil {
			return made, err
		}
	}
	if e, there, err := mount.At(plan.Directory); err == nil && there {
		d.note(cid, e, plan.Placed.Store)
	}
	mounts := func(c decide.Change) bool { return c.Op == decide.Mount || c.Op == decide.BindMount }
	if slices.ContainsFunc(made, mounts) {
		d.Machine.Log.WithFields(logrus.Fields{"cid": cid, "device": path, "mount": plan.Directory}).
			Info("persistent disk mounted")
	} else if err := p.stay(); err != nil {
		return made, err
	}
	return made, d.record(plan.Placed, path, p.says.Generation)
}

// record puts a disk on record that is mounted: as the store, or only as what it is. Its identity protects it from
// later mistakes; that it cannot be written is not a reason to keep the store away that is on record already.
func (d *Disks) record(what decide.Placed, path string, generation uint64) error {
	d.Machine.CrashPoint("record disk")
	found := record.Disk{Generation: generation}
	if !d.BindMounted {
		found, _ = d.identify(path) // what cannot be read stays as it is on record
		found.Generation = generation
	}
	told, _ := d.Known.ManagedCID()
	before, err := d.Machine.ReadRecord()
	if err != nil {
		return err
	}
	err = d.Machine.Record.Update(func(r *record.Record) {
		_, wasStore := r.Disks[what.CID]
		switch {
		case !what.Store && !wasStore:
			r.Done(what.CID)
		default:
			if !what.Store {
				found.Generation = r.Disks[what.CID].Generation
			}
			r.Put(what.CID, found)
		}
		r.ReadOnly = r.ReadOnly && !what.Store
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
		if err := d.Known.SetManagedCID(cid); err != nil {
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
