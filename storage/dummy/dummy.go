// Package dummy stands in for package storage where there is no machine: with -P dummy, as the
// test suites of a Director run the agent. Disks exist only as records in files below the base
// directory, whose names and shapes those suites read.
package dummy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"cambium/internal/atomicfile"
	"cambium/internal/vcap"
	"cambium/settings"
)

// Records are the disks that settings and hints name.
type Records interface {
	Disks() map[string]settings.PersistentDisk
	PutHint(cid string, hint settings.DiskHint) error
	RemoveHint(cid string) error
	MountedCID() string
	SetMountedCID(cid string) error
	ClearMountedCID() error
}

// Disks has the methods of storage.Disks that actions use.
type Disks struct {
	Dirs    vcap.Dirs
	Records Records
	Reload  func(context.Context) error

	mu sync.Mutex // serialises changes of the files
}

type mounted struct {
	MountDir     string
	MountOptions []string
	DiskCid      string
}

type formatted struct{ DiskCid string }

type migrated struct{ FromDiskCid, ToDiskCid string }

func (d *Disks) file(name string) string { return filepath.Join(d.Dirs.Bosh(), name) }

func read[T any](path string) (list []T, err error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return []T{}, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return list, nil
}

func write[T any](path string, list []T) error {
	data, err := json.Marshal(list)
	if err != nil {
		return err
	}
	return atomicfile.Write(path, data, 0o600)
}

// Add records the hint of an attached disk.
func (d *Disks) Add(ctx context.Context, cid string, hint settings.DiskHint) error {
	if err := d.Reload(ctx); err != nil {
		return err
	}
	return d.Records.PutHint(cid, hint)
}

// Remove forgets the hint of a disk.
func (d *Disks) Remove(ctx context.Context, cid string) error {
	if err := d.Reload(ctx); err != nil {
		return err
	}
	return d.Records.RemoveHint(cid)
}

// Mount records a disk as mounted on the store, or on the migration target when another is.
func (d *Disks) Mount(ctx context.Context, cid string) error {
	if err := d.Reload(ctx); err != nil {
		return err
	}
	disk, known := d.Records.Disks()[cid]
	if !known {
		return fmt.Errorf("persistent disk %q is not known", cid)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	mounts, err := read[mounted](d.file("mounts.json"))
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
	disks, err := read[formatted](d.file("formatted_disks.json"))
	if err != nil {
		return err
	}
	if !slices.Contains(disks, formatted{cid}) {
		if err := write(d.file("formatted_disks.json"), append(disks, formatted{cid})); err != nil {
			return err
		}
	}
	if err := write(d.file("mounts.json"), append(mounts, mounted{where, disk.MountOptions, cid})); err != nil {
		return err
	}
	if where == d.Dirs.Store() {
		return d.Records.SetMountedCID(cid)
	}
	return nil
}

// Unmount forgets a mount.
func (d *Disks) Unmount(_ context.Context, cid string) (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	mounts, err := read[mounted](d.file("mounts.json"))
	if err != nil {
		return "", err
	}
	left := slices.DeleteFunc(slices.Clone(mounts), func(m mounted) bool { return m.DiskCid == cid })
	if len(left) == len(mounts) {
		return fmt.Sprintf("Partition of %s is not mounted", cid), nil
	}
	if err := write(d.file("mounts.json"), left); err != nil {
		return "", err
	}
	return fmt.Sprintf("Unmounted partition of %s", cid), nil
}

// List returns the disks recorded as mounted, the one on the store first.
func (d *Disks) List(ctx context.Context) ([]string, error) {
	if err := d.Reload(ctx); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	mounts, err := read[mounted](d.file("mounts.json"))
	if err != nil {
		return nil, err
	}
	cids := []string{}
	for _, m := range mounts {
		if m.MountDir == d.Dirs.Store() {
			cids = append([]string{m.DiskCid}, cids...)
		} else {
			cids = append(cids, m.DiskCid)
		}
	}
	return cids, nil
}

// Migrate records that the disk on the migration target has taken over the store.
func (d *Disks) Migrate(context.Context, string, string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	mounts, err := read[mounted](d.file("mounts.json"))
	if err != nil {
		return err
	}
	from := slices.IndexFunc(mounts, func(m mounted) bool { return m.MountDir == d.Dirs.Store() })
	to := slices.IndexFunc(mounts, func(m mounted) bool { return m.MountDir == d.Dirs.StoreMigrationTarget() })
	if from < 0 || to < 0 {
		return nil // repeated after success
	}
	done, err := read[migrated](d.file("disk_migrations.json"))
	if err != nil {
		return err
	}
	if err := write(d.file("disk_migrations.json"), append(done, migrated{mounts[from].DiskCid, mounts[to].DiskCid})); err != nil {
		return err
	}
	mounts[to].MountDir = d.Dirs.Store()
	cid := mounts[to].DiskCid
	if err := write(d.file("mounts.json"), slices.Delete(mounts, from, from+1)); err != nil {
		return err
	}
	return d.Records.SetMountedCID(cid)
}

// AddDynamic records nothing: such a disk is only a link to a device, and there is none.
func (d *Disks) AddDynamic(ctx context.Context, _ string, _ settings.DiskHint) error {
	return d.Reload(ctx)
}

// RemoveDynamic has nothing to remove.
func (d *Disks) RemoveDynamic(context.Context, string) error { return nil }

// Associate records the names given to disks.
func (d *Disks) Associate(_ context.Context, associations []settings.DiskAssociation) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	names := []string{}
	for _, a := range associations {
		names = append(names, a.Name)
	}
	if len(names) == 0 {
		return nil
	}
	return write(d.file("disk_associations.json"), names)
}
