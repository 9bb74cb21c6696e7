package decide

import (
	"testing"

	"cambium/platform/filesystem"
	"cambium/storage/internal/intent"
)

func moving(from, to string) intent.Intent {
	return intent.Intent{Table: intent.MigrationID(from, to)}
}

func TestPlace(t *testing.T) {
	store, target := Placement{Directory: "/store", RecordAsStore: true}, Placement{Directory: "/target", ForgetMigrated: true}
	mounted := func(p Placement) Placement { p.Mounted = true; return p }
	for _, c := range []struct {
		name  string
		o     Placing
		want  Placement
		fails string
	}{
		{"the store is free", Placing{}, store, ""},
		{"another disk is on the store", Placing{StoreTaken: true}, target, ""},
		{"on the store already", Placing{MountedOn: "/store", StoreTaken: true}, mounted(store), ""},
		{"on the migration target already", Placing{MountedOn: "/target", StoreTaken: true, TargetTaken: true}, mounted(target), ""},
		{"something else is on the store", Placing{StoreTaken: true, Foreign: "tmpfs"}, Placement{},
			"tmpfs is mounted on /store and is not a known persistent disk: unmount it (umount /store)"},
		{"something on top of it", Placing{MountedOn: "/store", StoreTaken: true, Foreign: "tmpfs"}, Placement{},
			"tmpfs is mounted on /store"},
		{"another disk is on top of it", Placing{MountedOn: "/store", StoreTaken: true, OnStore: "old"}, Placement{},
			"disk old is mounted on top of it on /store: run unmount_disk old first"},
		{"mounted elsewhere", Placing{MountedOn: "/mnt"}, Placement{}, "it is mounted on /mnt"},
		{"both directories are taken", Placing{StoreTaken: true, TargetTaken: true}, Placement{}, "both in use: run unmount_disk"},
		{"an incomplete copy", Placing{Open: moving("old", "new"), Recorded: "old"}, store, "incomplete copy of old: run mount_disk old first, or remove_persistent_disk old"},
		{"an incomplete copy that is on the store", Placing{Open: moving("old", "new"), Recorded: "old", MountedOn: "/store"}, mounted(store), "incomplete copy of old"},
		{"an incomplete copy beside its source", Placing{Open: moving("old", "new"), Recorded: "old", StoreTaken: true}, target, ""},
		{"a complete copy that has only to be moved", Placing{Open: moving("old", "new"), Recorded: "new"}, store, ""},
		{"the source of an incomplete copy", Placing{Open: moving("new", "third"), Recorded: "new"}, store, ""},
	} {
		c.o.CID, c.o.Store, c.o.MigrationTarget = "new", "/store", "/target"
		got, err := Place(c.o)
		wantError(t, err, c.fails)
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

func TestResume(t *testing.T) {
	open := moving("old", "new")
	for _, c := range []struct {
		name string
		o    Interrupted
		want Resumption
	}{
		{"no migration", Interrupted{CID: "new", Recorded: "new", OnStore: true, StoreIsSame: true}, NothingToResume},
		{"the old store is read-only", Interrupted{CID: "old", Recorded: "old", Open: open, OnStore: true, StoreIsSame: true}, MakeWritable},
		{"the new disk waits for the copy", Interrupted{CID: "new", Recorded: "old", Open: open}, NothingToResume},
		{"the new disk has only to be moved", Interrupted{CID: "new", Recorded: "new", Open: open, StoreIsFree: true}, CompleteSwitch},
		{"the new disk is on both", Interrupted{CID: "new", Recorded: "new", Open: open, OnStore: true, StoreIsSame: true}, CompleteSwitch},
		{"another disk is on the store", Interrupted{CID: "new", Recorded: "new", Open: open}, NothingToResume},
		{"a disk that the migration does not concern", Interrupted{CID: "third", Recorded: "old", Open: open}, NothingToResume},
	} {
		if got := Resume(c.o); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

func TestMigrate(t *testing.T) {
	open := moving("old", "new")
	done := intent.Intent{Table: "new"}
	for _, c := range []struct {
		name  string
		o     Migration
		want  MigrationAction
		fails string
	}{
		{"both mounted", Migration{From: "old", To: "new", Recorded: "old"}, CopyStore, ""},
		{"both mounted and named", Migration{From: "old", To: "new", Recorded: "old", WantFrom: "old", WantTo: "new"}, CopyStore, ""},
		{"interrupted while copying", Migration{From: "old", To: "new", Recorded: "old", Open: open}, CopyStore, ""},
		{"interrupted behind the record", Migration{To: "new", Recorded: "new", Open: open}, SwitchStore, ""},
		{"interrupted behind the move", Migration{From: "new", To: "new", Recorded: "new", Open: open}, SwitchStore, ""},
		{"interrupted behind the last mount", Migration{From: "new", Recorded: "new", Open: open}, EndMigration, ""},
		{"repeated after success", Migration{From: "new", Recorded: "new", Done: done}, AlreadyMigrated, ""},
		{"repeated after success, with names", Migration{From: "new", Recorded: "new", Done: done, WantFrom: "old", WantTo: "new"}, AlreadyMigrated, ""},
		{"the next one, not mounted yet", Migration{From: "new", Recorded: "new", Done: done, WantFrom: "new", WantTo: "third"}, RefuseMigration, "run mount_disk third first"},
		{"the next one, interrupted, not mounted", Migration{From: "new", Recorded: "new", Open: moving("new", "third"), Done: done}, RefuseMigration, "run mount_disk of the new disk first (the copy from new to third is not complete)"},
		{"never migrated", Migration{From: "old", Recorded: "old"}, RefuseMigration, "nothing is mounted on /target: run mount_disk of the new disk first"},
		{"a store that is not on record", Migration{From: "new", Recorded: "old", Done: done}, RefuseMigration, "run mount_disk of the new disk first"},
		{"another target than named", Migration{From: "old", To: "new", Recorded: "old", WantTo: "third"}, RefuseMigration, "new is on /target, not third: run unmount_disk new first"},
		{"another source than named", Migration{From: "old", To: "new", Recorded: "old", WantFrom: "first"}, RefuseMigration, "old is on /store, not first"},
		{"nothing mounted", Migration{}, RefuseMigration, "nothing is mounted on /store"},
		{"the old store was taken off", Migration{To: "new", Recorded: "old"}, RefuseMigration, "nothing is mounted on /store: run mount_disk old first"},
		{"the new disk is on record, the old one mounted", Migration{From: "old", To: "new", Recorded: "new"}, RefuseMigration, "run mount_disk old first"},
		{"its own target", Migration{From: "old", To: "old", Recorded: "other"}, RefuseMigration, "its own migration target"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.o.Store, c.o.Target = "/store", "/target"
			got, err := Migrate(c.o)
			wantError(t, err, c.fails)
			if got != c.want {
				t.Errorf("action %d, want %d", got, c.want)
			}
		})
	}
}

// A record of a migration is bound to one mount of its target.
func TestMigrationMark(t *testing.T) {
	ext4 := filesystem.Content{Kind: filesystem.Ext4, UUID: "u-1", LastMount: 100}
	later, other := ext4, ext4
	later.LastMount, other.UUID = 101, "u-2"
	xfs := filesystem.Content{Kind: filesystem.XFS, UUID: "u-3"}
	for _, c := range []struct {
		name          string
		begun, found  filesystem.Content
		boot          string
		exact         bool
		only, removes bool
	}{
		{"still mounted, or not mounted since", ext4, ext4, "boot-1", true, true, true},
		{"after a reboot", ext4, ext4, "boot-2", true, true, true},
		{"held files before the first attempt", ext4, ext4, "boot-1", false, true, false},
		{"mounted since", ext4, later, "boot-1", true, false, false},
		{"another file system", ext4, other, "boot-1", true, false, false},
		{"xfs, still mounted", xfs, xfs, "boot-1", true, false, true},
		{"xfs, after a reboot", xfs, xfs, "boot-2", true, false, false},
		{"directory, still mounted", filesystem.Content{}, filesystem.Content{}, "boot-1", true, false, true},
	} {
		open := intent.Intent{Exact: c.exact, Mark: MigrationMark(c.begun, "boot-1")}
		if only, removes := OnlyMarked(open, c.found), MayRemove(open, MigrationMark(c.found, c.boot)); only != c.only || removes != c.removes {
			t.Errorf("%s: only marked %v, removes %v; want %v, %v", c.name, only, removes, c.only, c.removes)
		}
	}
	if MayRemove(intent.Intent{Exact: true}, "") {
		t.Error("a record without a mark removes files")
	}
}

func TestCheckRoom(t *testing.T) {
	for _, c := range []struct {
		name                 string
		need, free, reusable Usage
		countsFiles          bool
		fails                string
	}{
		{"enough", Usage{10 << 20, 10}, Usage{10 << 20, 10}, Usage{}, true, ""},
		{"too small", Usage{11 << 20, 10}, Usage{10 << 20, 10}, Usage{}, true, "too small: 11 MiB are used on the old one, 10 MiB are free"},
		{"a part is there already", Usage{11 << 20, 11}, Usage{10 << 20, 10}, Usage{1 << 20, 1}, true, ""},
		{"too few inodes", Usage{1, 11}, Usage{10, 10}, Usage{}, true, "too few inodes: 11 are used on the old one, 10 are free"},
		{"inodes made on demand", Usage{1, 11}, Usage{10, 0}, Usage{}, false, ""},
	} {
		t.Run(c.name, func(t *testing.T) { wantError(t, CheckRoom(c.need, c.free, c.reusable, c.countsFiles), c.fails) })
	}
}
