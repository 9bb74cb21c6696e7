package decide

import (
	"errors"
	"fmt"
	"slices"

	"cambium/storage/record"
)

// Surroundings describes the surroundings of a single persistent disk as observed: records, directories, and the disks
// that exist.
type Surroundings struct {
	Record record.Record
	// ManagedCID is the disk named in managed_disk_settings.json; other agents write that file, too. Unreadable says why
	// it names none.
	ManagedCID string
	Unreadable error
	// Known are the disks that settings and hints name, in order.
	Known []string
	// Store and MigrationTarget are directories.
	Store, MigrationTarget string
	// StoreTaken and TargetTaken are set when something is mounted there. OnStore and OnTarget name the known disks
	// that are visible there, and Foreign describes anything else visible on the store.
	StoreTaken, TargetTaken    bool
	OnStore, OnTarget, Foreign string
	// OnStoreIs is the disk that is visible on the store, with what it says.
	OnStoreIs Disk
	// Directories says that disks are directories, which have no identity.
	Directories bool
}

// Observed is everything that was seen of one persistent disk and around it, before a decision about it. One function
// takes it, under the lock, and only reads.
type Observed struct {
	Surroundings
	Persistent
	// Absent says why the disk's device was not found. Nothing else is known of the disk then.
	Absent error
	// Directory is set when the hint leads to a directory.
	Directory bool
	// MountedOn is the disk's mount point; empty if there is none.
	MountedOn string
	// Found is the disk's identity as observed.
	Found record.Disk
	// MountedFor is the disk that is mounted on the store or the migration target, if that is this device.
	MountedFor string
	// Elsewhere lists the other disks that settings or hints name and whose hint does not lead to this device. Leftover
	// lists those whose hint does.
	Elsewhere, Leftover []string
	// Said is the disk's statement about itself, as far as it has been read.
	Said Said
	// Unknown is set if that statement cannot be read until the disk's journal is replayed.
	Unknown bool
	// Boot is set when the disk is mounted because it was the store: then it is not formatted.
	Boot bool
}

// Request returns the operator's request about the disk; empty if there is none.
func (o Observed) Request() record.Action { return o.Surroundings.Record.Asked[o.CID] }

// Pick is the CID by which StoreDisk asks for the disks themselves to be looked at.
const Pick = "."

// StoreDisk decides which disk is mounted at boot; none if it is empty. A record of one that is not among those known
// is an error. Where none is known at all and its identity is not on record, cloudfoundry/bosh-agent may have left the
// record of a disk that was removed: that is a warning.
func StoreDisk(a Surroundings) (cid, warning string, err error) {
	recorded, _ := a.Record.StoreDisk(a.ManagedCID)
	accepted := a.Record.Accepted()
	if !slices.Contains(a.Known, accepted) {
		accepted = ""
	}
	_, identified := a.Record.Disks[recorded]
	switch {
	case accepted != "":
		return accepted, "", nil // an operator has named the disk
	case a.Unreadable != nil:
		return "", "", a.Unreadable
	case a.OnStore != "":
		return a.OnStore, "", nil
	case recorded == "" && len(a.Record.Disks) == 0 && len(a.Known) > 0: // lost, or of a new machine: the disks tell
		return Pick, "", nil
	case recorded == "" || slices.Contains(a.Known, recorded):
		return recorded, "", nil
	case len(a.Known) == 0 && !identified:
		return "", fmt.Sprintf("persistent disk %s was mounted last, but is in neither settings nor hints: "+
			"the store is empty", recorded), nil
	}
	return "", "", fmt.Errorf("persistent disk %s was mounted last, but is in neither settings nor hints: "+
		"run mount_disk, or 'agent disk release %s' if it is gone", recorded, recorded)
}

// placement is the mount point chosen for a persistent disk.
type placement struct {
	Directory string
	// Mounted is set when the disk is there already.
	Mounted bool
	// Leaves is the directory from which it is unmounted first; empty if there is none.
	Leaves string
}

// place decides where a disk is mounted: on the store, or, where another known disk is there, on the migration target.
// Jobs use what is visible on the store: that something else is there is an error, also where the disk is mounted
// beneath it.
func place(o Observed) (placement, error) {
	at := placement{Directory: o.Store}
	switch stale := map[string]string{o.OnStore: o.Store, o.OnTarget: o.MigrationTarget}[o.CID]; {
	case stale != "" && o.MountedOn == "" && !o.Directories:
		return placement{}, fmt.Errorf("it is mounted on %s from a device that is not the one that is attached now, as "+
			"after it was unplugged: run unmount_disk %s first", stale, o.CID)
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
		return placement{}, errors.New("store and migration target are both in use: run unmount_disk for one of the two disks first")
	case o.StoreTaken:
		at.Directory = o.MigrationTarget
	}
	return at, nil
}

// MountDisk decides about mounting a persistent disk, for mount_disk and for a boot: it is prepared if it is blank,
// completed if it is ours and unfinished, grown if it became larger, mounted, and put on record, or refused.
func MountDisk(o Observed) (Plan, error) {
	switch {
	case o.Absent != nil:
		return Plan{Changes: []Change{{Op: Await, Device: "persistent disk " + o.CID, Proof: o.Absent.Error(),
			What: "wait for it"}}}, nil
	case o.Directory && !o.Directories:
		return Plan{}, fmt.Errorf("%s is not a block device: correct the disk's hint", o.Disk.Path)
	case !o.Directory && o.Directories:
		return Plan{}, fmt.Errorf("%s is not a directory, which BindMountPersistentDisk requires: correct the disk's hint", o.Disk.Path)
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

// CheckTarget refuses a disk as the target of a migration that says that it is another one. A clone of the store may be
// mounted there.
func CheckTarget(d Disk, a Surroundings, elsewhere []string) error {
	if x := d.Said.CID; x != "" && x != d.CID && x != a.OnStore && slices.Contains(elsewhere, x) &&
		a.Record.Asked[d.CID] == "" {
		return &Refusal{d.Path, "it says that it is persistent disk " + x,
			"Attach the right disk, or, if this is the right one, " + accept(d.CID)}
	}
	return nil
}

// prepare decides about the disk where it is to be mounted.
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
			if err := checkIdentity(o.CID, o.Disk.Path, o.Surroundings.Record, o.Found); err != nil {
				return p, err
			}
			p = GrowMounted(o.Persistent, at.Directory)
		}
		// A migration was interrupted while the store was read-only.
		p.MakeWritable = at.Directory == o.Store && o.Surroundings.Record.ReadOnly
		return p, nil
	}
	if p, err = MountPersistent(o.Persistent, at.Directory); err != nil {
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

// formats reports a change that makes an empty disk.
func (c Change) formats() bool { return c.Op == CreateTable || c.Op == MakeFileSystem }

// Formats reports a plan that makes an empty disk.
func (p Plan) Formats() bool { return slices.ContainsFunc(p.Changes, Change.formats) }

// Describe tells an operator what would be lost by formatting a disk.
func Describe(o Observed) string {
	text := fmt.Sprintf("%s: %s; %s", o.Disk.Path, found(o.Disk, o.Serial), judge(o.Persistent).Proof)
	if sb := o.superblock(); sb != "" {
		text += ", " + sb
	}
	if of, _, known := o.Surroundings.Record.Known(o.CID, o.Volume.Content.UUID, o.Disk.Table.GUID); known {
		text += ", on record as the store of " + of
	}
	if o.MountedOn != "" {
		text += ", mounted on " + o.MountedOn
	}
	return text
}
