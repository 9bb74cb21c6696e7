package persistent

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"cambium/platform/mount"
	"cambium/storage/decide"
	"cambium/storage/record"
)

// What the end of a migration does to the store is here, because mount_disk and boot complete it after an interruption.

// SetReadOnly keeps the store from being changed, or allows it again. Of a bind-mounted store only the
// mount can be made read-only: the file system holds other things as well.
func (d *Disks) SetReadOnly(ctx context.Context, on bool) error {
	store := d.Machine.Dirs.Store()
	if !d.BindMounted {
		return mount.SetReadOnly(ctx, store, on, d.Busy(store))
	}
	err := mount.SetBindReadOnly(ctx, store, on, d.Busy(store))
	if errors.Is(err, unix.ENOSYS) {
		d.Machine.Log.WithField("mount", store).Warn("this kernel cannot make a single mount read-only; jobs can change the store while it is copied")
		return nil
	}
	return err
}

// MakeWritable undoes the read-only phase of a migration, also when its context has ended.
func (d *Disks) MakeWritable(ctx context.Context) error {
	_, there, err := mount.At(d.Machine.Dirs.Store())
	if err != nil || !there {
		return err
	}
	if err := d.SetReadOnly(context.WithoutCancel(ctx), false); err != nil {
		return err
	}
	err = d.Machine.Record.Update(func(r *record.Record) { r.ReadOnly = false })
	if cannotBeWritten(err) {
		return nil // to make it writable once more does no harm
	}
	return err
}

// RenewTarget unmounts the disk on the migration target and mounts it again, when nothing holds it any more. After
// that, all written data is on the disk, the disk is known to mount, and nobody has anything open there. None of this
// applies to a bind-mounted directory.
func (d *Disks) RenewTarget(ctx context.Context, cid string) error {
	if d.BindMounted {
		return nil
	}
	target := d.Machine.Dirs.StoreMigrationTarget()
	e, there, err := mount.At(target)
	if err != nil || !there {
		return errors.Join(err, fmt.Errorf("nothing is mounted on %s", target))
	}
	d.Machine.CrashPoint("unmount migration target")
	if err := mount.UnmountReporting(ctx, target, d.Busy(target)); err != nil {
		return err
	}
	if err := d.awaitReleased(ctx, e); err != nil {
		return err
	}
	return d.Remount(ctx, cid, Asked)
}

// Commit records the disk on the migration target, which is complete, as the store. It is mounted nowhere then. A
// process that still uses it cannot hold up the end.
func (d *Disks) Commit(to string) error {
	target := d.Machine.Dirs.StoreMigrationTarget()
	e, _, err := mount.At(target)
	if err != nil {
		return err
	}
	path := e.Source
	if !d.BindMounted {
		if path, _, err = d.diskOf(e); err != nil {
			return err
		}
	}
	if err := mount.Detach(target, d.Busy(target)); err != nil {
		return err
	}
	d.Machine.CrashPoint("record new disk")
	return d.record(decide.Placed{CID: to, Store: true}, path, 0)
}

// ObserveMigration observes what a migration is decided by.
func (d *Disks) ObserveMigration() (o decide.Migration, err error) {
	v, err := d.observeForDecision()
	if err == nil {
		err = v.Unreadable
	}
	if err != nil {
		return o, err
	}
	for _, dir := range []struct {
		path, cid string
		taken     bool
	}{{v.Store, v.OnStore, v.StoreTaken}, {v.MigrationTarget, v.OnTarget, v.TargetTaken}} {
		if dir.taken && dir.cid == "" {
			return o, fmt.Errorf("%s has a file system that is not a known persistent disk: unmount it (umount %s)", dir.path, dir.path)
		}
	}
	return decide.Migration{Store: v.Store, Target: v.MigrationTarget, From: v.OnStoreIs, To: v.onTarget,
		Recorded: v.storeDisk(), Known: v.Known}, nil
}
