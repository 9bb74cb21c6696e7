package bootstrap

import (
	"context"

	"cambium/internal/status"
	"cambium/settings"
	"cambium/storage"
)

// ServedDisks wraps the disk operations of the Director's requests. They can change whether jobs may start, and what
// the status shows.
type ServedDisks struct {
	*storage.Persistent
	*storage.Migration
	Machine *Machine
}

// Mount mounts a disk and then checks whether jobs may start.
func (d ServedDisks) Mount(ctx context.Context, cid string) error {
	err := d.Persistent.Mount(ctx, cid)
	if err == nil {
		d.changed(ctx)
	}
	return err
}

// Unmount unmounts a disk, and records in the status that this was requested.
func (d ServedDisks) Unmount(ctx context.Context, cid string) (string, error) {
	message, err := d.Persistent.Unmount(ctx, cid)
	if err == nil {
		d.showUnmounted(cid)
	}
	return message, err
}

// Remove removes a disk and then checks whether jobs may start, because they are not withheld without an attached disk.
func (d ServedDisks) Remove(ctx context.Context, cid string) error {
	err := d.Persistent.Remove(ctx, cid)
	if err == nil {
		d.changed(ctx)
	}
	return err
}

// Associate links disks to the names under which jobs know them.
func (d ServedDisks) Associate(ctx context.Context, associations []settings.DiskAssociation) error {
	_, err := d.Persistent.Associate(ctx, associations, true)
	return err
}

func (d ServedDisks) changed(ctx context.Context) {
	d.showUnmounted("")
	d.Machine.RecheckStore(ctx)
}

func (d ServedDisks) showUnmounted(cid string) {
	if err := d.Machine.Status.Update(func(doc *status.Document) { doc.Unmounted = cid }); err != nil {
		d.Machine.Log.WithError(err).Debug("cannot write the status")
	}
}
