package decide

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Placing is what was observed before a persistent disk is mounted.
type Placing struct {
	CID string
	LastStore

	Store, MigrationTarget string // directories
	// MountedOn is where the disk is mounted; empty if nowhere.
	MountedOn string
	// StoreTaken and TargetTaken are set when something else is there.
	StoreTaken, TargetTaken bool
	// OnStore is the known disk that is visible on the store, and Foreign what is visible there that is none.
	OnStore, Foreign string
}

// Placement is where a persistent disk goes.
type Placement struct {
	Directory string
	// Mounted is set when it is there already.
	Mounted bool
	// Leaves is the directory that it is unmounted from first.
	Leaves string
	// ForgetMigrated ends the record of the last migration: what is about to be migrated has not been.
	ForgetMigrated bool
	// RecordAsStore is set for the store: a disk that is only the target of a migration must never come back as the
	// store after a reboot.
	RecordAsStore bool
}

// Place decides where a disk is mounted: on the store, or, where another known disk is there, on the migration target.
// Jobs use what is visible on the store: that something else is there is an error, also where the disk is mounted
// beneath it.
func Place(o Placing) (Placement, error) {
	at := Placement{Directory: o.Store}
	switch {
	case o.Foreign != "":
		return Placement{}, fmt.Errorf("%s is mounted on %s and is not a known persistent disk: "+
			"unmount it (umount %s) and run mount_disk %s", o.Foreign, o.Store, o.Store, o.CID)
	case o.MountedOn == o.Store && o.OnStore != "" && o.OnStore != o.CID:
		return Placement{}, fmt.Errorf("disk %s is mounted on top of it on %s: run unmount_disk %s first",
			o.OnStore, o.Store, o.OnStore)
	case o.MountedOn == o.Store, o.MountedOn == o.MigrationTarget && o.StoreTaken:
		at = Placement{Directory: o.MountedOn, Mounted: true}
	case o.MountedOn == o.MigrationTarget:
		at.Leaves = o.MountedOn
	case o.MountedOn != "":
		return Placement{}, fmt.Errorf("it is mounted on %s", o.MountedOn)
	case o.StoreTaken && o.TargetTaken:
		return Placement{}, errors.New("store and migration target are both in use: run unmount_disk of one of their disks first")
	case o.StoreTaken:
		at.Directory = o.MigrationTarget
	}
	at.RecordAsStore, at.ForgetMigrated = at.Directory == o.Store, at.Directory == o.MigrationTarget
	if at.RecordAsStore && !at.Mounted && o.Recorded == o.CID {
		return at, o.doubt()
	}
	return at, nil
}

// LastStore is what is known about the disk that was mounted last.
type LastStore struct {
	Recorded string // its CID; empty if there is none
	// Known are the disks that settings and hints name.
	Known []string
	// OnRecord says that its identity is on record: it has been a store of this agent, or an operator has accepted it.
	OnRecord bool
	// Accepted is the only disk that an operator has accepted.
	Accepted string
	// Mounted says that a disk is on the store.
	Mounted bool
	// Directories says that disks are directories, which have no identity.
	Directories bool
}

// MountLast decides which disk is mounted at boot; none if it is empty. A record of one that is not among those known
// is an error. Where none is known at all and its identity is not on record, cloudfoundry/bosh-agent may have left the
// record of a disk that was removed: that is a warning.
func MountLast(o LastStore) (cid, warning string, err error) {
	switch {
	case o.Recorded == "":
		return "", "", nil
	case slices.Contains(o.Known, o.Recorded):
		err := o.doubt()
		if err != nil && slices.Contains(o.Known, o.Accepted) {
			return o.Accepted, "", nil
		}
		return o.Recorded, "", err
	case len(o.Known) == 0 && !o.OnRecord:
		return "", fmt.Sprintf("persistent disk %s was mounted last and is no longer known: the store is empty",
			o.Recorded), nil
	}
	return "", "", fmt.Errorf("persistent disk %s was mounted last and is not among those known: run mount_disk, or "+
		"'agent disk release %s' if it is gone", o.Recorded, o.Recorded)
}

// doubt refuses the disk that was mounted last where it may be half a copy: cloudfoundry/bosh-agent records a new disk
// before the store is copied to it. What that agent has mounted on the store is the store, and so is a new disk whose
// old one is gone.
func (o LastStore) doubt() error {
	if o.OnRecord || o.Mounted || o.Directories || len(o.Known) < 2 {
		return nil
	}
	accepts := make([]string, len(o.Known))
	for i, cid := range o.Known {
		accepts[i] = "'agent disk accept " + cid + "'"
	}
	return fmt.Errorf("persistent disks %s are attached, and %s, which is on record as mounted last, "+
		"may be an incomplete copy: another agent recorded it, and this one has never had it as the store. "+
		"For the disk that holds all data, run %s",
		strings.Join(o.Known, " and "), o.Recorded, strings.Join(accepts, " or "))
}
