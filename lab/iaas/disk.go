package iaas

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"cambium/lab/disk"
	"cambium/lab/iaas/value"
	"cambium/lab/machine"

	"golang.org/x/sys/unix"
)

const mib = int64(1) << 20

const imageName = "image"

func (i *IaaS) findDisk(cid CID) (Disk, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	d := i.disks[cid]
	if d == nil || d.Phase != Ready {
		return Disk{}, Disks.missing(cid.String())
	}
	return *d, nil
}

// HasDisk reports whether a disk exists.
func (i *IaaS) HasDisk(cid CID) bool {
	_, err := i.findDisk(cid)
	return err == nil
}

func (i *IaaS) saveDisk(d Disk) error { return save(i, d.CID, i.disks, d) }

// changeDisk changes the record of an existing disk.
func (i *IaaS) changeDisk(cid CID, change func(d *Disk) error) error {
	defer i.locks.lock(cid.String())()
	d, err := i.findDisk(cid)
	if err != nil {
		return err
	}
	if err := change(&d); err != nil {
		return err
	}
	return i.saveDisk(d)
}

// checkSpace returns an error if the file system lacks the space for more bytes. Images are sparse, so the space that
// existing disks have not used yet counts as used.
func (i *IaaS) checkSpace(more int64) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(i.store.dir, &fs); err != nil {
		return err
	}
	free := int64(fs.Bavail) * fs.Bsize
	i.mu.Lock()
	promised := int64(0)
	for cid, d := range i.disks {
		promised += d.Size.bytes() - written(i.store.path(cid, imageName))
	}
	i.mu.Unlock()
	if more+promised > free {
		return Failf(NoDiskSpace, "not enough space: %d MiB are needed, %d MiB are reserved for other disks, and %s has %d MiB free", more/mib, promised/mib, i.store.dir, free/mib)
	}
	return nil
}

// written returns the disk space that a sparse file uses, in bytes.
func written(path string) int64 {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return 0
	}
	return st.Blocks * 512
}

// CreateDisk creates a blank disk.
func (i *IaaS) CreateDisk(_ context.Context, size Size, director value.Name) (CID, error) {
	if err := i.checkSpace(size.bytes()); err != nil {
		return CID{}, err
	}
	d := Disk{Base: Base{CID: newCID(Disks), Phase: Creating, Created: time.Now(), Director: director}, Size: size}
	defer i.locks.lock(d.CID.String())()
	if err := i.saveDisk(d); err != nil {
		return CID{}, err
	}
	err := disk.Create(i.store.path(d.CID, imageName), size.bytes())
	if err == nil {
		d.Phase = Ready
		err = i.saveDisk(d)
	}
	if err != nil {
		return CID{}, errors.Join(err, i.forget(d.CID, func() { delete(i.disks, d.CID) }))
	}
	return d.CID, nil
}

// DeleteDisk deletes a disk that is not attached. A missing disk is not an error.
func (i *IaaS) DeleteDisk(_ context.Context, cid CID) error {
	defer i.locks.lock(cid.String())()
	d, err := i.findDisk(cid)
	if KindOf(err) == DiskNotFound {
		return nil
	}
	if err != nil {
		return err
	}
	if d.VM != (CID{}) {
		return Failf(CloudError, "disk %s is attached to %s; detach it first", cid, d.VM)
	}
	d.Phase = Deleting
	if err := i.saveDisk(d); err != nil {
		return err
	}
	return i.forget(cid, func() { delete(i.disks, cid) })
}

func (i *IaaS) setAttached(cid, vm CID) error {
	i.mu.Lock()
	d := *i.disks[cid]
	i.mu.Unlock()
	d.VM = vm
	return i.saveDisk(d)
}

// attachment returns the engine's description of a disk. A container has no udev, so the engine creates the links: that
// of the hint, and the CID alone, which agents of stemcells that translate CIDs look for.
func (i *IaaS) attachment(vm VM, cid CID) machine.Disk {
	return vm.Shape.disk(cid.String(), i.store.path(cid, imageName))
}

