package persistent

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"cambium/platform/mount"
	"cambium/settings"
	"cambium/storage/decide"
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

// CompleteSwitch puts a new disk that is complete and on record on the store; it may be there already.
func (d *Disks) CompleteSwitch(ctx context.Context, to string) error {
	_, there, err := mount.At(d.Machine.Dirs.Store())
	if err != nil {
		return err
	}
	if !there {
		d.Machine.CrashPoint("move mount")
		if err := mount.Show(d.Machine.Dirs.StoreMigrationTarget(), d.Machine.Dirs.Store()); err != nil {
			return err
		}
	}
	return d.EndMigration(ctx, to)
}

// EndMigration is for when the new disk is on the store; it may still be on the target as well. A process that
// uses it there cannot hold up the end: it is the same file system.
func (d *Disks) EndMigration(ctx context.Context, to string) error {
	target := d.Machine.Dirs.StoreMigrationTarget()
	if err := mount.Detach(target, d.Busy(target)); err != nil {
		return err
	}
	d.Machine.CrashPoint("end migration")
	if err := d.recordStore(to); err != nil {
		return err
	}
	if err := d.Machine.Intents.Set(intent.Migrated, intent.Intent{Table: to}); err != nil {
		return err
	}
	if err := d.Machine.Intents.Clear(intent.Migration); err != nil {
		return err
	}
	d.Machine.Log.WithField("cid", to).Info("disk migration done")
	d.growStore(ctx) // it may have become larger meanwhile
	return nil
}

// resume puts a disk that is mounted already where its record says: the store is
// made writable when a migration was interrupted while it was read-only, and a new disk that
// had only to be moved is moved.
func (d *Disks) resume(ctx context.Context, p settings.PersistentDisk, where string) error {
	all, err := d.Machine.Intents.All()
	if err != nil {
		return err
	}
	store, occupied, err := mount.At(d.Machine.Dirs.Store())
	if err != nil {
		return err
	}
	current, _, err := mount.At(where)
	if err != nil {
		return err
	}
	switch decide.Resume(decide.Interrupted{CID: p.CID, Recorded: d.recorded(), Open: all[intent.Migration],
		OnStore: where == d.Machine.Dirs.Store(), StoreIsFree: !occupied,
		StoreIsSame: occupied && store.Number == current.Number && store.Root == current.Root}) {
	case decide.CompleteSwitch:
		return d.CompleteSwitch(ctx, p.CID)
	case decide.MakeWritable:
		d.Machine.CrashPoint("store writable again")
		return d.MakeWritable(ctx)
	}
	return nil
}
