package lab

import (
	"context"
	"fmt"
	"os"
	"os/exec"
)

// CloneDisk copies a disk to a new CID, like a CPI's snapshot, or an update_disk that creates a new disk. The disk
// should not be written to meanwhile.
func (i *Instance) CloneDisk(from, to string) error {
	i.mu.Lock()
	source, exists := i.disks[from]
	i.mu.Unlock()
	if !exists {
		return fmt.Errorf("disk %s: %w", from, os.ErrNotExist)
	}
	target, err := i.image(to, ImageSize(source))
	if err != nil {
		return err
	}
	return copySparse(source, target)
}

// GrowDisk grows a disk that is not attached, as a CPI's resize_disk does.
func (i *Instance) GrowDisk(cid string, size int64) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	image, exists := i.disks[cid]
	if !exists || ImageSize(image) > size {
		return fmt.Errorf("disk %s cannot have %d bytes", cid, size)
	}
	return os.Truncate(image, size)
}

// LoseDisk deletes a disk without the Director's knowledge.
func (i *Instance) LoseDisk(ctx context.Context, cid string) error {
	if err := i.DetachDisk(ctx, cid); err != nil {
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	image := i.disks[cid]
	delete(i.disks, cid)
	return os.Remove(image)
}

// MoveDisk moves a disk that is not attached to another machine.
func (i *Instance) MoveDisk(cid string, to *Instance) error {
	i.mu.Lock()
	image, exists := i.disks[cid]
	delete(i.disks, cid)
	i.mu.Unlock()
	if !exists {
		return fmt.Errorf("disk %s: %w", cid, os.ErrNotExist)
	}
	target, err := to.image(cid, ImageSize(image))
	if err != nil {
		return err
	}
	return os.Rename(image, target)
}

// copySparse copies a file over another and keeps holes.
func copySparse(from, to string) error {
	if out, err := exec.Command("cp", "--sparse=always", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("copy disk: %w: %s", err, out)
	}
	return nil
}
