package decide

import (
	"errors"
	"testing"

	"cambium/storage/identity"
)

func TestPlace(t *testing.T) {
	store, target := placement{Directory: "/store"}, placement{Directory: "/target"}
	mounted := func(p placement) placement { p.Mounted = true; return p }
	moved := store
	moved.Leaves = "/target"
	beside := Surroundings{OnStore: "old", StoreTaken: true}
	taken, both, foreign, free := Surroundings{StoreTaken: true}, Surroundings{StoreTaken: true, TargetTaken: true},
		Surroundings{StoreTaken: true, Foreign: "tmpfs"}, Surroundings{TargetTaken: true}
	for _, c := range []struct {
		name      string
		around    Surroundings
		mountedOn string
		want      placement
		fails     string
	}{
		{"the store is free", Surroundings{}, "", store, ""},
		{"another disk is on the store", taken, "", target, ""},
		{"on the store already", taken, "/store", mounted(store), ""},
		{"on the migration target already", both, "/target", mounted(target), ""},
		{"something else is on the store", foreign, "", placement{}, "tmpfs is mounted on /store and is not a known persistent disk: unmount it (umount /store)"},
		{"something on top of it", foreign, "/store", placement{}, "tmpfs is mounted on /store"},
		{"another disk is on top of it", beside, "/store", placement{}, "disk old is mounted on top of it on /store: run unmount_disk old first"},
		{"on the migration target, and the store is free", free, "/target", moved, ""},
		{"mounted elsewhere", Surroundings{}, "/mnt", placement{}, "it is mounted on /mnt"},
		{"both directories are taken", both, "", placement{}, "both in use: run unmount_disk"},
	} {
		c.around.Store, c.around.MigrationTarget = "/store", "/target"
		got, err := place(Observed{Surroundings: c.around, Persistent: Persistent{CID: "new"}, MountedOn: c.mountedOn})
		wantError(t, err, c.fails)
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

func TestMigrate(t *testing.T) {
	old, fresh := store("old", 5), Disk{CID: "new"}
	copied := store("new", 1)
	copied.Statement.Origin = identity.Origin{CID: "old", FileSystem: "u-old", Generation: 5}
	clone := fresh
	clone.FileSystem = "U-OLD"
	both := []string{"new", "old"}
	three := append(both, "third")
	for _, c := range []struct {
		name  string
		o     Migration
		want  bool // it is migrated already
		fails string
	}{
		{"both mounted", Migration{From: old, To: fresh, Recorded: "old"}, false, ""},
		{"both mounted and named", Migration{From: old, To: fresh, Recorded: "old", WantFrom: "old", WantTo: "new"}, false, ""},
		{"a clone of the store", Migration{From: old, To: clone, Recorded: "old"}, false,
			"new is a clone of old: both have the file system u-old"},
		{"recorded by another agent, on the migration target", Migration{To: fresh, Recorded: "new",
			WantFrom: "old"}, false, "nothing shows that new is a complete copy: run mount_disk old first"},
		{"nothing on the store, and it is on record", Migration{Recorded: "new", WantTo: "third"},
			false, "run mount_disk new first"},
		{"repeated after success", Migration{From: copied, Recorded: "new", Known: both}, true, ""},
		{"repeated after success, with names", Migration{From: copied, Recorded: "new", WantFrom: "old", WantTo: "new",
			Known: three}, true, ""},
		{"the next one, not mounted yet", Migration{From: copied, Recorded: "new", WantFrom: "new", WantTo: "third",
			Known: three}, false, "run mount_disk third first"},
		{"the next one, without names", Migration{From: copied, Recorded: "new", Known: three}, false,
			"run mount_disk for the new disk first"},
		{"never migrated", Migration{From: old, Recorded: "old"}, false, "nothing is mounted on /target: run mount_disk for the new disk first"},
		{"a store that is not on record", Migration{From: copied, Recorded: "old"}, false, "run mount_disk for the new disk first"},
		{"a target other than the named one", Migration{From: old, To: fresh, Recorded: "old", WantTo: "third"}, false, "new is on /target, not third: run unmount_disk new first"},
		{"a source other than the named one", Migration{From: old, To: fresh, Recorded: "old", WantFrom: "first"}, false, "old is on /store, not first"},
		{"nothing mounted", Migration{}, false, "nothing is mounted on /store"},
		{"the old store was taken off", Migration{To: fresh, Recorded: "old"}, false, "nothing is mounted on /store: run mount_disk old first"},
		{"the new disk is on record, the old one mounted", Migration{From: old, To: fresh, Recorded: "new"}, false, "run mount_disk old first"},
		{"its own target", Migration{From: old, To: old, Recorded: "other"}, false, "is both the store and the migration target"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.o.Store, c.o.Target = "/store", "/target"
			got, err := Migrate(c.o)
			wantError(t, err, c.fails)
			if got != c.want {
				t.Errorf("already migrated: %v, want %v", got, c.want)
			}
		})
	}
}

// TestBegin: the content of a disk is the beginning of a copy only if the disk's own statement says so.
func TestBegin(t *testing.T) {
	begun := Disk{CID: "new", FileSystem: "u-new", Statement: Statement{Store: identity.Store{Version: 1, CID: "new",
		FileSystem: "u-new", Incomplete: true, Empty: true,
		Origin: identity.Origin{CID: "old", FileSystem: "u-old", Generation: 4}}}}
	with := func(change func(*Statement)) Disk { d := begun; change(&d.Statement); return d }
	for _, c := range []struct {
		name  string
		to    Disk
		empty bool
		exact bool
		fails string
	}{
		{"an empty disk", Disk{CID: "new", FileSystem: "u-new"}, true, true, ""},
		{"a disk with files of others", Disk{CID: "new", FileSystem: "u-new"}, false, false, ""},
		{"its own end, never the store", with(func(s *Statement) { s.Incomplete = false }), false, true, ""},
		{"its own end, which was the store", with(func(s *Statement) { s.Incomplete, s.Generation = false, 1 }), false, false, ""},
		{"its own beginning", begun, false, true, ""},
		{"its own beginning, among files of others", with(func(s *Statement) { s.Empty = false }), false, false, ""},
		{"the copy of another disk", with(func(s *Statement) { s.Origin.CID = "third" }), false, false,
			"new holds an incomplete copy of third, not of this old: run 'agent disk accept new --yes'"},
		{"the copy of another disk with this CID", with(func(s *Statement) { s.Origin.FileSystem = "u-2" }), false, false,
			"an incomplete copy of old, not of this old"},
		{"the end of another copy", with(func(s *Statement) { s.Incomplete, s.Origin.CID = false, "third" }), false, false, ""},
		{"what is not understood", Disk{CID: "new", Statement: Statement{Err: errors.New("version 2, want 1")}}, true, false,
			"is not understood (version 2, want 1)"},
	} {
		got, err := BeginCopy(store("old", 5), c.to, c.empty)
		wantError(t, err, c.fails)
		want := identity.Origin{CID: "old", FileSystem: "u-old", Generation: 5}
		if err == nil && (got.Empty != c.exact || got.Origin != want || !got.Incomplete || got.Generation != 0) {
			t.Errorf("%s: %+v, want empty %v", c.name, got, c.exact)
		}
	}
	wantError(t, CheckCopy("new", "/dev/vdb", Statement{}), "")
	wantError(t, CheckCopy("new", "/dev/vdb", begun.Statement),
		"incomplete copy of old. Run mount_disk old, mount_disk new and "+
			"migrate_disk, or, to use it as it is if that disk is gone, run 'agent disk accept new --yes'")
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
