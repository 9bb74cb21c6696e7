package persistent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"cambium/internal/blkdev"
	"cambium/platform/device"
	"cambium/platform/disk"
	"cambium/platform/disk/layout"
	"cambium/platform/filesystem"
	"cambium/platform/filesystem/probe"
	"cambium/platform/mount"
	"cambium/settings"
	"cambium/storage/decide"
	"cambium/storage/internal/machine"
	"cambium/storage/record"
)

// surroundings describes what was observed around all persistent disks.
type surroundings struct {
	decide.Surroundings
	known map[string]settings.PersistentDisk
	// resolved maps each known disk to the device to which its hint leads, found without waiting.
	resolved map[string]resolved
	// owners maps the IDs of mounts on the store and the migration target to CIDs.
	owners map[int]string
	// onTarget is the disk that is visible on the migration target.
	onTarget decide.Disk
	// storeNumber and targetNumber are the device numbers of the visible mounts.
	storeNumber, targetNumber blkdev.Number
	// unread is the error of reading the disk record.
	unread error
}

type resolved struct {
	device.Device
	err error
}

// observeSurroundings observes everything except the content of a single disk. It leaves out the records of released
// disks from the result, without changing the file.
func (d *Disks) observeSurroundings() (v surroundings, err error) {
	v = surroundings{Surroundings: decide.Surroundings{Store: d.Machine.Dirs.Store(),
		MigrationTarget: d.Machine.Dirs.StoreMigrationTarget(), Directories: d.BindMounted},
		known: d.Known.Disks(), resolved: map[string]resolved{}, owners: map[int]string{}}
	v.Known = slices.Sorted(maps.Keys(v.known))
	for _, cid := range v.Known {
		dev, err := d.Resolver.ResolveOnce(d.hint(v.known[cid]))
		v.resolved[cid] = resolved{dev, err}
	}
	if v.Record, v.unread = d.Machine.ReadRecord(); v.unread != nil {
		v.Record = record.New()
	}
	v.ManagedCID, v.Unreadable = d.Known.ManagedCID()
	for cid, asked := range maps.Clone(v.Record.Asked) {
		if asked != record.Release {
			continue
		}
		_, named := v.known[cid]
		v.Record.Release(cid, named)
		if v.ManagedCID == cid && !named {
			v.ManagedCID = ""
		}
	}
	for _, dir := range []string{v.Store, v.MigrationTarget} {
		if err := d.observeMountsOn(&v, dir); err != nil {
			return v, err
		}
	}
	d.forget(func(decide.Noted) bool { return false }) // make the notes complete, even if empty
	return v, nil
}

// observeMountsOn observes the disks mounted on the store or the migration target, including hidden ones. With bind
// mounts, only the visible directory can be identified.
func (d *Disks) observeMountsOn(v *surroundings, dir string) error {
	taken, owner := &v.TargetTaken, &v.OnTarget
	if dir == v.Store {
		taken, owner = &v.StoreTaken, &v.OnStore
	}
	all, err := mount.AllAt(dir)
	for i, e := range all {
		top := i == len(all)-1
		if d.BindMounted && !top {
			continue
		}
		on := d.owner(*v, dir, e)
		if v.owners[e.ID] = on.CID; on.CID != "" {
			d.note(on.CID, e, dir == v.Store)
		}
		if !top {
			continue
		}
		*taken, *owner = true, on.CID
		switch {
		case dir == v.MigrationTarget:
			v.onTarget, v.targetNumber = on, e.Number
		case on.CID == "":
			v.Foreign = fmt.Sprintf("%s (%s)", e.Source, e.Type)
		default:
			v.OnStoreIs, v.storeNumber = on, e.Number
		}
	}
	return err
}

// observeForDecision observes the surroundings. It also fails if the disk record, which decisions need, cannot be read.
func (d *Disks) observeForDecision() (surroundings, error) {
	v, err := d.observeSurroundings()
	return v, errors.Join(err, v.unread)
}

// storeDisk returns the CID of the disk on record as the store, or "".
func (v surroundings) storeDisk() string {
	cid, _ := v.Record.StoreDisk(v.ManagedCID)
	return cid
}

// observe observes a disk without changing its content. With acting set, it announces the partitions to the kernel, and
// leaves the statement of an unmounted disk for when it is mounted; otherwise it reads that without replaying the
// journal.
func (d *Disks) observe(ctx context.Context, v surroundings, p settings.PersistentDisk, dev device.Device,
	acting bool) (o decide.Observed, err error) {
	o = decide.Observed{Surroundings: v.Surroundings, Persistent: d.desiredState(v, p), Directory: dev.Directory}
	o.Disk.Path = dev.Path
	here, elsewhere := v.splitByHint(dev.Number, dev.Path)
	other := func(cid string) bool { return cid == p.CID }
	o.Leftover, o.Elsewhere = slices.DeleteFunc(here, other), slices.DeleteFunc(elsewhere, other)
	if d.BindMounted {
		return o, d.observeDirectory(&o)
	}
	if dev.Directory {
		return o, nil
	}
	if o.MountedOn, err = machine.MountedAt(d.part(dev.Path), v.Store, v.MigrationTarget); err != nil {
		return o, err
	}
	inspected, inspectErr := d.inspect(dev.Path)
	o.Serial = machine.Serial(dev.Number)
	err = d.observeDisk(ctx, &o, inspected, inspectErr, acting)
	o.Found, _ = d.identity(inspected, inspectErr) // the kernel may have known no partition before
	if d.Preformatted {
		o.Disk.Bytes = o.Found.Bytes
	}
	if err != nil {
		return o, err
	}
	return o, d.observeStatement(v, &o, acting)
}

