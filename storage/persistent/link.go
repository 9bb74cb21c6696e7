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

// Associate links persistent disks under the names by which jobs find them. If acting is false, it returns the changes
// that it would make, and neither waits nor writes.
func (d *Disks) Associate(ctx context.Context, associations []settings.DiskAssociation,
	acting bool) (all []decide.Change, err error) {
	if err := d.Machine.Lock(ctx); err != nil {
		return nil, err
	}
	defer d.Machine.Unlock()
	for _, a := range associations {
		changes, err := d.associate(ctx, a, acting)
		if err != nil {
			return all, err
		}
		all = append(all, changes...)
	}
	return all, nil
}

// associate links a disk, if needed.
func (d *Disks) associate(ctx context.Context, a settings.DiskAssociation, acting bool) ([]decide.Change, error) {
	link, err := linkIn(d.Machine.Dirs.DiskAssociations(), a.Name)
	if err != nil {
		return nil, fmt.Errorf("associate disk %s: %w", a.CID, err)
	}
	p, err := d.findKnown(a.CID)
	var dev device.Device
	switch {
	case err != nil:
	case acting:
		dev, err = d.Resolver.Resolve(ctx, d.hint(p))
	default:
		dev, err = d.Resolver.ResolveOnce(d.hint(p))
	}
	if err != nil {
		return nil, fmt.Errorf("associate disk as %s: %w", a.Name, err)
	}
	if have, _ := os.Readlink(link); have == dev.Path {
		return nil, nil
	}
	if acting {
		if err := machine.EnsureDir(filepath.Dir(link), 0o755); err != nil {
			return nil, fmt.Errorf("associate disk as %s: %w", a.Name, err)
		}
		if err := atomicfile.Symlink(dev.Path, link); err != nil {
			return nil, err
		}
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
