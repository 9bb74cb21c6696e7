package iaas

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sort"
	"strings"
	"time"

	"cambium/lab/disk"
	"cambium/lab/machine"

	"golang.org/x/sys/unix"
)

const mib = int64(1) << 20

// maxDisk bounds sizes so that they can be computed with, 64 TiB in MiB.
const maxDisk = 64 << 20

const imageName = "image"

func (i *IaaS) findDisk(cid string) (Disk, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	d := i.disks[cid]
	if d == nil || d.Phase != Ready {
		return Disk{}, Failf(DiskNotFound, "there is no disk %s", cid)
	}
	return *d, nil
}

// HasDisk reports whether a disk exists.
func (i *IaaS) HasDisk(cid string) bool {
	_, err := i.findDisk(cid)
	return err == nil
}

func (i *IaaS) saveDisk(d Disk) error { return save(i, disks, d.CID, i.disks, d) }

// changeDisk changes the record of a disk that exists.
func (i *IaaS) changeDisk(cid string, change func(d *Disk) error) error {
	defer i.locks.lock(cid)()
	d, err := i.findDisk(cid)
	if err != nil {
		return err
	}
	if err := change(&d); err != nil {
		return err
	}
	return i.saveDisk(d)
}

// checkSpace compares what the file system has free with what would be promised. Images are
// sparse, so what is promised already and not yet written counts.
func (i *IaaS) checkSpace(more int64) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(i.store.dir, &fs); err != nil {
		return err
	}
	free := int64(fs.Bavail) * fs.Bsize
	i.mu.Lock()
	promised := int64(0)
	for cid, d := range i.disks {
		promised += int64(d.Size)*mib - written(i.store.path(disks, cid, imageName))
	}
	i.mu.Unlock()
	if more+promised > free {
		return Failf(NoDiskSpace, "%d MiB are wanted, %d MiB are promised to other disks, and %s has %d MiB free", more/mib, promised/mib, i.store.dir, free/mib)
	}
	return nil
}

// written is what a sparse file occupies.
func written(path string) int64 {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return 0
	}
	return st.Blocks * 512
}

func checkSize(size int) error {
	if size < 1 || size > maxDisk {
		return Failf(CloudError, "disk size %d: want 1 to %d MiB", size, maxDisk)
	}
	return nil
}

// CreateDisk makes a blank disk of a size in MiB.
func (i *IaaS) CreateDisk(_ context.Context, size int, properties json.RawMessage, director string) (string, error) {
	if err := checkSize(size); err != nil {
		return "", err
	}
	if err := i.checkSpace(int64(size) * mib); err != nil {
		return "", err
	}
	d := Disk{Base: Base{CID: newCID(disks), Phase: Creating, Created: time.Now(), Director: director}, Size: size, Properties: properties}
	defer i.locks.lock(d.CID)()
	if err := i.saveDisk(d); err != nil {
		return "", err
	}
	err := disk.Create(i.store.path(disks, d.CID, imageName), int64(size)*mib)
	if err == nil {
		d.Phase = Ready
		err = i.saveDisk(d)
	}
	if err != nil {
		return "", errors.Join(err, i.forget(disks, d.CID, func() { delete(i.disks, d.CID) }))
	}
	return d.CID, nil
}

// DeleteDisk removes a disk that is not attached. One that is not there is no error.
func (i *IaaS) DeleteDisk(_ context.Context, cid string) error {
	defer i.locks.lock(cid)()
	d, err := i.findDisk(cid)
	if KindOf(err) == DiskNotFound {
		return nil
	}
	if err != nil {
		return err
	}
	if d.VM != "" {
		return Failf(CloudError, "disk %s is attached to %s; detach it first", cid, d.VM)
	}
	d.Phase = Deleting
	if err := i.saveDisk(d); err != nil {
		return err
	}
	return i.forget(disks, cid, func() { delete(i.disks, cid) })
}