// disk returns the engine's description of a disk.
func (s Shape) disk(id, image string) machine.Disk {
	return machine.Disk{ID: id, Image: image, Bus: s.DiskBus,
		Names: []string{strings.TrimPrefix(s.path(id), "/dev/"), "disk/by-id/" + id}}
}

// path returns the path of a disk in a machine, a name that udev derives from the serial number in both kinds of
// machines. It does not depend on other disks, and is the same after a reboot.
func (s Shape) path(id string) string {
	if s.DiskBus == machine.SCSI {
		return "/dev/disk/by-id/scsi-0QEMU_QEMU_HARDDISK_" + id
	}
	return "/dev/disk/by-id/virtio-" + id
}

// hint returns the disk hint for the agent: the path and, on a SCSI bus, also the end of the disk's serial number.
// Agents for vSphere ignore the path, and look for a link in /dev/disk/by-id that ends with the hint's id, without
// dashes.
func (s Shape) hint(id string) any {
	if s.DiskBus != machine.SCSI {
		return s.path(id)
	}
	_, digits, _ := strings.Cut(id, "-")
	return map[string]string{"path": s.path(id), "id": digits}
}

// pair locks a VM and a disk, and returns their records.
func (i *IaaS) pair(vmCID, cid CID) (vm VM, d Disk, unlock func(), err error) {
	unlockVM := i.locks.lock(vmCID.String())
	unlockDisk := i.locks.lock(cid.String())
	unlock = func() {
		unlockDisk()
		unlockVM()
	}
	if vm, err = i.findVM(vmCID); err == nil {
		d, err = i.findDisk(cid)
	}
	return vm, d, unlock, err
}

// AttachDisk attaches a disk to a VM and returns the hint. If the disk is already attached, it changes nothing.
func (i *IaaS) AttachDisk(ctx context.Context, vmCID, cid CID) (hint any, err error) {
	vm, d, unlock, err := i.pair(vmCID, cid)
	defer unlock()
	if err != nil {
		return nil, err
	}
	hint = vm.Shape.hint(cid.String())
	switch d.VM {
	case vmCID:
		return hint, nil
	case CID{}:
	default:
		return nil, Failf(CloudError, "disk %s is attached to %s; detach it there first", cid, d.VM)
	}
	if err := i.setAttached(cid, vmCID); err != nil {
		return nil, err
	}
	if m := i.machine(vmCID); m != nil {
		if _, err := m.Attach(ctx, i.attachment(vm, cid)); err != nil {
			return nil, errors.Join(err, i.setAttached(cid, CID{}))
		}
	}
	return hint, i.publish(vm)
}

// detachTimeout bounds the wait for a machine to release a disk.
const detachTimeout = time.Minute

// DetachDisk detaches a disk from a VM.
func (i *IaaS) DetachDisk(ctx context.Context, vmCID, cid CID) error {
	vm, d, unlock, err := i.pair(vmCID, cid)
	defer unlock()
	if err != nil {
		return err
	}
	if d.VM != vmCID {
		return Failf(DiskNotAttached, "disk %s is not attached to %s", cid, vmCID)
	}
	if m := i.machine(vmCID); m != nil {
		within, cancel := context.WithTimeout(ctx, detachTimeout)
		defer cancel()
		if err := m.Detach(within, cid.String()); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%w; unmount it in the VM first", err)
		}
	}
	if err := i.setAttached(cid, CID{}); err != nil {
		return err
	}
	return i.publish(vm)
}

// DisksOf returns the disks attached to a VM.
func (i *IaaS) DisksOf(vmCID CID) ([]CID, error) {
	if _, err := i.findVM(vmCID); err != nil {
		return nil, err
	}
	return i.attached(vmCID), nil
}

func (i *IaaS) attached(vmCID CID) []CID {
	i.mu.Lock()
	defer i.mu.Unlock()
	found := []CID{}
	for cid, d := range i.disks {
		if d.VM == vmCID {
			found = append(found, cid)
		}
	}
	slices.SortFunc(found, func(a, b CID) int { return strings.Compare(a.String(), b.String()) })
	return found
}

