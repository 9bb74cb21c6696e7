package decide

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"cambium/storage/record"
)

// Around is what was observed beside a single persistent disk: records, directories, and which disks there are.
type Around struct {
	Record record.Record
	// Told is the disk that managed_disk_settings.json names, which other agents write too, and Unreadable why it names
	// none.
	Told       string
	Unreadable error
	// Known are the disks that settings and hints name, in order.
	Known []string
	// Store and MigrationTarget are directories.
	Store, MigrationTarget string
	// StoreTaken and TargetTaken are set when something is mounted there. OnStore and OnTarget are the known disks that
	// are visible there, and Foreign is what else is visible on the store.
	StoreTaken, TargetTaken    bool
	OnStore, OnTarget, Foreign string
	// StorePath is the device of OnStore, and StoreIdentity what that disk was found to be.
	StorePath     string
	StoreIdentity record.Disk
	// Directories says that disks are directories, which have no identity.
	Directories bool
}

// Observed is everything that was seen of one persistent disk and around it, before a decision about it. One function
// takes it, under the lock, and only reads.
type Observed struct {
	Around
	Persistent
	// Absent is why its device was not found. Nothing else is known of the disk then.
	Absent error
	// Directory is set when what was found is a directory.
	Directory bool
	// MountedOn is where the disk is mounted; empty if nowhere.
	MountedOn string
	// Found is what the disk was found to be.
	Found record.Disk
	// Claims are what other disks, and this one, claim of the device.
	Claims Claims
	// Mark is that of an incomplete copy; nil if the disk has none.
	Mark *Mark
	// Boot is set when the disk is mounted because it was the store: then it is not formatted.
	Boot bool
}

// asked is what an operator has asked about the disk.
func (o Observed) asked() record.Action { return o.Around.Record.Asked[o.CID] }

// StoreDisk decides which disk is mounted at boot; none if it is empty. A record of one that is not among those known
// is an error. Where none is known at all and its identity is not on record, cloudfoundry/bosh-agent may have left the
// record of a disk that was removed: that is a warning.
func StoreDisk(a Around) (cid, warning string, err error) {
	recorded, _ := a.Record.StoreDisk(a.Told)
	accepted := a.Record.Accepted()
	if !slices.Contains(a.Known, accepted) {
		accepted = ""
	}
	_, identified := a.Record.Disks[recorded]
	switch {
	case a.Unreadable != nil && accepted == "":
		return "", "", a.Unreadable
	case a.Unreadable != nil:
		return accepted, "", nil // an operator has named the disk
	case recorded == "":
		return "", "", nil
	case slices.Contains(a.Known, recorded):
		err := a.doubt()
		if err != nil && accepted != "" {
			return accepted, "", nil
		}
		return recorded, "", err
	case accepted != "":
		return accepted, "", nil
	case len(a.Known) == 0 && !identified:
		return "", fmt.Sprintf("persistent disk %s was mounted last, but is in neither settings nor hints: "+
			"the store is empty", recorded), nil
	}
	return "", "", fmt.Errorf("persistent disk %s was mounted last, but is in neither settings nor hints: "+
		"run mount_disk, or 'agent disk release %s' if it is gone", recorded, recorded)
}

// doubt refuses the disk that was mounted last where it may be half a copy: cloudfoundry/bosh-agent records a new disk
// before the store is copied to it. What that agent has mounted on the store is the store, and so is a new disk whose
// old one is in neither settings nor hints.
func (a Around) doubt() error {
	recorded, byOther := a.Record.StoreDisk(a.Told)
	if !byOther || a.Record.Asked[recorded] == record.Accept || a.OnStore != "" || a.Directories || len(a.Known) < 2 {
		return nil
	}
	accepts := make([]string, len(a.Known))
	for i, cid := range a.Known {
		accepts[i] = "'agent disk accept " + cid + "'"
	}
	return fmt.Errorf("settings and hints name the persistent disks %s, and %s, which another agent recorded as "+
		"mounted last, may be an incomplete copy: this agent never mounted it on the store. For the disk that holds all data, run %s",
		strings.Join(a.Known, " and "), recorded, strings.Join(accepts, " or "))
}