func (i *IaaS) setAttached(cid, vm string) error {
	i.mu.Lock()
	d := *i.disks[cid]
	i.mu.Unlock()
	d.VM = vm
	return i.saveDisk(d)
}

// attachment describes a disk to the engine. A container has no udev, so the engine makes its
// links: the one of the hint, and the bare CID, which an agent looks for whose stemcell translates
// CIDs.
func (i *IaaS) attachment(vm VM, cid string) machine.Disk {
	return vm.Shape.disk(cid, i.store.path(disks, cid, imageName))
}

// disk describes a disk to the engine.
func (s Shape) disk(id, image string) machine.Disk {
	return machine.Disk{ID: id, Image: image, Bus: s.DiskBus, Names: []string{strings.TrimPrefix(s.path(id), "/dev/"), "disk/by-id/" + id}}
}

// path is where a machine has a disk: a name that udev makes of its serial number, in both kinds of
// machines, which is true whatever else is attached and after every reboot.
func (s Shape) path(id string) string {
	if s.DiskBus == machine.SCSI {
		return "/dev/disk/by-id/scsi-0QEMU_QEMU_HARDDISK_" + id
	}
	return "/dev/disk/by-id/virtio-" + id
}

// hint is what the agent finds a disk by: its path and, behind a SCSI controller, the end of its serial
// number, too. Agents for vSphere use no path: they look for a link in /dev/disk/by-id that ends with
// the hint's id, without dashes.
func (s Shape) hint(id string) any {
	if s.DiskBus != machine.SCSI {
		return s.path(id)
	}
	_, digits, _ := strings.Cut(id, "-")
	return map[string]string{"path": s.path(id), "id": digits}
}

// pair locks a VM and a disk, and finds both.
func (i *IaaS) pair(vmCID, cid string) (vm VM, d Disk, unlock func(), err error) {
	if vmCID == cid { // its lock cannot be taken twice
		return vm, d, func() {}, Failf(VMNotFound, "there is no VM %s that is also a disk", vmCID)
	}
	unlockVM := i.locks.lock(vmCID)
	unlockDisk := i.locks.lock(cid)
	unlock = func() {
		unlockDisk()
		unlockVM()
	}
	if vm, err = i.findVM(vmCID); err == nil {
		d, err = i.findDisk(cid)
	}
	return vm, d, unlock, err
}

// AttachDisk attaches a disk to a VM and returns the hint; once more changes nothing.
func (i *IaaS) AttachDisk(ctx context.Context, vmCID, cid string) (hint any, err error) {
	vm, d, unlock, err := i.pair(vmCID, cid)
	defer unlock()
	if err != nil {
		return nil, err
	}
	hint = vm.Shape.hint(cid)
	switch d.VM {
	case vmCID:
		return hint, nil
	case "":
	default:
		return nil, Failf(CloudError, "disk %s is attached to %s; detach it there first", cid, d.VM)
	}
	if err := i.setAttached(cid, vmCID); err != nil {
		return nil, err
	}
	if m := i.machine(vmCID); m != nil {
		if _, err := m.Attach(ctx, i.attachment(vm, cid)); err != nil {
			return nil, errors.Join(err, i.setAttached(cid, ""))
		}
	}
	return hint, i.publish(vm)
}

// detachTimeout is how long a machine may take to release a disk.
const detachTimeout = time.Minute

// DetachDisk takes a disk from a VM.
func (i *IaaS) DetachDisk(ctx context.Context, vmCID, cid string) error {
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
		if err := m.Detach(within, cid); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%w; unmount it in the VM first", err)
		}
	}
	if err := i.setAttached(cid, ""); err != nil {
		return err
	}
	return i.publish(vm)
}

// DisksOf returns the disks attached to a VM.
func (i *IaaS) DisksOf(vmCID string) ([]string, error) {
	if _, err := i.findVM(vmCID); err != nil {
		return nil, err
	}
	return i.attached(vmCID), nil
}

