// Package dummy replaces package storage where there is no machine: with -P dummy, as the test suites of a Director run
// the agent. Disks exist only as records in files below the base directory. The suites read these files, so their names
// and formats are fixed.
package dummy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"

	"cambium/internal/atomicfile"
	"cambium/internal/vcap"
	"cambium/settings"
)

// KnownDisks gives access to the disks in settings and hints, and to the CID of the store.
type KnownDisks interface {
	Disks() map[string]settings.PersistentDisk
	PutHint(cid string, hint settings.DiskHint) error
	RemoveHint(cid string) error
	ManagedCID() (cid string, err error)
	SetManagedCID(cid string) error
	ClearManagedCID() error
}

// Disks implements the methods of storage.Disks that actions call.
type Disks struct {
	Dirs   vcap.Dirs
	Known  KnownDisks
	Reload func(context.Context) error

	mu sync.Mutex // serializes changes to the files
}

type mounted struct {
	MountDir     string
	MountOptions []string
	DiskCid      string
}

type formatted struct{ DiskCid string }

type migrated struct{ FromDiskCid, ToDiskCid string }

// read decodes a list from a file, if it exists.
func read(path string, list any) error {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, list); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func write(path string, list any) error {
	data, err := json.Marshal(list)
	if err != nil {
		return err
	}
	return atomicfile.Write(path, data, 0o600)
}

func (d *Disks) mounts() ([]mounted, error) {
	list := []mounted{}
	err := read(d.Dirs.DummyMounts(), &list)
	return list, err
}

// Add records the hint of an attached disk.
func (d *Disks) Add(ctx context.Context, cid string, hint settings.DiskHint) error {
	if err := d.Reload(ctx); err != nil {
		return err
	}
	return d.Known.PutHint(cid, hint)
}

// Remove removes the hint of a disk.
func (d *Disks) Remove(ctx context.Context, cid string) error {
	if err := d.Reload(ctx); err != nil {
		return err
	}
	return d.Known.RemoveHint(cid)
}

// Mount records a disk as mounted on the store or, if another one is there, on the migration target.
func (d *Disks) Mount(ctx context.Context, cid string) error {
	if err := d.Reload(ctx); err != nil {
		return err
	}
	return d.mount(cid)
}

func (d *Disks) mount(cid string) error {
	disk, err := d.findKnown(cid)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	mounts, err := d.mounts()
	if err != nil {
		return err
	}
	where := d.Dirs.Store()
	for _, m := range mounts {
		if m.DiskCid == cid {
			return nil
		}
		if m.MountDir == where {
			where = d.Dirs.StoreMigrationTarget()
		}
	}
	disks := []formatted{}
	if err := read(d.Dirs.DummyFormatted(), &disks); err != nil {
		return err
	}
	if !slices.Contains(disks, formatted{cid}) {
		if err := write(d.Dirs.DummyFormatted(), append(disks, formatted{cid})); err != nil {
			return err
		}
	}
	if err := write(d.Dirs.DummyMounts(), append(mounts, mounted{where, disk.MountOptions, cid})); err != nil {
		return err
	}
	if where == d.Dirs.Store() {
		return d.Known.SetManagedCID(cid)
	}
	return nil
}

func (d *Disks) findKnown(cid string) (settings.PersistentDisk, error) {
	disk, known := d.Known.Disks()[cid]
	if !known {
		return disk, fmt.Errorf("persistent disk %q is not known", cid)
	}
	return disk, nil
}

// Unmount removes the record of a mount.
func (d *Disks) Unmount(_ context.Context, cid string) (string, error) {
	if _, err := d.findKnown(cid); err != nil {
		return "", err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	mounts, err := d.mounts()
	if err != nil {
		return "", err
	}
	left := []mounted{}
	for _, m := range mounts {
		if m.DiskCid != cid {
			left = append(left, m)
		}
	}
	if len(left) == len(mounts) {
		return fmt.Sprintf("Partition of %s is not mounted", cid), nil
	}
	if err := write(d.Dirs.DummyMounts(), left); err != nil {
		return "", err
	}
	return fmt.Sprintf("Unmounted partition of %s", cid), nil
}

// List returns the CIDs of the disks recorded as mounted, the one on the store first. Disks no longer in the settings
// are left out: the suite's tests of cloud check detach disks without telling the Director.
func (d *Disks) List(ctx context.Context) ([]string, error) {
	if err := d.Reload(ctx); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	mounts, err := d.mounts()
	if err != nil {
		return nil, err
	}
	cids := []string{}
	for _, m := range mounts {
		if _, err := d.findKnown(m.DiskCid); err != nil {
			continue
		}
		if m.MountDir == d.Dirs.Store() {
			cids = append([]string{m.DiskCid}, cids...)
		} else {
			cids = append(cids, m.DiskCid)
		}
	}
	return cids, nil
}

// MountStore records the last disk as mounted again, as a boot does, if it was formatted.
func (d *Disks) MountStore() error {
	cid, err := d.Known.ManagedCID()
	if err != nil || cid == "" {
		return err
	}
	if _, err := d.findKnown(cid); err != nil {
		return nil // detached meanwhile
	}
	disks := []formatted{}
	if err := read(d.Dirs.DummyFormatted(), &disks); err != nil {
		return err
	}
	if !slices.Contains(disks, formatted{cid}) {
		return nil
	}
	return d.mount(cid)
}

// Migrate records that the disk on the migration target has become the store.
func (d *Disks) Migrate(context.Context, string, string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	mounts, err := d.mounts()
	if err != nil {
		return err
	}
	from, to := -1, -1
	for i, m := range mounts {
		switch m.MountDir {
		case d.Dirs.Store():
			from = i
		case d.Dirs.StoreMigrationTarget():
			to = i
		}
	}
	if from < 0 || to < 0 {
		return nil // repeated after success
	}
	done := []migrated{}
	if err := read(d.Dirs.DummyMigrations(), &done); err != nil {
		return err
	}
	done = append(done, migrated{mounts[from].DiskCid, mounts[to].DiskCid})
	if err := write(d.Dirs.DummyMigrations(), done); err != nil {
		return err
	}
	mounts[to].MountDir = d.Dirs.Store()
	cid := mounts[to].DiskCid
	if err := write(d.Dirs.DummyMounts(), append(mounts[:from], mounts[from+1:]...)); err != nil {
		return err
	}
	return d.Known.SetManagedCID(cid)
}

// AddDynamic only reloads the settings: a dynamic disk is a link to a device, and there is none.
func (d *Disks) AddDynamic(ctx context.Context, _ string, _ settings.DiskHint) error {
	return d.Reload(ctx)
}

// RemoveDynamic does nothing.
func (d *Disks) RemoveDynamic(context.Context, string) error { return nil }

// Associate records the names of disks.
func (d *Disks) Associate(_ context.Context, associations []settings.DiskAssociation) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	names := []string{}
	for _, a := range associations {
		if _, err := d.findKnown(a.CID); err != nil {
			return fmt.Errorf("associate disk as %s: %w", a.Name, err)
		}
		names = append(names, a.Name)
	}
	if len(names) == 0 {
		return nil
	}
	return write(d.Dirs.DummyAssociations(), names)
}
