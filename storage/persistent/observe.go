package persistent

import (
	"context"
	"errors"
	"os"

	"cambium/internal/blkdev"
	"cambium/platform/device"
	"cambium/platform/disk"
	"cambium/platform/filesystem"
	"cambium/platform/mount"
	"cambium/settings"
	"cambium/storage/decide"
	"cambium/storage/internal/machine"
)

// observe looks at a disk that is not mounted, and changes nothing on it. With announce set, its partitions are
// announced to the kernel.
func (d *Disks) observe(ctx context.Context, p settings.PersistentDisk, dev device.Device, announce bool) (o decide.Persistent, err error) {
	if o, err = d.observeDisk(p, dev); err == nil && len(o.Disk.Table.Partitions) == 1 {
		err = d.observePartition(ctx, &o, announce)
	}
	if err == nil && decide.Formats(o) {
		o.Superblocks, err = o.Disk.Superblocks()
	}
	return o, err
}

// observeDisk looks at a disk, not at its partitions.
func (d *Disks) observeDisk(p settings.PersistentDisk, dev device.Device) (o decide.Persistent, err error) {
	o = decide.Persistent{CID: p.CID, Serial: machine.Serial(dev.Number), Label: d.Label, FileSystem: filesystem.Ext4, MountOptions: p.MountOptions,
		AllowForeign: d.Foreign() == "format", AllowNoise: d.Blank() == "noise", Preformatted: d.Preformatted}
	if p.FileSystem != "" {
		o.FileSystem = filesystem.Kind(p.FileSystem)
	}
	if p.Partitioner != "" {
		o.Label = LabelOf(p.Partitioner)
	}
	o.Hardware = machine.HardwareOf(dev.Number, p.CID)
	if o.Records, err = d.Machine.Identities.For(p.CID); err != nil {
		return o, err
	}
	if d.Preformatted {
		if err := d.observePreformatted(&o, dev.Path); err != nil {
			return o, err
		}
		o.DuplicateUUID, err = duplicateUUID(dev.Path, o.Volume.Content)
		return o, err
	}
	if o.Disk, err = disk.Inspect(dev.Path); errors.Is(err, disk.ErrDamaged) {
		o.Damaged, err = err, nil
	}
	if err == nil && len(o.Disk.Table.Partitions) == 0 {
		o.Residue, err = o.Disk.Survey(decide.PreparingName)
	}
	return o, err
}

// LabelOf is the partition table that a partitioner of the settings or of agent.json makes.
func LabelOf(partitioner string) disk.Label {
	if partitioner == "sfdisk" {
		return disk.MBR
	}
	return disk.GPT
}

func (d *Disks) observePreformatted(o *decide.Persistent, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	o.Disk.Path = path
	if o.Disk.Bytes, err = blkdev.Size(f); err != nil {
		return err
	}
	o.Volume, err = d.Machine.Device(path)
	return err
}

// observePartition looks at the only partition of a disk.
func (d *Disks) observePartition(ctx context.Context, o *decide.Persistent, announce bool) (err error) {
	if announce {
		if err := d.Machine.Announce(ctx, o.Disk); err != nil {
			return err
		}
	}
	part := o.Disk.Table.Partitions[0]
	if o.Volume, err = d.Machine.Volume(o.Disk, part.Number); err != nil {
		return err
	}
	if o.Volume.Content.Data() {
		if o.DuplicateUUID, err = duplicateUUID(o.Part(), o.Volume.Content); err != nil {
			return err
		}
	}
	if o.Pending, err = d.Machine.Intents.Pending(o.CID, o.Disk.Table); err != nil {
		return err
	}
	o.Pending = o.Pending || part.Name == decide.PreparingName
	if o.Volume.Content.Blank() && !o.Pending {
		o.Residue, err = o.Disk.SurveyPartition(part)
	}
	if err != nil || !o.Pending || !o.Volume.Content.Data() {
		return err
	}
	if o.Volume.InUse {
		o.Finished = true
		return nil
	}
	if announce {
		if err := mount.AwaitIdle(ctx, o.Part()); err != nil {
			return err
		}
	}
	o.Finished, err = filesystem.Finished(ctx, o.Part(), o.Volume.Content)
	return err
}

// observeMounted looks at a disk that is mounted.
func (d *Disks) observeMounted(ctx context.Context, path string, announce bool) (o decide.Persistent, err error) {
	o.Preformatted = d.Preformatted
	if d.Preformatted {
		return o, d.observePreformatted(&o, path)
	}
	if o.Disk, err = disk.Inspect(path); err != nil || len(o.Disk.Table.Partitions) != 1 {
		return o, err
	}
	if announce {
		// The kernel may lack partitions of the table: an earlier agent may have been killed between writing and announcing it.
		d.Machine.CrashPoint("announce partition in use")
		if err := d.Machine.Announce(ctx, o.Disk); err != nil {
			return o, err
		}
	}
	o.Volume, err = d.Machine.Device(o.Part())
	return o, err
}
