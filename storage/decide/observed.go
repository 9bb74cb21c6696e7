package decide

import (
	"errors"
	"fmt"
	"slices"

	"cambium/storage/record"
)

// Surroundings describes what was observed around a persistent disk: records, mount points and other disks.
type Surroundings struct {
	Record record.Record
	// ManagedCID is the CID in managed_disk_settings.json, which other agents write, too. Unreadable is the error if
	// the file contains none.
	ManagedCID string
	Unreadable error
	// Known lists the CIDs in settings and hints, in order.
	Known []string
	// Store and MigrationTarget are mount points.
	Store, MigrationTarget string
	// StoreTaken and TargetTaken are set if anything is mounted there. OnStore and OnTarget are the CIDs of the known
	// disks that are visible there. Foreign describes anything else visible on the store.
	StoreTaken, TargetTaken    bool
	OnStore, OnTarget, Foreign string
	// OnStoreIs describes the disk that is visible on the store.
	OnStoreIs Disk
	// Directories is set if persistent disks are bind-mounted directories, which have no identity.
	Directories bool
}

// Observed holds all facts on which the decision about a persistent disk depends. They are collected under the lock,
// without writing.
type Observed struct {
	Surroundings
	Persistent
	// Absent is the error if the device was not found. The fields about the device are then empty.
	Absent error
	// Directory is set if the hint leads to a directory.
	Directory bool
	// MountedOn is the disk's mount point, or "".
	MountedOn string
	// Found is the disk's identity as observed.
	Found record.Disk
	// MountedFor is the CID of the disk mounted on the store or the migration target, if it is on this device.
	MountedFor string
	// Elsewhere lists the CIDs of other disks in settings and hints whose hints do not lead to this device. Leftover
	// lists those whose hints do.
	Elsewhere, Leftover []string
	// Statement is the disk's statement about itself, as far as it was read.
	Statement Statement
	// Unknown is set if the statement cannot be read before the disk's journal is replayed.
	Unknown bool
	// Boot is set if the disk is mounted at boot because it was the store. It must not be formatted then.
	Boot bool
}

// Request returns the operator's request about the disk, or "".
func (o Observed) Request() record.Action { return o.Record.Asked[o.CID] }

// InspectDisks is returned by StoreDisk instead of a CID if the disks themselves must be inspected.
const InspectDisks = "."

// StoreDisk returns the CID of the disk to mount at boot, or "" for none. A recorded disk that is not among the known
// ones is an error. If no disks are known and the recorded one has no identity on record, it is a warning:
// cloudfoundry/bosh-agent may have left the record of a removed disk.
func StoreDisk(a Surroundings) (cid, warning string, err error) {
	recorded, _ := a.Record.StoreDisk(a.ManagedCID)
	accepted := a.Record.Accepted()
	if !slices.Contains(a.Known, accepted) {
		accepted = ""
	}
	_, identified := a.Record.Disks[recorded]
	switch {
	case accepted != "":
		return accepted, "", nil // an operator accepted the disk
	case a.Unreadable != nil:
		return "", "", a.Unreadable
	case a.OnStore != "":
		return a.OnStore, "", nil
	case recorded == "" && len(a.Record.Disks) == 0 && len(a.Known) > 0: // the record is lost, or the machine is new
		return InspectDisks, "", nil
	case recorded == "" || slices.Contains(a.Known, recorded):
		return recorded, "", nil
	case len(a.Known) == 0 && !identified:
		return "", fmt.Sprintf("persistent disk %s was mounted last, but is in neither settings nor hints: "+
			"the store is empty", recorded), nil
	}
	return "", "", fmt.Errorf("persistent disk %s was mounted last, but is in neither settings nor hints: "+
		"run mount_disk, or 'agent disk release %s' if it is gone", recorded, recorded)
}

// placement is the mount point for a persistent disk.
type placement struct {
	Directory string
	// Mounted is set if the disk is already there.
	Mounted bool
	// Leaves is the mount point from which to unmount the disk first, or "".
	Leaves string
}

// place decides where to mount a disk: on the store or, if another known disk is there, on the migration target.
// Anything else visible on the store is an error even if the disk is mounted beneath it, since jobs use what is
// visible.
func place(o Observed) (placement, error) {
	at := placement{Directory: o.Store}
	switch stale := map[string]string{o.OnStore: o.Store, o.OnTarget: o.MigrationTarget}[o.CID]; {
	case stale != "" && o.MountedOn == "" && !o.Directories:
		return placement{}, fmt.Errorf(
			"it is mounted on %s from a device that is not the one that is attached now, as "+
				"after it was unplugged: run unmount_disk %s first",
			stale,
			o.CID,
		)
	case o.Foreign != "":
		return placement{}, fmt.Errorf("%s is mounted on %s and is not a known persistent disk: "+
			"unmount it (umount %s) and run mount_disk %s", o.Foreign, o.Store, o.Store, o.CID)
	case o.MountedFor != "" && o.MountedFor != o.CID:
		return placement{}, &Refusal{o.Disk.Path, "it is persistent disk " + o.MountedFor + ", which is mounted",
			"Attach the right disk, or run unmount_disk " + o.MountedFor}
	case o.MountedOn == o.Store && o.OnStore != "" && o.OnStore != o.CID:
		return placement{}, fmt.Errorf("disk %s is mounted on top of it on %s: run unmount_disk %s first",
			o.OnStore, o.Store, o.OnStore)
	case o.MountedOn == o.Store, o.MountedOn == o.MigrationTarget && o.StoreTaken:
		at = placement{Directory: o.MountedOn, Mounted: true}
	case o.MountedOn == o.MigrationTarget:
		at.Leaves = o.MountedOn
	case o.MountedOn != "":
		return placement{}, fmt.Errorf("it is mounted on %s: unmount it there (umount %s)", o.MountedOn, o.MountedOn)
	case o.StoreTaken && o.TargetTaken:
		return placement{}, errors.New(
			"store and migration target are both in use: run unmount_disk for one of the two disks first")
	case o.StoreTaken:
		at.Directory = o.MigrationTarget
	}
	return at, nil
}

