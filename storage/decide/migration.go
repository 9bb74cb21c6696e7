package decide

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"cambium/storage/identity"
)

// Migration describes the disks as observed before the store is migrated.
type Migration struct {
	Store, Target string // directories
	// From and To are the disks mounted there, with what they say; without a CID if none is.
	From, To Disk
	// WantFrom and WantTo name the disks of the call; empty stands for any.
	WantFrom, WantTo string
	Recorded         string // the disk that is on record as the store
	// Known are the disks that settings and hints name.
	Known []string
}

// MigrationAction is the decision about a call of migrate_disk.
type MigrationAction int

// The actions.
const (
	RefuseMigration MigrationAction = iota
	CopyStore                       // from the first byte
	AlreadyMigrated                 // a repeated call after success
)

// Migrate decides about a call of migrate_disk. Whatever does not fit the disks that are mounted is refused, with the
// call that has to come first.
func Migrate(o Migration) (MigrationAction, error) {
	from, to := o.From.CID, o.To.CID
	switch {
	case to == "" && from != "":
		return repeatedMigration(o)
	case to != "" && o.WantTo != "" && o.WantTo != to:
		return RefuseMigration, fmt.Errorf("%s is on %s, not %s: run unmount_disk %s first", to, o.Target, o.WantTo, to)
	case from == "" && to != "" && o.Recorded == to: // another agent records a disk before it is complete
		return RefuseMigration, fmt.Errorf("nothing is mounted on %s, and nothing shows that %s is a complete copy: "+
			"run mount_disk %s first", o.Store, to, cmp.Or(o.WantFrom, "for the old disk"))
	case from == "" && o.Recorded != "":
		return RefuseMigration, fmt.Errorf("nothing is mounted on %s: run mount_disk %s first", o.Store, o.Recorded)
	case from == "":
		return RefuseMigration, fmt.Errorf("nothing is mounted on %s", o.Store)
	case o.Recorded == to:
		return RefuseMigration, fmt.Errorf("%s is on record as the store and %s is mounted there: run mount_disk %s first", to, from, from)
	case from == to:
		return RefuseMigration, fmt.Errorf("%s is both the store and the migration target", to)
	case o.WantFrom != "" && o.WantFrom != from:
		return RefuseMigration, fmt.Errorf("%s is on %s, not %s", from, o.Store, o.WantFrom)
	case o.From.FileSystem != "" && strings.EqualFold(o.From.FileSystem, o.To.FileSystem):
		return RefuseMigration, fmt.Errorf("%s is a clone of %s: both have the file system %s. To replace it by a copy, "+
			"run unmount_disk %s and 'agent disk format %s --yes', and mount_disk and migrate_disk again", to, from,
			o.From.FileSystem, to, to)
	}
	return CopyStore, nil
}

// repeatedMigration answers a repeated call after success as the first one: the disk on the store says what it was
// copied from. Another disk shows that a caller without names means the next migration.
func repeatedMigration(o Migration) (MigrationAction, error) {
	from := o.From.CID
	origin := o.From.Said.Origin.CID
	next := o.WantTo == "" && o.WantFrom == "" &&
		slices.ContainsFunc(o.Known, func(cid string) bool { return cid != from && cid != origin })
	if o.From.used() && from == o.Recorded && origin != "" && (o.WantTo == "" || o.WantTo == from) &&
		(o.WantFrom == "" || o.WantFrom == origin) && !next {
		return AlreadyMigrated, nil
	}
	return RefuseMigration, fmt.Errorf("nothing is mounted on %s: run mount_disk %s first", o.Target,
		cmp.Or(o.WantTo, "for the new disk"))
}

// Begin decides what a migration target says while it is an incomplete copy. empty says that it has no content. What an
// earlier attempt at the same copy has left is its own beginning, as long as the disk has not been the store.
func Begin(from, to Disk, empty bool) (identity.Store, error) {
	s := identity.Store{CID: to.CID, FileSystem: to.FileSystem, Incomplete: true, Empty: empty,
		Origin: identity.Origin{CID: from.CID, FileSystem: from.FileSystem}}
	if from.Said.CID == from.CID {
		s.Origin.Generation = from.Said.Generation
	}
	same := to.Said.CID == to.CID && to.Said.Of(from.CID, from.FileSystem)
	switch {
	case to.Said.Strange != nil:
		return s, fmt.Errorf("what %s says about itself is not understood (%w): %s", to.CID, to.Said.Strange, keepIt(to.CID))
	case to.Said.Incomplete && !same:
		return s, fmt.Errorf("%s holds an incomplete copy of %s, not of this %s: %s", to.CID,
			cmp.Or(to.Said.Origin.CID, "another disk"), from.CID, keepIt(to.CID))
	case same && (to.Said.Incomplete || to.unused()):
		s.Empty = to.Said.Empty
	}
	return s, nil
}

func keepIt(cid string) string {
	return fmt.Sprintf("run 'agent disk accept %s --yes' and mount_disk %s to keep what is on it, and migrate_disk again",
		cid, cid)
}

// Usage counts the bytes and files that a store holds, or for which a disk has room.
type Usage struct{ Bytes, Files int64 }

// CheckRoom refuses a target that is too small before the first byte is copied. reusable counts what an earlier attempt
// has left there, which is removed; countsFiles is false for file systems without a fixed number of inodes.
func CheckRoom(need, free, reusable Usage, countsFiles bool) error {
	free.Bytes += reusable.Bytes
	free.Files += reusable.Files
	if need.Bytes > free.Bytes {
		return fmt.Errorf("the new disk is too small: %d MiB are used on the old one, %d MiB are free", need.Bytes>>20, free.Bytes>>20)
	}
	if countsFiles && need.Files > free.Files {
		return fmt.Errorf("the new disk has too few inodes: %d are used on the old one, %d are free", need.Files, free.Files)
	}
	return nil
}
