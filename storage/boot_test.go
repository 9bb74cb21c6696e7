//go:build root || vm || bench || nightly

package storage

import (
	"context"
	"errors"
	"maps"

	"cambium/settings"
)

// records keeps in memory what the store keeps in files.
type records struct {
	disks   map[string]settings.PersistentDisk
	mounted string
}

func (r *records) Disks() map[string]settings.PersistentDisk { return maps.Clone(r.disks) }
func (r *records) PutHint(cid string, h settings.DiskHint) error {
	r.disks[cid] = settings.PersistentDisk{CID: cid, Hint: h}
	return nil
}
func (r *records) RemoveHint(cid string) error    { delete(r.disks, cid); return nil }
func (r *records) ManagedCID() (string, error)    { return r.mounted, nil }
func (r *records) SetManagedCID(cid string) error { r.mounted = cid; return nil }
func (r *records) ClearManagedCID() error         { r.mounted = ""; return nil }

// boot calls MountStore and ignores the warning.
func boot(d Disks) error {
	_, warning, err := d.Persistent.MountStore(context.Background(), true)
	if warning != "" {
		err = errors.Join(err, errors.New(warning))
	}
	return err
}
