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

// These steps of a migration are here because mount_disk and boot complete them after an interruption.

// SetReadOnly makes the store read-only or writable. For a bind-mounted store it changes only the mount, since the file
// system contains other data.
func (d *Disks) SetReadOnly(ctx context.Context, on bool) error {
	store := d.Machine.Dirs.Store()
	if !d.BindMounted {
		return mount.SetReadOnly(ctx, store, on, d.LogBusy(store))
	}
	err := mount.SetBindReadOnly(ctx, store, on, d.LogBusy(store))
	if errors.Is(err, unix.ENOSYS) {
		d.Machine.Log.WithField("mount", store).
			Warn("this kernel cannot make a single mount read-only; jobs can change the store while it is copied")
		return nil
	}
	return err
}

// MakeWritable makes the store writable after a migration, even if ctx has ended.
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
		return nil // doing it again later is harmless
	}
	return err
}

// RenewTarget unmounts the disk on the migration target and mounts it again, once nothing uses it. After that, all data
// is on the disk, the disk is known to mount, and no process has a file open there. It does nothing for a bind-mounted
// directory.
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
	if err := mount.UnmountReporting(ctx, target, d.LogBusy(target)); err != nil {
		return err
	}
	if err := d.awaitReleased(ctx, e); err != nil {
		return err
	}
	return d.Remount(ctx, cid, Asked)
}

// Commit records the disk on the migration target, a complete copy, as the store, and detaches it. It does not wait for
// processes that still use it.
func (d *Disks) Commit(to string) error {
	target := d.Machine.Dirs.StoreMigrationTarget()
	e, _, err := mount.At(target)
	if err != nil {
		return err
	}
	var found record.Disk // a directory has no identity
	if !d.BindMounted {
		path, _, err := d.diskOf(e)
		if err != nil {
			return err
		}
		found, _ = d.identify(path) // unreadable identifiers keep their recorded values
	}
	if err := mount.Detach(target, d.LogBusy(target)); err != nil {
		return err
	}
	d.Machine.CrashPoint("record new disk")
	return d.record(decide.Placed{CID: to, Store: true}, found)
}

// ObserveMigration observes the facts for the decision about a migration.
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
			return o, fmt.Errorf("%s has a file system that is not a known persistent disk: unmount it (umount %s)",
				dir.path, dir.path)
		}
	}
	return decide.Migration{Store: v.Store, Target: v.MigrationTarget, From: v.OnStoreIs, To: v.onTarget,
		Recorded: v.storeDisk(), Known: v.Known}, nil
}
