package storage

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"cambium/internal/atomicfile"
	"cambium/settings"
)

// AddDynamic links an attached disk for a job that manages it by itself. The disk is neither
// partitioned nor mounted.
func (d *Persistent) AddDynamic(ctx context.Context, cid string, hint settings.DiskHint) error {
	defer d.lock()()
	if err := d.Reload(ctx); err != nil {
		return err
	}
	link, err := linkIn(d.Dirs.DynamicDisks(), cid)
	if err != nil {
		return fmt.Errorf("add dynamic disk: %w", err)
	}
	dev, err := d.Resolver.Resolve(ctx, hintOf(cid, hint))
	if err != nil {
		return fmt.Errorf("add dynamic disk: %w", err)
	}
	if err := ensureDir(d.Dirs.DynamicDisks(), 0o700); err != nil {
		return fmt.Errorf("add dynamic disk: %w", err)
	}
	return atomicfile.Symlink(dev.Path, link)
}

// RemoveDynamic takes the link away; one that is not there is fine.
func (d *Persistent) RemoveDynamic(_ context.Context, cid string) error {
	defer d.lock()()
	link, err := linkIn(d.Dirs.DynamicDisks(), cid)
	if err != nil {
		return fmt.Errorf("remove dynamic disk: %w", err)
	}
	return atomicfile.Remove(link)
}

// CheckKnown refuses to go on when a disk that has a name is not known, or when more disks are
// known than one would expect: those with names, or else one, and one more while disks are changed.
func (d *Persistent) CheckKnown(associations []settings.DiskAssociation) error {
	known := d.Records.Disks()
	for _, a := range associations {
		if _, ok := known[a.CID]; !ok {
			return fmt.Errorf("persistent disk %q, named %q, is not attached", a.CID, a.Name)
		}
	}
	if most := max(len(associations), 1) + 1; len(known) > most {
		return fmt.Errorf("%d persistent disks are attached, want at most %d", len(known), most)
	}
	return nil
}

// Associate links persistent disks under the names that jobs know them by.
func (d *Persistent) Associate(ctx context.Context, associations []settings.DiskAssociation) ([]Change, error) {
	if len(associations) == 0 {
		return nil, nil
	}
	defer d.lock()()
	err := d.associate(ctx, associations)
	return d.made, err
}

// PlanAssociate says which links Associate would make.
func (d *Persistent) PlanAssociate(_ context.Context, associations []settings.DiskAssociation) ([]Change, error) {
	var changes []Change
	for _, a := range associations {
		link, err := linkIn(d.Dirs.DiskAssociations(), a.Name)
		if err != nil {
			return changes, fmt.Errorf("associate disk %s: %w", a.CID, err)
		}
		p, err := d.known(a.CID)
		if err != nil {
			return changes, fmt.Errorf("associate disk as %s: %w", a.Name, err)
		}
		dev, err := d.Resolver.Look(hintOf(a.CID, p.Hint))
		if err != nil {
			return changes, fmt.Errorf("associate disk as %s: %w", a.Name, err)
		}
		if have, _ := os.Readlink(link); have != dev.Path {
			changes = append(changes, linkChange(dev.Path, link, a.CID))
		}
	}
	return changes, nil
}

func (d *Persistent) associate(ctx context.Context, associations []settings.DiskAssociation) error {
	for _, a := range associations {
		link, err := linkIn(d.Dirs.DiskAssociations(), a.Name)
		if err != nil {
			return fmt.Errorf("associate disk %s: %w", a.CID, err)
		}
		p, err := d.known(a.CID)
		if err != nil {
			return fmt.Errorf("associate disk as %s: %w", a.Name, err)
		}
		dev, err := d.Resolver.Resolve(ctx, hintOf(a.CID, p.Hint))
		if err != nil {
			return fmt.Errorf("associate disk as %s: %w", a.Name, err)
		}
		if err := ensureDir(d.Dirs.DiskAssociations(), 0o755); err != nil {
			return fmt.Errorf("associate disk as %s: %w", a.Name, err)
		}
		have, _ := os.Readlink(link)
		if err := atomicfile.Symlink(dev.Path, link); err != nil {
			return err
		}
		if have != dev.Path {
			d.note(linkChange(dev.Path, link, a.CID))
		}
	}
	return nil
}

// linkIn joins a name from outside to a directory, and only a name.
func linkIn(dir, name string) (string, error) {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return "", fmt.Errorf("%q cannot be the name of a link", name)
	}
	return filepath.Join(dir, name), nil
}
