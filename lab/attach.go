package lab

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"cambium/lab/disk"
	"cambium/lab/machine"
)

// placeholder matches the placeholders for device paths, which only the lab knows.
var placeholder = regexp.MustCompile(`@(ephemeral|disk-[0-9]+)@`)

// FillPaths replaces @ephemeral@, @disk-1@ and so on in a settings document with the paths of disks. It fails if a path
// is missing.
func FillPaths(document []byte, paths map[string]string) ([]byte, error) {
	var missing []string
	filled := placeholder.ReplaceAllFunc(document, func(found []byte) []byte {
		path, ok := paths[strings.Trim(string(found), "@")]
		if !ok && !slices.Contains(missing, string(found)) {
			missing = append(missing, string(found))
		}
		return []byte(path)
	})
	if len(missing) > 0 {
		return nil, fmt.Errorf("the settings name %s, but the machine has no such disk; add it with --ephemeral or --disk",
			strings.Join(missing, ", "))
	}
	return filled, nil
}

// AttachDisk attaches an existing disk as the CPI's attach_disk does. It changes the settings, or returns the hint for
// the Director.
func (i *Instance) AttachDisk(ctx context.Context, cid string) (any, error) {
	image, exists := i.find(cid)
	if !exists {
		return nil, fmt.Errorf("disk %s: %w", cid, os.ErrNotExist)
	}
	a, err := i.Attach(ctx, i.disk(cid, image))
	if err != nil {
		return nil, err
	}
	if i.delivery.rewritten && i.vm.Settings == nil {
		err = i.Change(ctx, func(d Document) { d.Set("disks.persistent", i.persistent(d, cid, a.Path)) })
	}
	if !i.versions().hint() {
		return nil, err
	}
	return a.Path, err
}

// DetachDisk detaches a disk as the CPI's detach_disk does.
func (i *Instance) DetachDisk(ctx context.Context, cid string) error {
	err := i.Detach(ctx, cid)
	if err == nil && i.delivery.rewritten && i.vm.Settings == nil {
		err = i.Change(ctx, func(d Document) { d.Set("disks.persistent", i.persistent(d, cid, "")) })
	}
	return err
}

// persistent returns the persistent disks of a document with cid added or, if path is empty, removed.
func (i *Instance) persistent(d Document, cid, path string) map[string]any {
	changed := map[string]any{}
	if disks, ok := d["disks"].(map[string]any); ok {
		if old, ok := disks["persistent"].(map[string]any); ok {
			for key, value := range old {
				changed[key] = value
			}
		}
	}
	if delete(changed, cid); path != "" {
		changed[cid] = path
	}
	return changed
}

// image creates a blank image and records it.
func (i *Instance) image(id string, size int64) (string, error) {
	if err := ValidDiskID(id); err != nil {
		return "", err
	}
	path := filepath.Join(i.dir(), "disk-"+id+".img")
	if err := disk.Create(path, size); err != nil {
		return "", err
	}
	i.remember(id, path)
	return path, nil
}

func (i *Instance) remember(id, image string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.disks[id] = image
	i.nodes[id] = "sd" + string(rune('a'+len(i.disks)))
}

// find returns the image of a disk of this machine, or of a deleted machine. The disk of a deleted machine then belongs
// to this one.
func (i *Instance) find(id string) (image string, exists bool) {
	i.mu.Lock()
	image, exists = i.disks[id]
	i.mu.Unlock()
	if exists {
		return image, true
	}
	i.lab.mu.Lock()
	image, exists = i.lab.kept[id]
	delete(i.lab.kept, id)
	i.lab.mu.Unlock()
	if exists {
		i.remember(id, image)
	}
	return image, exists
}

// HasDisk reports whether a disk exists, attached or not.
func (i *Instance) HasDisk(id string) bool {
	_, exists := i.find(id)
	return exists
}

var diskForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)

// ValidDiskID returns an error for an invalid id of a disk.
func ValidDiskID(id string) error {
	if !diskForm.MatchString(id) {
		return fmt.Errorf("disk id %q: want at most 64 letters, digits, dots, dashes and underscores", id)
	}
	return nil
}

// NewDisk creates a blank disk as the CPI's create_disk does, without attaching it.
func (i *Instance) NewDisk(cid string, size int64) error {
	_, err := i.image(cid, size)
	return err
}

// AttachNew creates a blank disk and attaches it. The attachment's path is the hint that a CPI would return.
func (i *Instance) AttachNew(ctx context.Context, id string, size int64) (machine.Attachment, error) {
	image, exists := i.find(id)
	if !exists {
		var err error
		if image, err = i.image(id, size); err != nil {
			return machine.Attachment{}, err
		}
	}
	return i.Attach(ctx, i.disk(id, image))
}

// disk returns the engine's description of a disk.
func (i *Instance) disk(id, image string) machine.Disk {
	d := machine.Disk{ID: id, Image: image, Bus: i.vm.Bus}
	if i.vm.SCSI {
		i.mu.Lock()
		defer i.mu.Unlock()
		d.Node = i.nodes[id]
	}
	return d
}

// Resize grows an attached disk. It refuses to shrink one, which would cut off data.
func (i *Instance) Resize(ctx context.Context, id string, size int64) error {
	for _, a := range i.Disks() {
		if now := ImageSize(a.Disk.Image); a.Disk.ID == id && size < now {
			return fmt.Errorf("disk %s has %d bytes and cannot shrink to %d; attach a smaller one and migrate", id, now, size)
		}
	}
	return i.Machine.Resize(ctx, id, size)
}

// ImageSize returns the size of a disk's image, or 0 if it cannot be read.
func ImageSize(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// RemoveKeepingDisks removes the machine. Its disks, except for the ephemeral one, are kept and can be attached to
// another machine.
func (i *Instance) RemoveKeepingDisks(ctx context.Context) error {
	i.mu.Lock()
	images := maps.Clone(i.disks)
	i.mu.Unlock()
	delete(images, ephemeralDisk)
	i.lab.mu.Lock()
	for id := range images {
		if _, taken := i.lab.kept[id]; taken {
			i.lab.mu.Unlock()
			return fmt.Errorf("there already is a disk %s of a deleted machine; remove it with: lab disk delete %s", id, id)
		}
	}
	i.lab.mu.Unlock()
	if err := i.unplug(ctx); err != nil {
		return err
	}
	dir := filepath.Join(i.lab.dir, "disks")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for id, image := range images {
		path := filepath.Join(dir, id+".img")
		if err := os.Rename(image, path); err != nil {
			return err
		}
		i.lab.mu.Lock()
		i.lab.kept[id] = path
		i.lab.mu.Unlock()
	}
	return os.RemoveAll(i.dir())
}

// KeptDisks returns the disks of deleted machines, with the paths of their images.
func (l *Lab) KeptDisks() map[string]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.kept)
}

// DeleteDisk deletes a disk of a deleted machine.
func (l *Lab) DeleteDisk(id string) error {
	for name, i := range l.Machines() {
		i.mu.Lock()
		_, owned := i.disks[id]
		i.mu.Unlock()
		if owned {
			return fmt.Errorf("disk %s belongs to machine %s; delete the machine first", id, name)
		}
	}
	l.mu.Lock()
	image, exists := l.kept[id]
	delete(l.kept, id)
	l.mu.Unlock()
	if !exists {
		return fmt.Errorf("there is no disk %s", id)
	}
	return os.Remove(image)
}
