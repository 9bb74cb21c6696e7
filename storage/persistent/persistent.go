// Package persistent manages the disks that the Director knows by CID: it records their hints, and prepares, mounts,
// grows, unmounts and lists them. It observes, lets package decide make the decisions, and makes the changes. It
// formats a disk only if that is proven to be blank, or to be an unfinished one of ours, and refuses disks with other
// content.
package persistent

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"cambium/platform/device"
	"cambium/platform/disk/layout"
	"cambium/settings"
	"cambium/storage/decide"
	"cambium/storage/internal/machine"
	"cambium/storage/record"
)

// Resolver finds devices.
type Resolver interface {
	Resolve(ctx context.Context, h device.Hint) (device.Device, error)
	ResolveOnce(h device.Hint) (device.Device, error)
}

// KnownDisks gives access to the disks in settings and hints, and to the CID of the store.
type KnownDisks interface {
	Disks() map[string]settings.PersistentDisk
	PutHint(cid string, hint settings.DiskHint) error
	RemoveHint(cid string) error
	ManagedCID() (cid string, err error)
	SetManagedCID(cid string) error
	ClearManagedCID() error
}

// Disks manages the persistent disks of a machine.
type Disks struct {
	Machine  *machine.Machine
	Resolver Resolver
	Known    KnownDisks
	// Reload fetches the settings again, since some CPIs send hints that way.
	Reload func(context.Context) error
	// Foreign returns the policy for a disk with content that is not ours: "refuse" (or "") or "format".
	Foreign func() string
	// Associated returns the CIDs of disks that jobs find by names of their own. They are never the store.
	Associated func() []string
	// Blank returns the content of a blank disk when read: "zeros" (or ""), or "noise" to accept random bytes, too.
	Blank func() string

	// BindMounted is set if disks are directories, as in containers.
	BindMounted bool
	// Preformatted is set if disks have a file system without a partition table. They are neither partitioned nor
	// formatted.
	Preformatted bool
	// Label is the type of new partition tables, unless the disk's settings name a partitioner.
	Label layout.Label

	// noted holds the mounts of disks as last seen by boot, mount_disk and unmount_disk, or nil before the first of
	// these. Writers hold the lock, readers do not.
	noted atomic.Pointer[[]decide.Noted]
}

// CurrentWork returns the disk whose file system is being checked or mounted, a sentence that describes the work, and
// its start. All are zero if there is no such work.
func (d *Disks) CurrentWork() (cid, what string, since time.Time) { return d.Machine.CurrentWork() }

// Add records the hint of a disk that the CPI has attached.
func (d *Disks) Add(ctx context.Context, cid string, hint settings.DiskHint) error {
	if err := d.Reload(ctx); err != nil {
		return err
	}
	if err := d.Machine.Lock(ctx); err != nil {
		return err
	}
	defer d.Machine.Unlock()
	return d.Known.PutHint(cid, hint)
}

// Remove records that a disk will be detached. Its identity stays on record. An unknown CID is not an error.
func (d *Disks) Remove(ctx context.Context, cid string) error {
	if err := d.Reload(ctx); err != nil {
		return err
	}
	if err := d.Machine.Lock(ctx); err != nil {
		return err
	}
	defer d.Machine.Unlock()
	known := d.Known.Disks()
	delete(known, cid)
	d.forget(func(n decide.Noted) bool { return n.Owner == cid })
	// A damaged record may name this disk. Without other disks, it cannot name one that remains.
	if on, err := d.Known.ManagedCID(); on == cid || err != nil && len(known) == 0 {
		if err := d.Known.ClearManagedCID(); err != nil {
			return err
		}
	}
	if err := d.Machine.Record.Update(func(r *record.Record) { r.Remove(cid) }); err != nil {
		return err
	}
	return d.Known.RemoveHint(cid)
}

func (d *Disks) findKnown(cid string) (settings.PersistentDisk, error) {
	p, ok := d.Known.Disks()[cid]
	if !ok {
		return p, fmt.Errorf("persistent disk %q is not known", cid)
	}
	return p, nil
}

// part returns the path of the device with the file system of the disk at path.
func (d *Disks) part(path string) string { return decide.PersistentPart(path, d.Preformatted) }

// sameDir reports whether two paths lead to the same directory.
func sameDir(a, b string) (bool, error) {
	ia, err := os.Stat(a)
	if err != nil {
		return false, err
	}
	ib, err := os.Stat(b)
	if err != nil {
		return false, err
	}
	return os.SameFile(ia, ib), nil
}
