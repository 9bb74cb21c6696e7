package bootstrap

import (
	"context"

	"cambium/internal/status"
	"cambium/settings"
	"cambium/storage"
)

// ServedDisks are the disks as the Director's calls use them: what these do to the store decides whether jobs may be
// started, and is shown in the status.
type ServedDisks struct {
	*storage.Persistent
	*storage.Migration
	Machine *Machine
}

// Mount rechecks afterwards whether jobs may be started.
func (d ServedDisks) Mount(ctx context.Context, cid string) error {
	err := d.Persistent.Mount(ctx, cid)
	if err == nil {
		d.changed(ctx)
	}
	return err
}

// Unmount shows in the status that the disk is off on request.
func (d ServedDisks) Unmount(ctx context.Context, cid string) (string, error) {
	message, err := d.Persistent.Unmount(ctx, cid)
	if err == nil {
		d.showUnmounted(cid)
	}
	return message, err
}

// Remove rechecks, too: without an attached disk jobs are no longer withheld.
func (d ServedDisks) Remove(ctx context.Context, cid string) error {
	err := d.Persistent.Remove(ctx, cid)
	if err == nil {
		d.changed(ctx)
	}
	return err
}

// Associate links disks under the names that jobs know them by.
func (d ServedDisks) Associate(ctx context.Context, associations []settings.DiskAssociation) error {
	_, err := d.Persistent.Associate(ctx, associations)
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