// observeStatement sets the statement of a mounted disk. Unless acting is set, it also reads that of an unmounted one.
func (d *Disks) observeStatement(v surroundings, o *decide.Observed, acting bool) (err error) {
	part := d.part(o.Disk.Path)
	number, err := blkdev.NumberOf(part)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	case o.MountedOn == v.Store && number == v.storeNumber:
		o.MountedFor, o.Statement = v.OnStore, v.OnStoreIs.Statement
	case o.MountedOn == v.MigrationTarget && number == v.targetNumber:
		o.MountedFor, o.Statement = v.OnTarget, v.onTarget.Statement
	case o.MountedOn == "" && !acting:
		o.Statement, o.Unknown = d.readWithoutReplay(part)
	}
	return nil
}

// desiredState returns the desired state of a disk according to settings and agent.json.
func (d *Disks) desiredState(v surroundings, p settings.PersistentDisk) decide.Persistent {
	o := decide.Persistent{CID: p.CID, Label: d.Label, FileSystem: probe.Ext4,
		MountOptions: p.MountOptions,
		AllowForeign: d.Foreign() == "format", AllowNoise: d.Blank() == "noise", Preformatted: d.Preformatted}
	if p.FileSystem != "" {
		o.FileSystem = probe.Kind(p.FileSystem)
	}
	if p.Partitioner != "" {
		o.Label = LabelOf(p.Partitioner)
	}
	return o
}

// observeDirectory observes a disk that is a directory.
func (d *Disks) observeDirectory(o *decide.Observed) (err error) {
	for dir, taken := range map[string]bool{o.Store: o.StoreTaken, o.MigrationTarget: o.TargetTaken} {
		if !taken || !o.Directory {
			continue
		}
		same, err := sameDir(o.Disk.Path, dir)
		if err != nil {
			return err
		}
		if same && o.MountedOn != o.Store {
			o.MountedOn, o.MountedFor = dir, o.OnTarget
			if dir == o.Store {
				o.MountedFor = o.OnStore
			}
		}
	}
	if o.Directory {
		o.Statement, err = readStatementAt(o.Disk.Path, "")
	}
	return err
}

// observeDisk observes the content of a disk. s and err are the result of inspect.
func (d *Disks) observeDisk(ctx context.Context, o *decide.Observed, s layout.State, err error, acting bool) error {
	if d.Preformatted {
		return d.observePreformatted(&o.Persistent, s.Path)
	}
	if o.Disk = s; errors.Is(err, layout.ErrDamaged) {
		o.Damaged, err = err, nil
	}
	switch len(o.Disk.Table.Partitions) {
	case 0:
		if err == nil {
			o.Residue, err = disk.Survey(ctx, o.Disk, decide.PreparingName)
		}
	case 1:
		if err == nil {
			err = d.observePartition(ctx, &o.Persistent, acting)
		}
	}
	if err == nil && decide.NeedsSuperblocks(*o) {
		o.Superblocks, err = disk.SearchSuperblocks(ctx, o.Disk)
	}
	return err
}

// LabelOf returns the type of partition table for a partitioner of the settings or agent.json.
func LabelOf(partitioner string) layout.Label {
	if partitioner == "sfdisk" {
		return layout.MBR
	}
	return layout.GPT
}

func (d *Disks) observePreformatted(o *decide.Persistent, path string) (err error) {
	if o.Volume, err = d.Machine.Device(path); err != nil {
		return err
	}
	o.DuplicateUUID, err = duplicateUUID(path, o.Volume.Content)
	return err
}

// observePartition observes the only partition of a disk.
func (d *Disks) observePartition(ctx context.Context, o *decide.Persistent, acting bool) (err error) {
	if acting {
		// The kernel may lack partitions of the table: an earlier agent may have been killed between writing and
		// announcing it.
		d.Machine.CrashPoint("announce partition")
		if err := d.Machine.Announce(ctx, o.Disk.Path); err != nil {
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
	o.Pending = part.Name == decide.PreparingName
	if o.Volume.Content.Blank() && !o.Pending {
		o.Residue, err = disk.SurveyPartition(ctx, o.Disk, part)
	}
	if err != nil || !o.Pending || !o.Volume.Content.Data() {
		return err
	}
	if o.Volume.InUse {
		o.Finished = true
		return nil
	}
	if acting {
		if err := mount.AwaitIdle(ctx, o.Part()); err != nil {
			return err
		}
	}
	o.Finished, err = filesystem.IsComplete(ctx, o.Part(), o.Volume.Content)
	return err
}
