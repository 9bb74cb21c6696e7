package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"cambium/lab/machine"
)

// attached is a disk of the machine.
type attached struct {
	disk   machine.Disk
	number int  // never reused
	hot    bool // plugged in while the machine ran
	set    int  // with which the running QEMU has opened the image
}

// serialLength is the maximum length of a serial number in virtio, in bytes.
const serialLength = 20

func serial(id string) string { return id[:min(len(id), serialLength)] }

// path returns the hint for the disk. It is a name that udev derives from the serial number, since the kernel's names
// depend on the order in which disks are found.
func (a *attached) path() string {
	s := serial(a.disk.ID)
	switch a.disk.Bus {
	case machine.SCSI:
		return "/dev/disk/by-id/scsi-0QEMU_QEMU_HARDDISK_" + s
	case machine.NVMe:
		return "/dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_" + s
	case machine.CDROM:
		return "/dev/sr0"
	}
	return "/dev/disk/by-id/virtio-" + s
}

func (a *attached) attachment() machine.Attachment {
	return machine.Attachment{Disk: a.disk, Path: a.path()}
}

func (a *attached) node() string { return fmt.Sprintf("disk%d", a.number) }

// drive returns the device's name. There is only one CD drive, whatever medium is in it.
func (a *attached) drive() string {
	if a.disk.Bus == machine.CDROM {
		return cdDrive
	}
	return fmt.Sprintf("drive%d", a.number)
}

const cdDrive = "cd"

// block returns QEMU's description of the image.
func (a *attached) block() map[string]any { return raw(a.node(), a.set, a.disk.ReadOnly) }

// raw returns the description of a raw image that QEMU has in a set.
func raw(node string, set int, readOnly bool) map[string]any {
	return map[string]any{"driver": "raw", "node-name": node, "read-only": readOnly, "discard": "unmap",
		"file": map[string]any{"driver": "file", "filename": setName(set), "discard": "unmap"}}
}

const rootNode = "root"

