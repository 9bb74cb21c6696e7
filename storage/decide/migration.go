package decide

import (
	"cmp"
	"fmt"

	"cambium/storage/record"
)

// Migration is what was observed before the store is migrated.
type Migration struct {
	Store, Target string // directories
	// From and To are the disks mounted there; empty if none is.
	From, To string
	// WantFrom and WantTo are what the caller named; empty is any.
	WantFrom, WantTo string
	Recorded         string // the disk that is on record as the store
	// Open is the migration that is not complete, Done the disk of the last one that is.
	Open record.Migration
	Done string
	// Source is the UUID of the file system on the store, as it is on record.
	Source string
}

// MigrationAction is what migrate_disk does.
type MigrationAction int

// The actions.
const (
	RefuseMigration MigrationAction = iota
	CopyStore                       // from the first byte
	EndMigration                    // the new disk is complete and on record: it is mounted as the store
	AlreadyMigrated                 // a repeated call after success
)

// Migrate decides about a call of migrate_disk. Whatever does not fit the disks that are mounted is refused, with the
// call that has to come first.
func Migrate(o Migration) (MigrationAction, error) {
	isRecorded := func(cid string) bool { return cid == "" || cid == o.Recorded }
	switch {
	case o.Recorded != "" && o.Open.To == o.Recorded && isRecorded(o.From) && isRecorded(o.To) && isRecorded(o.WantTo):
		return EndMigration, nil
	case o.To == "" && o.From != "":
		return repeatedMigration(o)
	case o.To != "" && o.WantTo != "" && o.WantTo != o.To:
		return RefuseMigration, fmt.Errorf("%s is on %s, not %s: run unmount_disk %s first", o.To, o.Target, o.WantTo, o.To)
	case o.From == "" && o.To != "" && o.Recorded == o.To: // another agent records a disk before it is complete
		return RefuseMigration, fmt.Errorf("nothing is mounted on %s, and nothing shows that %s is a complete copy: "+
			"run mount_disk %s first", o.Store, o.To, cmp.Or(o.WantFrom, "for the old disk"))
	case o.From == "" && o.Recorded != "":
		return RefuseMigration, fmt.Errorf("nothing is mounted on %s: run mount_disk %s first", o.Store, o.Recorded)
	case o.From == "":
		return RefuseMigration, fmt.Errorf("nothing is mounted on %s", o.Store)
	case o.Recorded == o.To:
		return RefuseMigration, fmt.Errorf("%s is on record as the store and %s is mounted there: run mount_disk %s first", o.To, o.From, o.From)
	case o.From == o.To:
		return RefuseMigration, fmt.Errorf("%s is both the store and the migration target", o.To)
	case o.WantFrom != "" && o.WantFrom != o.From:
		return RefuseMigration, fmt.Errorf("%s is on %s, not %s", o.From, o.Store, o.WantFrom)
	}
	return CopyStore, nil
}

// repeatedMigration answers a repeated call after success as the first one. The disk on the store must be the one that
// was asked for: the success of an earlier migration says nothing of a later one.
func repeatedMigration(o Migration) (MigrationAction, error) {
	open := o.Open != (record.Migration{})
	if o.From == o.Recorded && (o.WantTo == "" || o.WantTo == o.From) {
		if !open && o.Done == o.From {
			return AlreadyMigrated, nil
		}
	}
	missing := "for the new disk"
	if o.WantTo != "" {
		missing = o.WantTo
	}
	err := fmt.Errorf("nothing is mounted on %s: run mount_disk %s first", o.Target, missing)
	if open {
		err = fmt.Errorf("%w (the copy from %s is not complete)", err, o.Open.From+" to "+o.Open.To)
	}
	return RefuseMigration, err
}

// Mark is what a disk says about itself, in a file, from before the first byte is copied to it until the copy is
// verified. A disk with a mark is not a store.
type Mark struct {
	From string `json:"from"` // CID of the disk that is copied
	To   string `json:"to"`
	// Source is the UUID of that disk's file system; empty for a directory.
	Source string `json:"source,omitempty"`
	// Exact says that the disk was empty before: its files are of this copy.
	Exact bool `json:"exact,omitempty"`
}

// Begin decides which mark a migration target gets. found is the one that it has; nil if it has none. The content of a
// disk with the mark of the same copy is its own beginning, whatever is on record. Without a mark its content is of this
// copy if the record says that it was verified: the migration was cut off between the removal of the mark and the
// record of the new store. empty says that there is no content.
func Begin(want Mark, found *Mark, open record.Migration, empty bool) (Mark, error) {
	if found == nil {
		want.Exact = empty || open == (record.Migration{From: want.From, To: want.To, Copied: true})
		return want, nil
	}
	want.Exact = found.Exact
	if *found != want {
		return want, fmt.Errorf("%s holds an incomplete copy of %s, not of this %s: "+
			"run 'agent disk accept %s' and mount_disk %s to keep what is on it, and migrate_disk again",
			want.To, cmp.Or(found.From, "another disk"), want.From, want.To, want.To)
	}
	return want, nil
}

// CheckCopy refuses the disk at path with a mark as the store.
func CheckCopy(cid, path string, m *Mark) error {
	if m == nil {
		return nil
	}
	from := cmp.Or(m.From, "another disk")
	return &Refusal{path, "it holds an incomplete copy of " + from, fmt.Sprintf("Run mount_disk %s, mount_disk %s and "+
		"migrate_disk, or, to use it as it is if that disk is gone, %s", from, cid, accept(cid))}
}

// Usage is what a store holds, or a disk has room for.
type Usage struct{ Bytes, Files int64 }

// CheckRoom refuses a target that is too small before the first byte is copied. reusable is what an earlier attempt has
// left there, which is removed; countsFiles is false for file systems without a fixed number of inodes.
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
