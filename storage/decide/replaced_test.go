package decide

import (
	"errors"
	"testing"

	"cambium/platform/disk/layout"
	"cambium/platform/filesystem/probe"
)

// holding returns a disk or partition that begins with an ext4 of 50 MiB, with these names in its top directory.
func holding(names ...string) Replaced { return only(probe.Ext4, testMiB, names...) }

// only returns a disk with a single file system.
func only(k probe.Kind, start int64, names ...string) Replaced {
	v := volumeOf(k)
	v.Content.Bytes = 50 * testMiB
	return Replaced{Volume: v, Start: start, Names: names, Superblocks: []probe.Superblock{{Kind: k, Start: start}}}
}

// TestReplaced: an ephemeral or raw disk may replace content that is free of ext and xfs, or that is recognized as
// ephemeral.
func TestReplaced(t *testing.T) {
	of := func(k probe.Kind, also ...probe.Kind) Replaced { return Replaced{Volume: volumeOf(k, also...)} }
	with := func(o Replaced, found ...probe.Superblock) Replaced {
		o.Superblocks = append(o.Superblocks, found...)
		return o
	}
	labeled := holding("anything/")
	labeled.Volume.Content.Label = "ephemeral0"
	booting := holding("db/")
	booting.Volume.Content.Also = []probe.Kind{probe.DOS}
	unlisted := holding()
	unlisted.Unlisted = errors.New("wrong features")
	unreplayed := func(names ...string) Replaced {
		o := holding(names...)
		o.Journal = true
		return o
	}
	damaged := of(probe.GPT)
	damaged.Damaged = layout.ErrDamaged
	asked := holding("db/")
	asked.Asked, asked.Recorded = true, errors.New("it is the store of vol-1")
	askedInUse := Replaced{Asked: true, Busy: errors.New("vdb is mounted")}
	askedStore := Replaced{Asked: true, Persistent: errors.New("it is vol-1")}
	dos := func(types ...string) layout.Table {
		t := layout.Table{Label: layout.MBR}
		for i, kind := range types {
			p := layout.Partition{Number: i + 1, Start: int64(i+1) * testMiB, Size: testMiB, Type: kind}
			t.Partitions = append(t.Partitions, p)
		}
		return t
	}
	unprotected, recovered := named("bosh-partition-b-0"), named("bosh-partition-b-0", "bosh-partition-b-1")
	unprotected.Lost, recovered.Lost = layout.ProtectiveEntry, layout.FirstCopy
	first := probe.Superblock{Kind: probe.Ext4, Start: testMiB}
	later := probe.Superblock{Kind: probe.XFS, Start: 80 * testMiB}
	lost := probe.Superblock{Kind: probe.Ext4, Backup: 128 * testMiB, Block: 4096}
	broken := probe.Superblock{Kind: probe.Unknown, Start: testMiB}
	none, gpt := layout.Table{}, named("x")
	for _, c := range []struct {
		name  string
		table layout.Table
		o     Replaced
		fails string // empty if it is replaced
	}{
		{"blank", none, of(probe.Blank), ""},
		{"recycled bytes", none, of(probe.Blank), ""},
		{"Azure's NTFS", dos("07"), of(probe.NTFS), ""},
		{"Azure's NTFS over a store", dos("07"), with(of(probe.NTFS), first), "ext4 begins at byte 1048576"},
		{"Nova's vfat", none, of(probe.FAT, probe.DOS), ""},
		{"Nova's ext4", none, labeled, ""},
		{"Nova's label in a partition", gpt, labeled, "it may be a store"},
		{"Nova's label beside a store", none, with(labeled, later), "xfs begins at byte 83886080"},
		{"bare ext4, empty", none, holding("lost+found/"), ""},
		{"bare ext3, empty", none, only(probe.Ext3, 0, "lost+found/"), ""},
		{"bare ext3 with files", none, only(probe.Ext3, 0, "db/"), "it may be a store"},
		{"bare xfs, empty", none, only(probe.XFS, 0), ""},
		{"an empty file system before a store", gpt, with(holding(), later), "xfs begins at byte 83886080"},
		{"bare ext4 that was not unmounted, empty as far as is seen", none, unreplayed("lost+found/"),
			"looks empty, but was in use, and its journal may hold files: it may be a store"},
		{"the same in a partition", gpt, unreplayed(), "it may be a store"},
		{"the same with the layout of an agent", gpt, unreplayed("sys/", "jobs/", "packages/"), ""},
		{"the same with Azure's warning", gpt, unreplayed("DATALOSS_WARNING_README.txt"), ""},
		{"the same with names of an earlier VM", named("bosh-partition-b-0"), unreplayed(), ""},
		{"a preformatted store", none, holding("lost+found/", "db/"), "holds ext4 with files that are not ephemeral data"},
		{"a preformatted store with a boot sector", none, booting, "it may be a store"},
		{"a preformatted store that cannot be read", none, unlisted, "cannot determine whether ext4 holds files"},
		{"a preformatted store without its first superblock", none, with(of(probe.Blank), lost),
			"a backup superblock of ext4 at byte 134217728: it may be a store. Attach the right disk: one without ext4 or xfs. To look at it without " +
				"writing, run 'd=$(losetup --read-only --find --show --offset 0 /dev/vdb); e2fsck -n -b 32768 -B 4096 $d; " +
				"losetup --detach $d'. DESTRUCTIVE: to lose its content and use it empty, run 'agent disk format ephemeral --yes'"},
		{"bare ext4, damaged", none, with(of(probe.Unknown), broken), "a damaged ext4 or xfs begins at byte 1048576"},
		{"ext4 and LVM", none, with(of(probe.LVM, probe.Ext4), first), "ext4 begins at"},
		{"LVM", none, of(probe.LVM), ""},
		{"a store", gpt, holding("db/"), "it may be a store"},
		{"a store in a DOS table", dos("83"), holding("db/"), "it may be a store"},
		{"a store of blobs", dos("83"), holding("lost+found/", "blobs/", "tmp/"), "it may be a store"},
		{"a store with packages", gpt, holding("packages/"), "it may be a store"},
		{"a store with jobs", gpt, holding("jobs/", "packages/"), "it may be a store"},
		{"files with such names", gpt, holding("sys", "jobs", "packages"), "it may be a store"},
		{"a store that fsck has mended", gpt, holding("lost+found/", "lost+found/#12/"), "it may be a store"},
		{"a store without its first superblock", gpt, with(of(probe.Blank), lost), "backup superblock"},
		{"a store whose table is lost", none, with(of(probe.Blank), first), "ext4 begins at byte 1048576"},
		{"a store whose table is damaged", none, with(damaged, first), "damaged partition table"},
		{"a damaged table", none, damaged, "damaged partition table"},
		{"a store below a RAID header", gpt, with(of(probe.MD, probe.XFS), first), "begins at"},
		{"a store that cannot be read", gpt, unlisted, "cannot determine"},
		{"ephemeral data", gpt, holding("lost+found/", "sys/", "jobs/", "packages/", "redis/"), ""},
		{"ephemeral data with an image in a file", gpt, with(holding("sys/", "jobs/", "packages/"),
			probe.Superblock{Kind: probe.XFS, Start: 40 * testMiB}), ""},
		{"an empty file system", gpt, holding("lost+found/"), ""},
		{"Azure's warning", dos("83"), holding("lost+found/", "DATALOSS_WARNING_README.txt"), ""},
		{"btrfs", gpt, of(probe.Btrfs), ""},
		{"a blank partition", gpt, of(probe.Blank), ""},
		{"an earlier VM's", named("bosh-partition-b-0"), holding("db/"), ""},
		{"an earlier VM's with one copy of its table", recovered, holding("db/"), ""},
		{"an earlier VM's table that the kernel does not believe", unprotected, holding("db/"), "it may be a store"},
		{"an earlier VM's and a partition of others", named("bosh-partition-b-0", "x"), holding("db/"),
			"it may be a store"},
		{"a raw disk's", named("raw-ephemeral-0"), holding("db/"), ""},
		{"two partitions, one with a store", named("x", "y"), with(of(probe.Blank), later), "xfs begins at byte"},
		{"two partitions", named("x", "y"), of(probe.Blank), ""},
		{"a persistent disk's name", named(PersistentName), of(probe.Blank), "partition of a persistent disk"},
		{"a persistent disk being prepared", named(PreparingName), of(probe.Blank), "partition of a persistent disk"},
		{"an older agent's ephemeral disk", named("bosh-partition-0", "bosh-partition-1"), holding("db/"), ""},
		{"named by settings", none, Replaced{Persistent: errors.New("it is vol-1")}, "not touched: it is vol-1"},
		{"on record", none, Replaced{Recorded: errors.New("it is vol-1")}, "it is vol-1: it may be a store"},
		{"in use", none, Replaced{Busy: errors.New("vdb is mounted")}, "vdb is mounted"},
		{"an operator asked", gpt, asked, ""},
		{"an operator asked, and it is in use", none, askedInUse, "vdb is mounted"},
		{"an operator asked, and settings name it", none, askedStore, "it is vol-1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			wantError(t, c.o.refuse(state(100*testMiB, c.table), FormatEphemeral), c.fails)
		})
	}
}
