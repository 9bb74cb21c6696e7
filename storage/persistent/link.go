package persistent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"cambium/internal/atomicfile"
	"cambium/platform/device"
	"cambium/settings"
	"cambium/storage/decide"
	"cambium/storage/internal/machine"
)

// AddDynamic links an attached disk for a job that manages it by itself. It neither partitions nor mounts the disk.
func (d *Disks) AddDynamic(ctx context.Context, cid string, hint settings.DiskHint) error {
	if err := d.Reload(ctx); err != nil {
		return err
	}
	if err := d.Machine.Lock(ctx); err != nil {
		return err
	}
	defer d.Machine.Unlock()
	link, err := linkIn(d.Machine.Dirs.DynamicDisks(), cid)
	if err != nil {
		return fmt.Errorf("add dynamic disk: %w", err)
	}
	dev, err := d.Resolver.Resolve(ctx, machine.HintOf(cid, hint))
	if err != nil {
		return fmt.Errorf("add dynamic disk: %w", err)
	}
	if err := machine.EnsureDir(d.Machine.Dirs.DynamicDisks(), 0o700); err != nil {
		return fmt.Errorf("add dynamic disk: %w", err)
	}
	return atomicfile.Symlink(dev.Path, link)
}

// RemoveDynamic removes that link, if any.
func (d *Disks) RemoveDynamic(ctx context.Context, cid string) error {
	if err := d.Machine.Lock(ctx); err != nil {
		return err
	}
	defer d.Machine.Unlock()
	link, err := linkIn(d.Machine.Dirs.DynamicDisks(), cid)
	if err != nil {
		return fmt.Errorf("remove dynamic disk: %w", err)
	}
	return atomicfile.Remove(link)
}

// CheckKnown returns an error if an associated disk is not known, or if too many disks are attached. A known disk that
// was detached without remove_persistent_disk does not count.
func (d *Disks) CheckKnown(associations []settings.DiskAssociation) error {
	known, devices := map[string]bool{}, map[string]bool{}
	for cid, p := range d.Known.Disks() {
		known[cid] = true
		switch dev, err := d.Resolver.ResolveOnce(d.hint(p)); {
		case err == nil:
			devices[dev.Path] = true // hints of two disks can lead to the same device
		case !machine.Missing(err):
			devices["disk "+cid] = true
		}
	}
	var named []decide.Association
	for _, a := range associations {
		named = append(named, decide.Association{Name: a.Name, CID: a.CID})
	}
	return decide.CheckKnown(known, len(devices), named)
}

// Associate links persistent disks under the names by which jobs find them.
func (d *Disks) Associate(ctx context.Context,
	associations []settings.DiskAssociation) (made []decide.Change, err error) {
	if err := d.Machine.Lock(ctx); err != nil {
		return nil, err
	}
	defer d.Machine.Unlock()
	for _, a := range associations {
		changes, err := d.planLink(a, func(h device.Hint) (device.Device, error) { return d.Resolver.Resolve(ctx, h) })
		if err != nil {
			return made, err
		}
		for _, c := range changes {
			if err := machine.EnsureDir(d.Machine.Dirs.DiskAssociations(), 0o755); err != nil {
				return made, fmt.Errorf("associate disk as %s: %w", a.Name, err)
			}
			if err := atomicfile.Symlink(c.Device, c.Target); err != nil {
				return made, err
			}
			made = append(made, c)
		}
	}
	return made, nil
}

// PlanAssociate returns the changes that Associate would make. It does not wait or write.
func (d *Disks) PlanAssociate(ctx context.Context, associations []settings.DiskAssociation) (planned []decide.Change,
	err error) {
	if err := d.Machine.Lock(ctx); err != nil {
		return nil, err
	}
	defer d.Machine.Unlock()
	for _, a := range associations {
		changes, err := d.planLink(a, d.Resolver.ResolveOnce)
		if err != nil {
			return planned, err
		}
		planned = append(planned, changes...)
	}
	return planned, nil
}

// planLink returns the change that links a disk, if any is needed.
func (d *Disks) planLink(a settings.DiskAssociation,
	find func(device.Hint) (device.Device, error)) ([]decide.Change, error) {
	link, err := linkIn(d.Machine.Dirs.DiskAssociations(), a.Name)
	if err != nil {
		return nil, fmt.Errorf("associate disk %s: %w", a.CID, err)
	}
	p, err := d.findKnown(a.CID)
	if err != nil {
		return nil, fmt.Errorf("associate disk as %s: %w", a.Name, err)
	}
	dev, err := find(d.hint(p))
	if err != nil {
		return nil, fmt.Errorf("associate disk as %s: %w", a.Name, err)
	}
	if have, _ := os.Readlink(link); have == dev.Path {
		return nil, nil
	}
	return []decide.Change{
		{Op: decide.Link, Device: dev.Path, Proof: "persistent disk " + a.CID, What: "link as " + link, Target: link},
	}, nil
}

// linkIn joins a directory and a name from outside, which must be a plain file name.
func linkIn(dir, name string) (string, error) {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return "", fmt.Errorf("%q is not a valid link name", name)
	}
	return filepath.Join(dir, name), nil
}
