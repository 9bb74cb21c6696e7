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

// Mount prepares a persistent disk and mounts it on the store or, if another disk is there, on the migration target.
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

// Occasion is the reason why a disk is mounted.
type Occasion int

// Reasons for mounting a disk.
const (
	Asked    Occasion = iota // mount_disk, or a migration mounts a disk again
	AtBoot                   // a boot mounts the store
	Migrated                 // a migration makes the copy the store
)

// Remount mounts a disk like Mount, without loading the settings again, for a migration. The caller holds the lock.
func (d *Disks) Remount(ctx context.Context, cid string, why Occasion) error {
	p, err := d.findKnown(cid)
	if err != nil {
		return err
	}
	_, err = d.mount(ctx, p, why)
	return mountError(cid, err)
}

// mountError adds the CID to an error. If the disk is refused, another one may be the right one, so it also lists all
// disks.
func mountError(cid string, err error) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf("mount disk %s: %w", cid, err)
	if _, refused := errors.AsType[*decide.Refusal](err); refused {
		err = fmt.Errorf("%w; %s", err, device.DescribeDisks("/"))
	}
	return err
}

// MountStore mounts the disk that was the store, at boot. If that disk is missing or is not a store, it is an error. If
// acting is false, it returns the changes that it would make, and neither waits nor writes.
func (d *Disks) MountStore(ctx context.Context, acting bool) (all []decide.Change, warning string, err error) {
	if err := d.Machine.Lock(ctx); err != nil {
		return nil, "", err
	}
	defer d.Machine.Unlock()
	if acting {
		if err := d.applyReleases(); err != nil {
			return nil, "", err
		}
	}
	v, err := d.observeForDecision()
	if err != nil {
		return nil, "", err
	}
	cid, warning, err := decide.StoreDisk(v.Surroundings)
	if cid == decide.InspectDisks {
		cid, err = d.pickStore(ctx, v, acting)
	}
	if cid == "" || err != nil {
		return nil, warning, err
	}
	for range 2 {
		if acting {
			all, err = d.mount(ctx, v.known[cid], AtBoot)
		} else {
			var plan decide.Plan
			plan, err = d.plan(ctx, v, v.known[cid], AtBoot)
			all = plan.Changes
		}
		err = mountError(cid, err)
		outranked, ok := errors.AsType[*decide.Outranked](err)
		if !ok {
			break
		}
		if acting {
			d.Machine.Log.WithError(err).WithField("cid", outranked.By).Warn("another disk is the store")
		}
		cid = outranked.By
	}
	return all, "", err
}

// mount waits for a disk, decides about it and makes the changes.
func (d *Disks) mount(ctx context.Context, p settings.PersistentDisk, why Occasion) ([]decide.Change, error) {
	dev, err := d.Resolver.Resolve(ctx, d.hint(p))
	if err != nil {
		return nil, err
	}
	if !d.BindMounted && !dev.Directory {
		// Hold the disk until it is mounted: udev would remove its partitions for a moment.
		release, err := disk.Hold(ctx, dev.Path)
		if err != nil {
			return nil, err
		}
		defer release()
	}
	// A crash may have left the disk mounted where it is inspected.
	if err := mount.Detach(d.Machine.Dirs.DiskLook(), func([]mount.Process) {}); err != nil {
		return nil, err
	}
	v, err := d.observeForDecision()
	if err != nil {
		return nil, err
	}
	at, err := d.place(ctx, v, p, dev, why, true)
	if err != nil {
		return nil, err
	}
	// check before the disk is formatted or unmounted
	if at.plan.Placed.Store && (at.plan.Formats() || at.plan.Leave != "") {
		if err := at.checkChoice(decide.Disk{CID: p.CID, Path: dev.Path, FileSystem: at.o.Found.FileSystem,
			Statement: at.o.Statement}); err != nil {
			return nil, err
		}
	}
	return at.apply(ctx, dev.Path)
}

// place observes a disk and plans to mount it. If acting is set, it announces partitions to the kernel, and replays the
// journals of other disks that could be the store.
func (d *Disks) place(ctx context.Context, v surroundings, p settings.PersistentDisk, dev device.Device, why Occasion,
	acting bool) (at *placing, err error) {
	at = &placing{Disks: d, identified: dev.Identified}
	// A request that was made about another disk lapses.
	if err := d.Machine.DropLapsedRequest(v.Record, p.CID, dev.Path, acting,
		func() (string, error) { return d.fingerprint(dev) }); err != nil {
		return at, err
	}
	if at.o, err = d.observe(ctx, v, p, dev, acting); err != nil {
		return at, err
	}
	at.o.Boot = why == AtBoot
	at.plan, err = decide.MountDisk(at.o)
	if err == nil && at.plan.Placed.Store && why != Migrated {
		at.others = d.candidates(ctx, v, p.CID, acting)
	}
	return at, err
}

// apply makes the changes to the disk at path.
func (p *placing) apply(ctx context.Context, path string) (made []decide.Change, err error) {
	d, plan, cid := p.Disks, p.plan, p.plan.Placed.CID
	if plan.Leave != "" {
		if err := mount.UnmountReporting(ctx, plan.Leave, d.LogBusy(plan.Leave)); err != nil {
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
	} else if err := p.admitMounted(); err != nil {
		return made, err
	}
	found := p.o.Found
	if plan.Formats() {
		found, _ = d.identify(path) // unreadable identifiers keep their recorded values
	}
	found.Generation = p.statement.Generation
	return made, d.record(plan.Placed, found)
}

// record updates the record of a mounted disk: its identity, which protects it from being formatted, and whether it is
// the store. If the record cannot be written but already names this disk as the store, that is only a warning.
func (d *Disks) record(what decide.Placed, found record.Disk) error {
	d.Machine.CrashPoint("record disk")
	told, _ := d.Known.ManagedCID()
	before, err := d.Machine.ReadRecord()
	if err != nil {
		return err
	}
	err = d.Machine.Record.Update(func(r *record.Record) {
		_, wasStore := r.Disks[what.CID]
		switch {
		case !what.Store && !wasStore:
			r.EndRequest(what.CID)
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

// publish writes the CID of the store to managed_disk_settings.json, for other agents.
func (d *Disks) publish(cid, told string) error {
	if told != cid {
		d.Machine.CrashPoint("publish store")
		if err := d.Known.SetManagedCID(cid); err != nil {
			return err
		}
	}
	return d.Machine.Record.Update(func(r *record.Record) { r.Published = true })
}

// cannotBeWritten reports whether the file system is full or read-only.
func cannotBeWritten(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EROFS) || errors.Is(err, unix.EDQUOT) ||
		errors.Is(err, os.ErrPermission)
}
