package decide

import (
	"errors"
	"fmt"

	"cambium/storage/internal/intent"
)

// Placing is what was observed before a persistent disk is mounted.
type Placing struct {
	CID      string
	Recorded string // the disk that is on record as the store
	// Open is the migration that is not complete; the zero value if there is none.
	Open intent.Intent

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
	case o.MountedOn == o.Store || o.MountedOn == o.MigrationTarget:
		at = Placement{Directory: o.MountedOn, Mounted: true}
	case o.MountedOn != "":
		return Placement{}, fmt.Errorf("it is mounted on %s", o.MountedOn)
	case o.StoreTaken && o.TargetTaken:
		return Placement{}, errors.New("store and migration target are both in use: run unmount_disk of one of their disks first")
	case o.StoreTaken:
		at.Directory = o.MigrationTarget
	}
	at.RecordAsStore, at.ForgetMigrated = at.Directory == o.Store, at.Directory == o.MigrationTarget
	if at.RecordAsStore {
		return at, refuseIncompleteCopy(o)
	}
	return at, nil
}

// refuseIncompleteCopy refuses the store to a disk that a migration was copying to and did not complete.
func refuseIncompleteCopy(o Placing) error {
	if !o.Open.Moves(o.CID) || o.Recorded == o.CID {
		return nil
	}
	source := o.Open.Source(o.CID)
	return fmt.Errorf("it holds an incomplete copy of %s: run mount_disk %s first, or remove_persistent_disk %s if that disk is gone", source, source, source)
}

// Interrupted is what was observed about a disk that is mounted while a migration is on record.
type Interrupted struct {
	CID      string
	Recorded string
	Open     intent.Intent
	// OnStore says that the directory it was found on is the store.
	OnStore bool
	// StoreIsFree and StoreIsSame say what is on the store: nothing, or the same file system.
	StoreIsFree, StoreIsSame bool
}

// Resumption is what brings an interrupted migration into a usable state.
type Resumption int

// The resumptions.
const (
	NothingToResume Resumption = iota
	CompleteSwitch             // the new disk is complete and on record: it takes the old one's place
	MakeWritable               // the store was made read-only for a copy that ended early
)

// Resume puts a disk that is mounted already where its record says.
func Resume(o Interrupted) Resumption {
	switch {
	case o.Open.Table == "":
		return NothingToResume
	case o.Recorded == o.CID && o.Open.Moves(o.CID) && (o.StoreIsSame || o.StoreIsFree):
		return CompleteSwitch
	case o.OnStore:
		return MakeWritable
	}
	return NothingToResume
}