// ResizeDisk grows a disk that is not attached.
func (i *IaaS) ResizeDisk(cid CID, size Size) error {
	return i.changeDisk(cid, func(d *Disk) error { return i.grow(d, size) })
}

// SetDiskMetadata replaces the metadata of a disk.
func (i *IaaS) SetDiskMetadata(cid CID, metadata value.Metadata) error {
	return i.changeDisk(cid, func(d *Disk) error {
		d.Metadata = metadata
		return nil
	})
}

// grow enlarges the image, and then writes the record: it does no harm if the record has a smaller size than the image.
func (i *IaaS) grow(d *Disk, size Size) error {
	switch {
	case size == d.Size:
		return nil
	case size < d.Size:
		return Failf(NotSupported, "disk %s has %d MiB and cannot shrink to %d", d.CID, d.Size, size)
	case d.VM != (CID{}):
		return Failf(NotSupported, "disk %s is attached to %s and cannot be resized", d.CID, d.VM)
	}
	if err := i.checkSpace((size - d.Size).bytes()); err != nil {
		return err
	}
	d.Size = size
	return os.Truncate(i.store.path(d.CID, imageName), size.bytes())
}

// SnapshotDisk copies a disk, attached or not, in the state that a power cut would leave. If the file system can share
// blocks, the copy takes no time.
func (i *IaaS) SnapshotDisk(ctx context.Context, cid CID, metadata value.Metadata, director value.Name) (CID, error) {
	defer i.locks.lock(cid.String())()
	d, err := i.findDisk(cid)
	if err != nil {
		return CID{}, err
	}
	if m := i.machine(d.VM); m != nil && m.Running() {
		if err := i.canSnapshot(d); err != nil {
			return CID{}, err
		}
	}
	base := Base{CID: newCID(Snapshots), Phase: Creating, Created: time.Now(), Director: director, Metadata: metadata}
	s := Snapshot{Base: base, Disk: cid, Size: d.Size}
	if err := i.saveSnapshot(s); err != nil {
		return CID{}, err
	}
	err = copyFile(ctx, i.store.path(cid, imageName), i.store.path(s.CID, imageName))
	if err == nil {
		s.Phase = Ready
		err = i.saveSnapshot(s)
	}
	if err != nil {
		return CID{}, errors.Join(err, i.forget(s.CID, func() { delete(i.snapshots, s.CID) }))
	}
	return s.CID, nil
}

// canSnapshot returns an error if a copy would mix states of several moments: a disk in use can only be copied by
// sharing blocks. The error is NotImplemented, because a Director that takes snapshots fails stop, start and deploy
// after any other error.
func (i *IaaS) canSnapshot(d Disk) error {
	probe := i.store.path(d.CID, "probe")
	defer func() { _ = os.Remove(probe) }()
	out, err := exec.Command("cp", "--reflink=always", i.store.path(d.CID, recordName), probe).CombinedOutput()
	if err != nil {
		return Failf(NotImplemented, "disk %s is in use and its file system cannot share blocks (%s): no snapshot; "+
			"detach the disk or stop its VM first", d.CID, strings.TrimSpace(string(out)))
	}
	return nil
}

func copyFile(ctx context.Context, from, to string) error {
	cp := exec.CommandContext(ctx, "cp", "--sparse=always", "--reflink=auto", from, to)
	if out, err := cp.CombinedOutput(); err != nil {
		return fmt.Errorf("copy %s: %w: %s", from, err, strings.TrimSpace(string(out)))
	}
	return nil
}

func (i *IaaS) saveSnapshot(s Snapshot) error { return save(i, s.CID, i.snapshots, s) }

// DeleteSnapshot deletes a snapshot. A missing snapshot is not an error.
func (i *IaaS) DeleteSnapshot(cid CID) error {
	defer i.locks.lock(cid.String())()
	i.mu.Lock()
	s := i.snapshots[cid]
	i.mu.Unlock()
	if s == nil {
		return nil
	}
	gone := *s
	gone.Phase = Deleting
	if err := i.saveSnapshot(gone); err != nil {
		return err
	}
	return i.forget(cid, func() { delete(i.snapshots, cid) })
}
