// Package persistent keeps the disks that the Director knows by their CIDs: recording their hints, preparing and
// mounting them, growing, unmounting and listing them. It observes, lets package decide decide, and acts. Nothing is
// formatted that was not proven blank or ours; everything else is refused with what was found.
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
	Look(h device.Hint) (device.Device, error)
}

// KnownDisks are the disks that settings and hints name, and which one is on the store.
type KnownDisks interface {
	Disks() map[string]settings.PersistentDisk
	PutHint(cid string, hint settings.DiskHint) error
	RemoveHint(cid string) error
	ManagedCID() (cid string, err error)
	SetManagedCID(cid string) error
	ClearManagedCID() error
}

// Disks are the persistent disks of a machine.
type Disks struct {
	Machine  *machine.Machine
	Resolver Resolver
	Known    KnownDisks
	// Reload reads the settings from their source again; hints of some CPIs come that way.
	Reload func(context.Context) error
	// Foreign says what to do with a disk that carries something which is not ours: "refuse" (or empty) or "format".
	Foreign func() string
	// Associated are the disks that jobs know by names of their own: none of them is the store.
	Associated func() []string
	// Blank says what a blank disk reads as: "zeros" (or empty), or also "noise".
	Blank func() string

	// BindMounted disks are directories; containers get their disks so.
	BindMounted bool
	// Preformatted disks carry their file system without a table, and are neither partitioned nor formatted.
	Preformatted bool
	// Label is the kind of a new partition table, unless the disk's settings name a partitioner.
	Label layout.Label

	// noted are the mounts of disks as boot, mount_disk and unmount_disk saw them last; nil before any of them has
	// looked. It is changed with the lock, and read without.
	noted atomic.Pointer[[]decide.Noted]
}

// Working returns the disk whose file system is being checked or mounted, a sentence that describes the work, and its
// start; empty if there is none.
func (d *Disks) Working() (cid, what string, since time.Time) { return d.Machine.Working() }

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

// Remove ends the attachment of a disk. Its identity stays on record. One that is not known is fine.
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
	// A record that is damaged may be of this disk; without any other it is of none that remains.
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

// part is the device that carries the file system of the disk at path.
func (d *Disks) part(path string) string { return decide.PersistentPart(path, d.Preformatted) }

// sameDir compares what two paths lead to.
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
