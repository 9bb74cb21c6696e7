package persistent

import (
	"context"
	"errors"
	"io"
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

// observe looks at a disk that is not mounted, and changes nothing on it. With announce set, the kernel is told of
// its partitions.
func (d *Disks) observe(ctx context.Context, p settings.PersistentDisk, dev device.Device, announce bool) (o decide.Persistent, err error) {
	o = decide.Persistent{CID: p.CID, Serial: machine.Serial(dev.Number), Label: d.Label, FileSystem: filesystem.Ext4,
		MountOptions: p.MountOptions, AllowForeign: d.Foreign() == "format", Preformatted: d.Preformatted}
	if p.FileSystem != "" {
		o.FileSystem = filesystem.Kind(p.FileSystem)
	}
	if p.Partitioner != "" {
		o.Label = LabelOf(p.Partitioner)
	}
	o.Hardware = machine.HardwareOf(dev.Number, p.CID)
	if o.Records, err = d.Machine.Identities.All(); err != nil {
		return o, err
	}
	if d.Preformatted {
		if err := d.observePreformatted(&o, dev.Path); err != nil {
			return o, err
		}
		o.DuplicateUUID, err = duplicateUUID(dev.Path, o.Volume.Content)
		return o, err
	}
	o.Disk, err = disk.Inspect(dev.Path)
	if errors.Is(err, disk.ErrDamaged) {
		o.Damaged = err
		return o, nil
	}
	if err != nil {
		return o, err
	}
	table := o.Disk.Table
	if table.Label != disk.None && len(table.Partitions) == 0 {
		o.Earlier, err = usualPlaces(dev.Path)
	}
	if len(table.Partitions) == 1 {
		err = d.observePartition(ctx, &o, announce)
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
	if o.Volume, err = d.Machine.Volume(o.Disk, o.Disk.Table.Partitions[0].Number); err != nil {
		return err
	}
	if o.Volume.Content.Data() {
		if o.DuplicateUUID, err = duplicateUUID(o.Part(), o.Volume.Content); err != nil {
			return err
		}
	}
	if o.Pending, err = d.Machine.Intents.Pending(o.CID, o.Disk.Table); err != nil || !o.Pending || !o.Volume.Content.Data() {
		return err
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
		// The kernel may know less than the table says: the agent may have been killed before it told.
		d.Machine.CrashPoint("announce partition in use")
		if err := d.Machine.Announce(ctx, o.Disk); err != nil {
			return o, err
		}
	}
	o.Volume, err = d.Machine.Device(o.Part())
	return o, err
}

// usualPlaces looks where partitions of all ages begin: sector 1, sector 63, 1 MiB.
func usualPlaces(path string) (filesystem.Content, error) {
	f, err := os.Open(path)
	if err != nil {
		return filesystem.Content{}, err
	}
	defer f.Close()
	size, err := blkdev.Size(f)
	if err != nil {
		return filesystem.Content{}, err
	}
	for _, start := range []int64{512, 63 * 512, disk.MiB} {
		if start >= size {
			continue
		}
		c, err := filesystem.Identify(io.NewSectionReader(f, start, size-start), size-start)
		if err != nil {
			return c, err
		}
		// Seen from a little later, the table itself looks like content.
		if c.Data() || !c.Blank() && start == disk.MiB && c.Kind != filesystem.GPT {
			return c, nil
		}
	}
	return filesystem.Content{Kind: filesystem.Blank}, nil
}