// placement is where a persistent disk goes.
type placement struct {
	Directory string
	// Mounted is set when it is there already.
	Mounted bool
	// Leaves is the directory that it is unmounted from first.
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
	recorded, _ := o.Around.Record.StoreDisk(o.Told)
	if at.Directory == o.Store && !at.Mounted && recorded == o.CID {
		return at, o.doubt()
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
	if err := o.Claims.check(o.CID, o.Disk.Path, o.asked() == record.Accept); err != nil {
		return Plan{}, err
	}
	at, err := place(o)
	if err != nil {
		return Plan{}, err
	}
	onStore := at.Directory == o.Store
	if err := CheckCopy(o.CID, o.Disk.Path, o.Mark); err != nil && onStore && o.asked() != record.Accept &&
		o.asked() != record.Format {
		return Plan{}, err
	}
	p, err := o.prepare(at)
	if err != nil {
		return Plan{}, err
	}
	p.Directory, p.Leave, p.Stale = at.Directory, at.Leaves, o.Claims.others(o.CID)
	p.Records = Records{CID: o.CID, Store: onStore, Accepted: o.asked() == record.Accept}
	// Another agent may have recorded the disk for the migration target as the store: after a reboot it would become
	// that.
	if recorded, _ := o.Around.Record.StoreDisk(o.Told); !onStore && recorded == o.CID && o.OnStore != "" &&
		o.OnStore != o.CID {
		if err := checkIdentity(o.OnStore, o.StorePath, o.Around.Record, o.StoreIdentity); err != nil {
			return Plan{}, err
		}
		p.Records.Correct = o.OnStore
	}
	return p, nil
}

// prepare decides about the disk where it is to be mounted.
func (o Observed) prepare(at placement) (p Plan, err error) {
	switch {
	case at.Mounted && o.asked() == record.Format:
		return p, fmt.Errorf("an operator asked to format it, but it is mounted on %s: run unmount_disk %s first",
			at.Directory, o.CID)
	case o.Directories && !at.Mounted:
		p.add(Change{Op: BindMount, Device: o.Disk.Path, Proof: "persistent disk " + o.CID,
			What: "bind to " + at.Directory, Target: at.Directory})
		return p, nil
	case at.Mounted:
		if !o.Directories {
			if err := checkIdentity(o.CID, o.Disk.Path, o.Around.Record, o.Found); err != nil {
				return p, err
			}
			p = GrowMounted(o.Persistent, at.Directory)
		}
		// A migration was interrupted while the store was read-only.
		p.MakeWritable = at.Directory == o.Store && o.Around.Record.Migration != (record.Migration{})
		return p, nil
	}
	if p, err = MountPersistent(o.Persistent, at.Directory); err != nil {
		return p, err
	}
	if i := slices.IndexFunc(p.Changes, Change.formats); o.Boot && o.asked() != record.Format && i >= 0 {
		// It holds no store: jobs would begin with an empty one.
		return Plan{}, &Refusal{o.Disk.Path,
			"it was mounted last and would have to be formatted, which is not done at boot (" +
				p.Changes[i].Proof + ")",
			"Attach the right disk, or, to start with an empty one, " + giveUp(o.CID)}
	}
	return p, nil
}

// formats reports a change that makes an empty disk.
func (c Change) formats() bool { return c.Op == CreateTable || c.Op == MakeFileSystem }

// Describe tells an operator what would be lost by formatting a disk.
func Describe(o Observed) string {
	text := fmt.Sprintf("%s: %s; %s", o.Disk.Path, found(o.Disk, o.Serial), judge(o.Persistent).Proof)
	if sb := o.superblock(); sb != "" {
		text += ", " + sb
	}
	if of, _, known := o.Around.Record.Known(o.CID, o.Volume.Content.UUID, o.Disk.Table.GUID); known {
		text += ", on record as the store of " + of
	}
	if o.MountedOn != "" {
		text += ", mounted on " + o.MountedOn
	}
	return text
}