// MountDisk plans how to mount a persistent disk, for mount_disk and at boot. A disk with a file system of ours is
// grown if it became larger, mounted and recorded. A blank disk is prepared first, and an unfinished one of ours
// completed. Any other disk is refused.
func MountDisk(o Observed) (Plan, error) {
	switch {
	case o.Absent != nil:
		return Plan{Changes: []Change{{Op: Await, Device: "persistent disk " + o.CID, Proof: o.Absent.Error(),
			What: "wait for it"}}}, nil
	case o.Directory && !o.Directories:
		return Plan{}, fmt.Errorf("%s is not a block device: correct the disk's hint", o.Disk.Path)
	case !o.Directory && o.Directories:
		return Plan{}, fmt.Errorf(
			"%s is not a directory, which BindMountPersistentDisk requires: correct the disk's hint", o.Disk.Path)
	}
	at, err := place(o)
	if err != nil {
		return Plan{}, err
	}
	onStore := at.Directory == o.Store
	p, err := o.prepare(at)
	if err != nil {
		return Plan{}, err
	}
	p.Directory, p.Leave, p.Stale = at.Directory, at.Leaves, o.Leftover
	p.Placed = Placed{CID: o.CID, Store: onStore}
	return p, nil
}

// CheckTarget refuses a migration target that identifies itself as another known disk. A clone of the store is
// accepted.
func CheckTarget(d Disk, a Surroundings, elsewhere []string) error {
	if x := d.Statement.CID; x != "" && x != d.CID && x != a.OnStore && slices.Contains(elsewhere, x) &&
		a.Record.Asked[d.CID] == "" {
		return &Refusal{d.Path, "it says that it is persistent disk " + x,
			"Attach the right disk, or, if this is the right one, " + accept(d.CID)}
	}
	return nil
}

// prepare plans the changes to a disk for its placement.
func (o Observed) prepare(at placement) (p Plan, err error) {
	switch {
	case at.Mounted && o.Request() == record.Format:
		return p, fmt.Errorf("an operator asked to format it, but it is mounted on %s: run unmount_disk %s first",
			at.Directory, o.CID)
	case o.Directories && !at.Mounted:
		p.add(Change{Op: BindMount, Device: o.Disk.Path, Proof: "persistent disk " + o.CID,
			What: "bind to " + at.Directory, Target: at.Directory})
		return p, nil
	case at.Mounted:
		if !o.Directories {
			if err := checkIdentity(o.CID, o.Disk.Path, o.Record, o.Found); err != nil {
				return p, err
			}
			p = GrowMounted(o.Persistent, at.Directory)
		}
		// A migration was interrupted while the store was read-only.
		p.MakeWritable = at.Directory == o.Store && o.Record.ReadOnly
		return p, nil
	}
	if p, err = MountPersistent(o.Persistent, o.Record, at.Directory); err != nil {
		return p, err
	}
	if i := slices.IndexFunc(p.Changes, Change.formats); o.Boot && o.Request() != record.Format && i >= 0 {
		// It holds no store: jobs would begin with an empty one.
		return Plan{}, &Refusal{o.Disk.Path,
			"it was mounted last and would have to be formatted, which is not done at boot (" +
				p.Changes[i].Proof + ")",
			"Attach the right disk: " + o.CID + " holds the store. " + giveUp(o.CID)}
	}
	return p, nil
}

// formats reports whether the change leaves an empty disk.
func (c Change) formats() bool { return c.Op == CreateTable || c.Op == MakeFileSystem }

// Formats reports whether the plan leaves an empty disk.
func (p Plan) Formats() bool { return slices.ContainsFunc(p.Changes, Change.formats) }

// Describe tells an operator what formatting a disk would destroy.
func Describe(o Observed) string {
	text := fmt.Sprintf("%s: %s; %s", o.Disk.Path, found(o.Disk, o.Serial), judge(o.Persistent).Proof)
	if sb := o.superblock(); sb != "" {
		text += ", " + sb
	}
	if of, _, known := o.Record.Find(o.CID, o.Volume.Content.UUID, o.Disk.Table.GUID); known {
		text += ", on record as the store of " + of
	}
	if o.MountedOn != "" {
		text += ", mounted on " + o.MountedOn
	}
	return text
}