// drives returns the arguments for all disks and the firmware when QEMU starts.
func (m *Machine) drives(d *descriptors) ([]string, error) {
	layer, err := d.open(m.rootDisk(), os.O_RDWR)
	if err != nil {
		return nil, err
	}
	base, err := d.open(m.image.Disk, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	// The layer below is named here: what the header of the guest's disk says does not count.
	image := map[string]any{"driver": "qcow2", "node-name": rootNode, "discard": "unmap",
		"file": map[string]any{"driver": "file", "filename": setName(layer)}, "backing": raw("base", base, true)}
	block, sets, err := m.logged(d, RootLog, image)
	if err != nil {
		return nil, err
	}
	blocks := []map[string]any{block}
	sets = append(sets, layer, base)
	root := map[string]any{"driver": "virtio-blk-pci", "id": "rootdrive", "drive": rootNode, "serial": "root"}
	if m.engine.RootBus == machine.SCSI {
		root["driver"], root["bus"] = "scsi-hd", "scsi.0"
	}
	if m.image.Kernel == "" {
		root["bootindex"] = 0
	}
	devices := []map[string]any{root}
	for _, a := range m.disks {
		if a.set, err = d.open(a.disk.Image, access(a.disk.ReadOnly)); err != nil {
			return nil, err
		}
		block, log, err := m.logged(d, a.disk.ID, a.block())
		if err != nil {
			return nil, err
		}
		sets, blocks, devices = append(append(sets, log...), a.set), append(blocks, block), append(devices, a.device())
	}
	flash, set, err := m.firmware(d)
	if err != nil {
		return nil, err
	}
	var argv []string
	for _, set := range append(sets, set...) {
		argv = append(argv, "-add-fd", fmt.Sprintf("fd=%[1]d,set=%[1]d", set))
	}
	return described(append(argv, flash...), blocks, devices)
}

// described appends block nodes and devices to a command line.
func described(argv []string, blocks, devices []map[string]any) ([]string, error) {
	add := func(option string, all []map[string]any) error {
		for _, one := range all {
			text, err := json.Marshal(one)
			if err != nil {
				return err
			}
			argv = append(argv, option, string(text))
		}
		return nil
	}
	err := errors.Join(add("-blockdev", blocks), add("-device", devices))
	return argv, err
}

// device returns QEMU's description of the controller or drive.
func (a *attached) device() map[string]any {
	d := map[string]any{"id": a.drive(), "drive": a.node()}
	switch a.disk.Bus {
	case machine.SCSI:
		d["driver"], d["bus"], d["serial"] = "scsi-hd", "scsi.0", serial(a.disk.ID)
	case machine.NVMe:
		d["driver"], d["serial"] = "nvme", serial(a.disk.ID)
	case machine.CDROM:
		d["driver"], d["bus"] = "scsi-cd", "scsi.0"
	default:
		d["driver"], d["serial"] = "virtio-blk-pci", serial(a.disk.ID)
	}
	return d
}

func (m *Machine) find(id string) *attached {
	for _, a := range m.disks {
		if a.disk.ID == id {
			return a
		}
	}
	return nil
}

// Attach attaches a disk, even while the machine runs.
func (m *Machine) Attach(ctx context.Context, d machine.Disk) (machine.Attachment, error) {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	if m.find(d.ID) != nil {
		return machine.Attachment{}, fmt.Errorf("attach disk %s: %w", d.ID, os.ErrExist)
	}
	if _, err := os.Stat(d.Image); err != nil {
		return machine.Attachment{}, err
	}
	m.numbers++
	a := &attached{disk: d, number: m.numbers, hot: m.Current != nil}
	if a.hot {
		if err := m.plugIn(ctx, m.Current.qmp, a); err != nil {
			return machine.Attachment{}, fmt.Errorf("attach disk %s: %w", d.ID, err)
		}
	}
	m.disks = append(m.disks, a)
	return a.attachment(), nil
}

func (m *Machine) plugIn(ctx context.Context, q *monitor, a *attached) error {
	image, err := os.OpenFile(a.disk.Image, access(a.disk.ReadOnly), 0)
	if err != nil {
		return err
	}
	a.set, err = q.addFile(ctx, image)
	_ = image.Close() // QEMU has its own descriptor
	if err != nil {
		return err
	}
	if err := q.do(ctx, "blockdev-add", a.block(), nil); err != nil {
		return errors.Join(err, q.removeFile(ctx, a.set))
	}
	if a.disk.Bus == machine.CDROM && m.Current.cd {
		err = q.do(ctx, "blockdev-insert-medium", map[string]any{"id": cdDrive, "node-name": a.node()}, nil)
		if err == nil {
			err = q.do(ctx, "blockdev-close-tray", map[string]any{"id": cdDrive}, nil)
		}
	} else {
		err = q.do(ctx, "device_add", a.device(), nil)
	}
	if err != nil {
		return errors.Join(err, release(ctx, q, a))
	}
	m.Current.cd = m.Current.cd || a.disk.Bus == machine.CDROM
	return nil
}

// Detach detaches a disk. As on most IaaS, the machine is not asked whether it uses the disk; only its kernel can delay
// the removal, and Detach waits for it.
func (m *Machine) Detach(ctx context.Context, id string) error {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	a := m.find(id)
	if a == nil {
		return fmt.Errorf("detach disk %s: %w", id, os.ErrNotExist)
	}
	if m.Current != nil {
		if err := pullOut(ctx, m.Current.qmp, a); err != nil {
			return fmt.Errorf("detach disk %s: %w", id, err)
		}
	}
	m.disks = slices.DeleteFunc(m.disks, func(other *attached) bool { return other == a })
	return nil
}

// unplugRetry is the pause before device_del is repeated, because a booting machine may have missed it.
const unplugRetry = 5 * time.Second

// release makes QEMU close the image of a disk after its device was removed.
func release(ctx context.Context, q *monitor, a *attached) error {
	if err := q.do(ctx, "blockdev-del", map[string]any{"node-name": a.node()}, nil); err != nil {
		return err
	}
	return q.removeFile(ctx, a.set)
}

func pullOut(ctx context.Context, q *monitor, a *attached) error {
	if a.disk.Bus == machine.CDROM {
		return errors.Join(
			q.do(ctx, "blockdev-open-tray", map[string]any{"id": cdDrive, "force": true}, nil),
			q.do(ctx, "blockdev-remove-medium", map[string]any{"id": cdDrive}, nil),
			release(ctx, q, a))
	}
	deleted, stop := q.watch(func(msg message) bool {
		var d struct{ Device string }
		return msg.Event == "DEVICE_DELETED" && json.Unmarshal(msg.Data, &d) == nil && d.Device == a.drive()
	})
	defer stop()
	if err := q.do(ctx, "device_del", map[string]any{"id": a.drive()}, nil); err != nil {
		return err
	}
	for {
		select {
		case <-deleted:
			return release(ctx, q, a)
		case <-time.After(unplugRetry):
			_ = q.do(ctx, "device_del", map[string]any{"id": a.drive()}, nil) // "already in the process of unplug" is fine
		case <-q.closed:
			return errMonitor
		case <-ctx.Done():
			return fmt.Errorf("the machine still uses it: %w", ctx.Err())
		}
	}
}

// Resize grows a disk. A running machine sees the new size, except for NVMe disks, which QEMU cannot resize.
func (m *Machine) Resize(ctx context.Context, id string, size int64) error {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	a := m.find(id)
	if a == nil {
		return fmt.Errorf("resize disk %s: %w", id, os.ErrNotExist)
	}
	if m.Current != nil {
		return m.Current.qmp.do(ctx, "block_resize", map[string]any{"node-name": a.node(), "size": size}, nil)
	}
	return os.Truncate(a.disk.Image, size)
}

// Throttle limits the throughput of a disk of the running machine, in bytes per second; 0 removes the limit.
func (m *Machine) Throttle(ctx context.Context, id string, rate int64) error {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	a := m.find(id)
	if a == nil || m.Current == nil {
		return fmt.Errorf("throttle disk %s: %w", id, os.ErrNotExist)
	}
	return m.Current.qmp.do(ctx, "block_set_io_throttle", map[string]any{"id": a.drive(), "bps": rate,
		"bps_rd": 0, "bps_wr": 0, "iops": 0, "iops_rd": 0, "iops_wr": 0}, nil)
}

// Disks returns the attached disks.
func (m *Machine) Disks() []machine.Attachment {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	var all []machine.Attachment
	for _, a := range m.disks {
		all = append(all, a.attachment())
	}
	return all
}

// Ejected reports whether the machine has opened its CD drive, as seen by the hypervisor.
func (m *Machine) Ejected() bool {
	m.seen.Lock()
	defer m.seen.Unlock()
	return m.trayOpen
}
