package decide

import (
	"errors"
	"testing"

	"cambium/platform/disk/layout"
	"cambium/platform/filesystem/probe"
)

// holding is an ext4 with these names in its top directory.
func holding(names ...string) Replaced {
	return Replaced{Volume: volumeOf(probe.Ext4), Names: names}
}

// What an ephemeral or raw disk may replace is what is not and may not be a store.
func TestReplaced(t *testing.T) {
	lost := volumeOf(probe.Blank)
	lost.Residue = ext4At(0, 128*testMiB)
	recycled := volumeOf(probe.Blank)
	recycled.Residue = remains
	labeled := holding("anything/")
	labeled.Volume.Content.Label = "ephemeral0"
	booting := Replaced{Volume: volumeOf(probe.Ext4, probe.DOS), Names: []string{"db/"}}
	unlisted := holding()
	unlisted.Unlisted = errors.New("wrong features")
	unreplayed := func(names ...string) Replaced {
		o := holding(names...)
		o.Journal = true
		return o
	}
	dos := func(types ...string) layout.Table {
		t := layout.Table{Label: layout.MBR}
		for i, kind := range types {
			p := layout.Partition{Number: i + 1, Start: int64(i+1) * testMiB, Size: testMiB, Type: kind}
			t.Partitions = append(t.Partitions, p)
		}
		return t
	}
	of := func(k probe.Kind, also ...probe.Kind) Replaced {
		return Replaced{Volume: volumeOf(k, also...)}
	}
	none, gpt := layout.Table{}, named("x")
	for _, c := range []struct {
		name  string
		table layout.Table
		o     Replaced
		fails string // empty if it is replaced
	}{
		{"blank", none, of(probe.Blank), ""},
		{"recycled bytes", none, Replaced{Volume: recycled}, ""},
		{"Azure's NTFS", dos("07"), of(probe.NTFS), ""},
		{"Nova's vfat", none, of(probe.FAT, probe.DOS), ""},
		{"Nova's ext4", none, labeled, ""},
		{"Nova's label in a partition", gpt, labeled, "it may be a store"},
		{"bare ext4, empty", none, holding("lost+found/"), ""},
		{"bare xfs, empty", none, of(probe.XFS), ""},
		{"bare ext4 that was not unmounted, empty as far as is seen", none, unreplayed("lost+found/"),
			"looks empty, but was in use, and its journal may hold files: it may be a store"},
		{"the same in a partition", gpt, unreplayed(), "it may be a store"},
		{"the same with the layout of an agent", gpt, unreplayed("sys/", "jobs/", "packages/"), ""},
		{"the same with Azure's warning", gpt, unreplayed("DATALOSS_WARNING_README.txt"), ""},
		{"the same with names of an earlier VM", named("bosh-partition-b-0"), unreplayed(), ""},
		{"a preformatted store", none, holding("lost+found/", "db/"), "holds ext4 with files that are not an agent's"},
		{"a preformatted store with a boot sector", none, booting, "it may be a store"},
		{"a preformatted store that cannot be read", none, unlisted, "cannot determine whether /dev/vdb holds"},
		{"bare ext4, damaged", none, of(probe.Unknown), "holds a damaged ext4 or xfs"},
		{"ext4 and LVM", none, of(probe.LVM, probe.Ext4), "holds a damaged ext4 or xfs"},
		{"LVM", none, of(probe.LVM), ""},
		{"bare ext2", none, of(probe.Ext2), ""},
		{"a store", gpt, holding("db/"), "it may be a store"},
		{"a store in a DOS table", dos("83"), holding("db/"), "it may be a store"},
		{"a store of blobs", dos("83"), holding("lost+found/", "blobs/", "tmp/"), "it may be a store"},
		{"a store with packages", gpt, holding("packages/"), "it may be a store"},
		{"a store with jobs", gpt, holding("jobs/", "packages/"), "it may be a store"},
		{"files with such names", gpt, holding("sys", "jobs", "packages"), "it may be a store"},
		{"a store that fsck has mended", gpt, holding("lost+found/", "lost+found/#12/"), "it may be a store"},
		{"a store without its first superblock", gpt, Replaced{Volume: lost}, "holds a damaged ext4 or xfs: it may be"},
		{"a store with a damaged superblock", gpt, of(probe.Unknown), "holds a damaged ext4 or xfs"},
		{"a store below a RAID header", gpt, of(probe.MD, probe.XFS), "holds a damaged ext4 or xfs"},
		{"a store that cannot be read", gpt, unlisted, "cannot determine"},
		{"ephemeral data", gpt, holding("lost+found/", "sys/", "jobs/", "packages/", "redis/"), ""},
		{"an empty file system", gpt, holding("lost+found/"), ""},
		{"Azure's warning", dos("83"), holding("lost+found/", "DATALOSS_WARNING_README.txt"), ""},
		{"btrfs", gpt, of(probe.Btrfs), ""},
		{"a blank partition", gpt, of(probe.Blank), ""},
		{"an earlier VM's", named("bosh-partition-b-0"), holding("db/"), ""},
		{"a raw disk's", named("raw-ephemeral-0"), holding("db/"), ""},
		{"two partitions", named("x", "y"), holding("db/"), ""},
		{"a persistent disk's name", named(PersistentName), of(probe.Blank), "partition of a persistent disk"},
		{"a persistent disk being prepared", named(PreparingName), of(probe.Blank), "partition of a persistent disk"},
		{"an older agent's ephemeral disk", named("bosh-partition-0", "bosh-partition-1"), of(probe.Blank), ""},
		{"on record", none, Replaced{Persistent: errors.New("it is vol-1")}, "not touched: it is vol-1"},
		{"in use", none, Replaced{Busy: errors.New("vdb is mounted")}, "vdb is mounted"},
	} {
		t.Run(c.name, func(t *testing.T) { wantError(t, c.o.refuse(state(100*testMiB, c.table)), c.fails) })
	}
}
