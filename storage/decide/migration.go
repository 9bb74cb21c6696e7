package decide

import (
	"fmt"

	"cambium/platform/filesystem"
	"cambium/storage/internal/intent"
)

// Migration is what was observed before the store is migrated.
type Migration struct {
	Store, Target string // directories
	// From and To are the disks mounted there; empty if none is.
	From, To string
	// WantFrom and WantTo are what the caller named; empty is any.
	WantFrom, WantTo string
	Recorded         string // the disk that is on record as the store
	// Open is the migration that is not complete, Done the last one that is.
	Open, Done intent.Intent
}

// MigrationAction is what migrate_disk does.
type MigrationAction int

// The actions.
const (
	RefuseMigration MigrationAction = iota
	CopyStore                       // from the first byte or where an attempt ended
	SwitchStore                     // the last steps of a migration whose copy is complete
	EndMigration                    // the new disk is on the store, the record is not complete
	AlreadyMigrated                 // a repeated call after success
)

// Migrate decides about a call of migrate_disk. Whatever does not fit the disks that are mounted is refused, with the
// call that has to come first.
func Migrate(o Migration) (MigrationAction, error) {
	switch {
	case o.To == "" && o.From != "":
		return repeatedMigration(o)
	case o.To != "" && o.WantTo != "" && o.WantTo != o.To:
		return RefuseMigration, fmt.Errorf("%s is on %s, not %s: run unmount_disk %s first", o.To, o.Target, o.WantTo, o.To)
	case o.To != "" && o.Recorded == o.To && (o.From == "" || o.From == o.To):
		return SwitchStore, nil
	case o.From == "" && o.Recorded != "":
		return RefuseMigration, fmt.Errorf("nothing is mounted on %s: run mount_disk %s first", o.Store, o.Recorded)
	case o.From == "":
		return RefuseMigration, fmt.Errorf("nothing is mounted on %s", o.Store)
	case o.Recorded == o.To:
		return RefuseMigration, fmt.Errorf("%s is on record as the store and %s is mounted there: run mount_disk %s first", o.To, o.From, o.From)
	case o.From == o.To:
		return RefuseMigration, fmt.Errorf("%s is on the store and is its own migration target", o.To)
	case o.WantFrom != "" && o.WantFrom != o.From:
		return RefuseMigration, fmt.Errorf("%s is on %s, not %s", o.From, o.Store, o.WantFrom)
	}
	return CopyStore, nil
}

// repeatedMigration answers a repeated call after success as the first one, also when the first
// was interrupted behind its last change. The disk on the store must be the one that was asked
// for: the success of an earlier migration says nothing of a later one.
func repeatedMigration(o Migration) (MigrationAction, error) {
	open := o.Open.Table != ""
	if o.From == o.Recorded && (o.WantTo == "" || o.WantTo == o.From) {
		if o.Open.Moves(o.From) {
			return EndMigration, nil
		}
		if !open && o.Done.Table == o.From {
			return AlreadyMigrated, nil
		}
	}
	missing := "of the new disk"
	if o.WantTo != "" {
		missing = o.WantTo
	}
	err := fmt.Errorf("nothing is mounted on %s: run mount_disk %s first", o.Target, missing)
	if open {
		err = fmt.Errorf("%w (the copy from %s is not complete)", err, o.Open.Table)
	}
	return RefuseMigration, err
}

// MigrationMark names the mount of a migration's target that is there now: a file system that tells when it was mounted last has another mark
// after each mount, on whatever machine. Others are known to be where they were for as long as this machine runs and does not mount them
// again.
func MigrationMark(target filesystem.Content, boot string) string {
	if target.UUID != "" && target.LastMount != 0 {
		return fmt.Sprintf("%s, mount %d at %d", target.UUID, target.Mounts, target.LastMount)
	}
	return "boot " + boot
}

// OnlyMarked says whether a migration's target, which is about to be mounted again, was mounted by nothing else since its mark was recorded.
func OnlyMarked(open intent.Intent, target filesystem.Content) bool {
	return target.LastMount != 0 && open.Mark == MigrationMark(target, "")
}

// MayRemove says whether files that are only on the target are leftovers of this migration's earlier attempts, which are removed: it was
// empty before the first one, and only this machine has written to it since.
func MayRemove(open intent.Intent, mark string) bool {
	return open.Exact && mark != "" && open.Mark == mark
}

// Usage is what a store holds, or a disk has room for.
type Usage struct{ Bytes, Files int64 }

// CheckRoom refuses a target that is too small before the first byte is copied. reusable is what an earlier attempt has
// left there; countsFiles is false for file systems without a fixed number of inodes.
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
