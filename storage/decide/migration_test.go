package decide

import (
	"testing"

	"cambium/storage/record"
)

func moving(from, to string) record.Migration { return record.Migration{From: from, To: to} }

func TestPlace(t *testing.T) {
	store, target := placement{Directory: "/store"}, placement{Directory: "/target"}
	mounted := func(p placement) placement { p.Mounted = true; return p }
	moved := store
	moved.Leaves = "/target"
	byAnother := Around{Record: recorded("old"), Told: "new", Known: []string{"new", "old"}}
	ours, alone, beside, on := byAnother, byAnother, byAnother, byAnother
	ours.Record, alone.Known = recorded("new"), []string{"new"}
	beside.OnStore, beside.StoreTaken = "old", true
	on.OnStore, on.StoreTaken = "new", true
	taken, both, foreign, free := Around{StoreTaken: true}, Around{StoreTaken: true, TargetTaken: true}, Around{StoreTaken: true, Foreign: "tmpfs"}, Around{TargetTaken: true}
	for _, c := range []struct {
		name      string
		around    Around
		mountedOn string
		want      placement
		fails     string
	}{
		{"the store is free", Around{}, "", store, ""},
		{"another disk is on the store", taken, "", target, ""},
		{"on the store already", taken, "/store", mounted(store), ""},
		{"on the migration target already", both, "/target", mounted(target), ""},
		{"something else is on the store", foreign, "", placement{}, "tmpfs is mounted on /store and is not a known persistent disk: unmount it (umount /store)"},
		{"something on top of it", foreign, "/store", placement{}, "tmpfs is mounted on /store"},
		{"another disk is on top of it", beside, "/store", placement{}, "disk old is mounted on top of it on /store: run unmount_disk old first"},
		{"on the migration target, and the store is free", free, "/target", moved, ""},
		{"mounted elsewhere", Around{}, "/mnt", placement{}, "it is mounted on /mnt"},
		{"both directories are taken", both, "", placement{}, "both in use: run unmount_disk"},
		{"recorded by another agent beside another disk", byAnother, "", store, "'agent disk accept new' or 'agent disk accept old'"},
		{"the same, on the migration target", byAnother, "/target", moved, "may be an incomplete copy"},
		{"the same, beside the store", beside, "", target, ""},
		{"the same, on the store", on, "/store", mounted(store), ""},
		{"recorded by another agent, alone", alone, "", store, ""},
		{"recorded by this agent beside another disk", ours, "", store, ""},
	} {
		c.around.Store, c.around.MigrationTarget = "/store", "/target"
		got, err := place(Observed{Around: c.around, Persistent: Persistent{CID: "new"}, MountedOn: c.mountedOn})
		wantError(t, err, c.fails)
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
	byAnother.Store, byAnother.MigrationTarget = "/store", "/target"
	if _, err := place(Observed{Around: byAnother, Persistent: Persistent{CID: "old"}}); err != nil {
		t.Errorf("the other disk than the recorded one: %v", err) // it was copied from
	}
}

func TestMigrate(t *testing.T) {
	open := moving("old", "new")
	done := "new"
	for _, c := range []struct {
		name  string
		o     Migration
		want  MigrationAction
		fails string
	}{
		{"both mounted", Migration{From: "old", To: "new", Recorded: "old"}, CopyStore, ""},
		{"both mounted and named", Migration{From: "old", To: "new", Recorded: "old", WantFrom: "old", WantTo: "new"}, CopyStore, ""},
		{"interrupted while copying", Migration{From: "old", To: "new", Recorded: "old", Open: open}, CopyStore, ""},
		{"interrupted after the record", Migration{Recorded: "new", Open: open}, EndMigration, ""},
		{"interrupted after the record, and mounted by mount_disk", Migration{To: "new", Recorded: "new",
			Open: open}, EndMigration, ""},
		{"recorded by another agent, on the migration target", Migration{To: "new", Recorded: "new",
			WantFrom: "old"}, RefuseMigration, "nothing shows that new is a complete copy: run mount_disk old first"},
		{"interrupted after the record, for another disk", Migration{Recorded: "new", Open: open, WantTo: "third"},
			RefuseMigration, "run mount_disk new first"},
		{"interrupted after the last mount", Migration{From: "new", Recorded: "new", Open: open}, EndMigration, ""},
		{"repeated after success", Migration{From: "new", Recorded: "new", Done: done}, AlreadyMigrated, ""},
		{"repeated after success, with names", Migration{From: "new", Recorded: "new", Done: done, WantFrom: "old", WantTo: "new"}, AlreadyMigrated, ""},
		{"the next one, not mounted yet", Migration{From: "new", Recorded: "new", Done: done, WantFrom: "new", WantTo: "third"}, RefuseMigration, "run mount_disk third first"},
		{"the next one, interrupted, not mounted", Migration{From: "new", Recorded: "new", Open: moving("new", "third"), Done: done}, RefuseMigration, "run mount_disk for the new disk first (the copy from new to third is not complete)"},
		{"never migrated", Migration{From: "old", Recorded: "old"}, RefuseMigration, "nothing is mounted on /target: run mount_disk for the new disk first"},
		{"a store that is not on record", Migration{From: "new", Recorded: "old", Done: done}, RefuseMigration, "run mount_disk for the new disk first"},
		{"a target other than the named one", Migration{From: "old", To: "new", Recorded: "old", WantTo: "third"}, RefuseMigration, "new is on /target, not third: run unmount_disk new first"},
		{"a source other than the named one", Migration{From: "old", To: "new", Recorded: "old", WantFrom: "first"}, RefuseMigration, "old is on /store, not first"},
		{"nothing mounted", Migration{}, RefuseMigration, "nothing is mounted on /store"},
		{"the old store was taken off", Migration{To: "new", Recorded: "old"}, RefuseMigration, "nothing is mounted on /store: run mount_disk old first"},
		{"the new disk is on record, the old one mounted", Migration{From: "old", To: "new", Recorded: "new"}, RefuseMigration, "run mount_disk old first"},
		{"its own target", Migration{From: "old", To: "old", Recorded: "other"}, RefuseMigration, "is both the store and the migration target"},
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

// What is on a disk is the beginning of a copy only if the disk says so itself.
func TestBegin(t *testing.T) {
	want := Mark{From: "old", To: "new", Source: "u-1"}
	exact, otherSource, otherDisk := want, want, want
	exact.Exact, otherSource.Source, otherDisk.From = true, "u-2", "third"
	begun, copied, toOther := moving("old", "new"), moving("old", "new"), moving("old", "third")
	copied.Copied, toOther.Copied = true, true
	for _, c := range []struct {
		name  string
		found *Mark
		open  record.Migration
		empty bool
		exact bool
		fails string
	}{
		{"an empty disk", nil, begun, true, true, ""},
		{"a disk with files of others", nil, begun, false, false, ""},
		{"its own end, verified", nil, copied, false, true, ""},
		{"a disk with files, after the copy to another", nil, toOther, false, false, ""},
		{"its own beginning", &exact, begun, false, true, ""},
		{"its own beginning, among files of others", &want, begun, false, false, ""},
		{"the copy of another disk", &otherDisk, copied, false, false,
			"new holds an incomplete copy of third, not of this old: run 'agent disk accept new'"},
		{"the copy of another disk with this CID", &otherSource, copied, false, false,
			"an incomplete copy of old, not of this old"},
		{"the copy of what is not known", &Mark{}, copied, false, false, "an incomplete copy of another disk"},
	} {
		got, err := Begin(want, c.found, c.open, c.empty)
		wantError(t, err, c.fails)
		if err == nil && (got.Exact != c.exact || got.From != "old" || got.Source != "u-1") {
			t.Errorf("%s: %+v, want exact %v", c.name, got, c.exact)
		}
	}
	wantError(t, CheckCopy("new", "/dev/vdb", nil), "")
	wantError(t, CheckCopy("new", "/dev/vdb", &want), "incomplete copy of old. Run mount_disk old, mount_disk new and "+
		"migrate_disk, or, to use it as it is if that disk is gone, run 'agent disk accept new'")
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
