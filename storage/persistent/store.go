package persistent

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"cambium/platform/mount"
	"cambium/storage/internal/intent"
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
		d.Machine.Log.WithField("mount", store).Warn("this kernel cannot make a single mount read-only; the store can be changed while it is copied")
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
	return d.SetReadOnly(context.WithoutCancel(ctx), false)
}

// RenewTarget unmounts the disk on the migration target and mounts it again, when nothing holds it any more. What was
// written is on the disk then, that it can be mounted is proven, and nobody has anything open there. Of a directory
// nothing of that can be had.
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
	return d.PutBack(ctx, cid)
}

// Commit records the disk on the migration target, which is complete, as the store. It is mounted nowhere then. A
// process that still uses it cannot hold up the end.
func (d *Disks) Commit(to string) error {
	target := d.Machine.Dirs.StoreMigrationTarget()
	if !d.BindMounted {
		e, _, err := mount.At(target)
		if err != nil {
			return err
		}
		path, _, err := d.diskOf(e)
		if err != nil {
			return err
		}
		if err := d.recordIdentity(to, path, true); err != nil {
			return err
		}
	}
	if err := mount.Detach(target, d.Busy(target)); err != nil {
		return err
	}
	d.Machine.CrashPoint("record new disk")
	return d.Records.SetMountedCID(to)
}

// EndMigration mounts the disk that is on record as the store; it may be there already.
func (d *Disks) EndMigration(ctx context.Context, to string) error {
	if err := d.PutBack(ctx, to); err != nil {
		return err
	}
	d.Machine.CrashPoint("end migration")
	if err := d.Machine.Intents.Set(intent.Migrated, intent.Intent{Table: to}); err != nil {
		return err
	}
	if err := d.Machine.Intents.Clear(intent.Migration); err != nil {
		return err
	}
	d.Machine.Log.WithField("cid", to).Info("disk migration done")
	return nil
}

// resume makes the store writable when a migration was interrupted while it was read-only.
func (d *Disks) resume(ctx context.Context, where string) error {
	all, err := d.Machine.Intents.All()
	if err != nil || where != d.Machine.Dirs.Store() || all[intent.Migration].Table == "" {
		return err
	}
	d.Machine.CrashPoint("store writable again")
	return d.MakeWritable(ctx)
}