func (i *IaaS) attached(vmCID string) []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	found := []string{}
	for cid, d := range i.disks {
		if d.VM == vmCID {
			found = append(found, cid)
		}
	}
	sort.Strings(found)
	return found
}

// ResizeDisk grows a disk that is not attached.
func (i *IaaS) ResizeDisk(cid string, size int) error {
	return i.changeDisk(cid, func(d *Disk) error { return i.grow(d, size) })
}

// UpdateDisk grows a disk that is not attached and replaces its properties.
func (i *IaaS) UpdateDisk(cid string, size int, properties json.RawMessage) error {
	return i.changeDisk(cid, func(d *Disk) error {
		d.Properties = properties
		return i.grow(d, size)
	})
}

// SetDiskMetadata replaces what is known of a disk.
func (i *IaaS) SetDiskMetadata(cid string, metadata map[string]string) error {
	return i.changeDisk(cid, func(d *Disk) error {
		d.Metadata = metadata
		return nil
	})
}

// grow enlarges the image. The record is written afterwards: one that promises less than there is
// does no harm.
func (i *IaaS) grow(d *Disk, size int) error {
	if err := checkSize(size); err != nil {
		return err
	}
	switch {
	case size == d.Size:
		return nil
	case size < d.Size:
		return Failf(NotSupported, "disk %s has %d MiB and cannot shrink to %d", d.CID, d.Size, size)
	case d.VM != "":
		return Failf(NotSupported, "disk %s is attached to %s and cannot be resized", d.CID, d.VM)
	}
	if err := i.checkSpace(int64(size-d.Size) * mib); err != nil {
		return err
	}
	d.Size = size
	return os.Truncate(i.store.path(disks, d.CID, imageName), int64(size)*mib)
}

// SnapshotDisk copies a disk, attached or not, as it would be after a power cut. Where the file
// system shares blocks the copy is immediate.
func (i *IaaS) SnapshotDisk(ctx context.Context, cid string, metadata map[string]string, director string) (string, error) {
	defer i.locks.lock(cid)()
	d, err := i.findDisk(cid)
	if err != nil {
		return "", err
	}
	if m := i.machine(d.VM); m != nil && m.Running() {
		if err := i.canSnapshot(d); err != nil {
			return "", err
		}
	}
	s := Snapshot{Base: Base{CID: newCID(snapshots), Phase: Creating, Created: time.Now(), Director: director, Metadata: metadata}, Disk: cid, Size: d.Size}
	if err := i.saveSnapshot(s); err != nil {
		return "", err
	}
	err = copyFile(ctx, i.store.path(disks, cid, imageName), i.store.path(snapshots, s.CID, imageName))
	if err == nil {
		s.Phase = Ready
		err = i.saveSnapshot(s)
	}
	if err != nil {
		return "", errors.Join(err, i.forget(snapshots, s.CID, func() { delete(i.snapshots, s.CID) }))
	}
	return s.CID, nil
}

// canSnapshot refuses a copy that would mix several moments: of a disk in use only a copy that
// shares blocks is of one.
func (i *IaaS) canSnapshot(d Disk) error {
	probe := i.store.path(disks, d.CID, "probe")
	defer func() { _ = os.Remove(probe) }()
	out, err := exec.Command("cp", "--reflink=always", i.store.path(disks, d.CID, recordName), probe).CombinedOutput()
	if err != nil {
		return Failf(NotSupported, "disk %s is in use and its file system cannot share blocks (%s); detach the disk or stop its VM first", d.CID, strings.TrimSpace(string(out)))
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

func (i *IaaS) saveSnapshot(s Snapshot) error { return save(i, snapshots, s.CID, i.snapshots, s) }

// DeleteSnapshot removes a snapshot. One that is not there is no error.
func (i *IaaS) DeleteSnapshot(cid string) error {
	defer i.locks.lock(cid)()
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
	return i.forget(snapshots, cid, func() { delete(i.snapshots, cid) })
}
