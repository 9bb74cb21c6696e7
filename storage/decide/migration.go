package decide

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"cambium/storage/identity"
)

// Migration describes the disks as observed before a migration.
type Migration struct {
	Store, Target string // mount points
	// From and To are the disks mounted there. A CID is empty if no disk is.
	From, To Disk
	// WantFrom and WantTo are the arguments of the call. "" accepts any disk.
	WantFrom, WantTo string
	Recorded         string // CID of the disk on record as the store
	// Known lists the CIDs in settings and hints.
	Known []string
}

// Migrate compares a migrate_disk call with the mounted disks. Its error names the call to make first. done means that
// the migration was completed by an earlier call, and there is nothing to copy.
func Migrate(o Migration) (done bool, err error) {
	from, to := o.From.CID, o.To.CID
	switch {
	case to == "" && from != "":
		return repeatedMigration(o)
	case to != "" && o.WantTo != "" && o.WantTo != to:
		return false, fmt.Errorf("%s is on %s, not %s: run unmount_disk %s first", to, o.Target, o.WantTo, to)
	case from == "" && to != "" && o.Recorded == to: // another agent records a disk before it is complete
		return false, fmt.Errorf("nothing is mounted on %s, and nothing shows that %s is a complete copy: "+
			"run mount_disk %s first", o.Store, to, cmp.Or(o.WantFrom, "for the old disk"))
	case from == "" && o.Recorded != "":
		return false, fmt.Errorf("nothing is mounted on %s: run mount_disk %s first", o.Store, o.Recorded)
	case from == "":
		return false, fmt.Errorf("nothing is mounted on %s", o.Store)
	case o.Recorded == to:
		return false, fmt.Errorf("%s is on record as the store and %s is mounted there: run mount_disk %s first",
			to, from, from)
	case from == to:
		return false, fmt.Errorf("%s is both the store and the migration target", to)
	case o.WantFrom != "" && o.WantFrom != from:
		return false, fmt.Errorf("%s is on %s, not %s", from, o.Store, o.WantFrom)
	case o.From.FileSystem != "" && strings.EqualFold(o.From.FileSystem, o.To.FileSystem):
		return false, fmt.Errorf("%[1]s is a clone of %[2]s: both have the file system %[3]s. To replace it by a copy, "+
			"run unmount_disk %[1]s and 'agent disk format %[1]s --yes', and mount_disk and migrate_disk again",
			to, from, o.From.FileSystem)
	}
	return false, nil
}

// repeatedMigration accepts a call that repeats a successful one: the store names the disk from which it was copied. If
// the call names no disks and another disk is known, the caller wants the next migration.
func repeatedMigration(o Migration) (already bool, err error) {
	from := o.From.CID
	origin := o.From.Statement.Origin.CID
	next := o.WantTo == "" && o.WantFrom == "" &&
		slices.ContainsFunc(o.Known, func(cid string) bool { return cid != from && cid != origin })
	if o.From.used() && from == o.Recorded && origin != "" && (o.WantTo == "" || o.WantTo == from) &&
		(o.WantFrom == "" || o.WantFrom == origin) && !next {
		return true, nil
	}
	return false, fmt.Errorf("nothing is mounted on %s: run mount_disk %s first", o.Target,
		cmp.Or(o.WantTo, "for the new disk"))
}

// BeginCopy returns the statement of a migration target during the copy. empty is set if the disk has no content. If an
// earlier attempt at the same copy has left files, and the disk has not been the store since, Empty stays as in its
// statement.
func BeginCopy(from, to Disk, empty bool) (identity.Store, error) {
	s := identity.Store{CID: to.CID, FileSystem: to.FileSystem, Incomplete: true, Empty: empty,
		Origin: identity.Origin{CID: from.CID, FileSystem: from.FileSystem}}
	if from.Statement.CID == from.CID {
		s.Origin.Generation = from.Statement.Generation
	}
	same := to.Statement.CID == to.CID && to.Statement.IsCopyOf(from.CID, from.FileSystem)
	switch {
	case to.Statement.Err != nil:
		return s, fmt.Errorf("what %s says about itself is not understood (%w): %s", to.CID, to.Statement.Err,
			keepIt(to.CID))
	case to.Statement.Incomplete && !same:
		return s, fmt.Errorf("%s holds an incomplete copy of %s, not of this %s: %s", to.CID,
			cmp.Or(to.Statement.Origin.CID, "another disk"), from.CID, keepIt(to.CID))
	case same && (to.Statement.Incomplete || to.unused()):
		s.Empty = to.Statement.Empty
	}
	return s, nil
}

func keepIt(cid string) string {
	return fmt.Sprintf(
		"run 'agent disk accept %s --yes' and mount_disk %s to keep what is on it, and migrate_disk again", cid,
		cid)
}

// Usage counts bytes and files: those in a store, or those for which a disk has room.
type Usage struct{ Bytes, Files int64 }

// CheckRoom returns an error if the target is too small for the copy. reusable counts the files of an earlier attempt,
// which will be removed. countsFiles is false for file systems without a fixed number of inodes.
func CheckRoom(need, free, reusable Usage, countsFiles bool) error {
	free.Bytes += reusable.Bytes
	free.Files += reusable.Files
	if need.Bytes > free.Bytes {
		return fmt.Errorf("the new disk is too small: %d MiB are used on the old one, %d MiB are free",
			need.Bytes>>20, free.Bytes>>20)
	}
	if countsFiles && need.Files > free.Files {
		return fmt.Errorf("the new disk has too few inodes: %d are used on the old one, %d are free", need.Files,
			free.Files)
	}
	return nil
}
