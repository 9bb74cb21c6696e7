package decide

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"cambium/platform/disk/layout"
	"cambium/platform/filesystem/probe"
	"cambium/storage/record"
)

func diskWithoutTable(k probe.Kind) layout.State {
	s := state(100*testMiB, layout.Table{})
	s.Content = probe.Content{Kind: k}
	return s
}

var (
	dosDisk = state(100*testMiB, layout.Table{Label: layout.MBR, Partitions: []layout.Partition{{Number: 1,
		Start: 512, Size: testMiB, Type: "83"}}})
	oneEmpty = state(100*testMiB, layout.Table{Label: layout.GPT})

	largeSectors = layout.State{Path: "/dev/vdb", Bytes: 100 * testMiB, Sector: 4096,
		Content: probe.Content{Kind: probe.Blank}}
)

func gptDisk(names ...string) layout.State { return state(100*testMiB, named(names...)) }

var (
	zeros   = probe.Residue{NonZero: -1}
	noise   = probe.Residue{NonZero: 3, Noise: true}
	remains = probe.Residue{NonZero: 3}
	ext4At  = func(start, backup int64) probe.Residue {
		return probe.Residue{NonZero: 3, Found: []probe.Superblock{{Kind: probe.Ext4, Start: start, Backup: backup,
			Block: 4096, Bytes: 50 * testMiB}}}
	}
)

// inBrief formats a judgment, with only the commands of its advice.
func inBrief(v judgment) string {
	return v.Proof + strings.NewReplacer("To look at it without writing, run '", ". Look: ", "'. To repair it, take a "+
		"snapshot of the disk first, then run '", ". Repair: ", "'", "").Replace(v.Advice)
}

func TestJudge(t *testing.T) {
	for _, c := range []struct {
		name    string
		state   layout.State
		content Volume
		residue probe.Residue
		pending bool
		want    verdict
		says    string
	}{
		{"blank", diskWithoutTable(probe.Blank), Volume{}, zeros, false, create, "blank, 100.0 MiB"},
		{"no table, but data", diskWithoutTable(probe.Blank), Volume{}, remains, false, refuse,
			"data at byte 3. Look: hexdump -C -s 3 -n 512 /dev/vdb"},
		{"no table, but noise", diskWithoutTable(probe.Blank), Volume{}, noise, false, refuse,
			"persistent_disk_blank: noise"},
		{"the table is lost, not the file system", diskWithoutTable(probe.Blank), Volume{}, ext4At(testMiB, 0),
			false, refuse, "ext4 begins at byte 1048576. Look: mount -t ext4 -o ro,noload,loop,offset=1048576 /dev/vdb /mnt"},
		{"DOS, the table is lost", diskWithoutTable(probe.Blank), Volume{}, ext4At(512, 0), false, refuse,
			"offset=512 /dev/vdb"},
		{"table and superblock are lost", diskWithoutTable(probe.Blank), Volume{}, ext4At(testMiB, 128*testMiB),
			false, refuse, "a backup superblock of ext4 at byte 135266304. Look: " +
				"d=$(losetup --read-only --find --show --offset 1048576 /dev/vdb); e2fsck -n -b 32768 -B 4096 $d; " +
				"losetup --detach $d"},
		{"file system without a table (D.1)", diskWithoutTable(probe.Ext4), Volume{}, zeros, false, refuse,
			"the whole disk holds ext4. Look: mount -t ext4 -o ro,noload,loop,offset=0 /dev/vdb"},
		{"LVM on the disk", diskWithoutTable(probe.LVM), Volume{}, zeros, false, refuse, "LVM"},
		{"empty table", oneEmpty, Volume{}, zeros, false, create, "empty partition table"},
		{"empty table over lost data", oneEmpty, Volume{}, ext4At(testMiB, 0), false, refuse, "the partition table is empty, but ext4 begins at byte 1048576"},
		{"empty table over anything", oneEmpty, Volume{}, remains, false, refuse, "data at byte 3"},
		{"not looked", oneEmpty, Volume{}, probe.Residue{}, false, refuse, "data at byte 0"},
		{"ours, ext4", gptDisk("bosh-partition-0"), volumeOf(probe.Ext4), zeros, false, keep, "holds ext4"},
		{"ours, xfs", gptDisk("bosh-partition-0"), volumeOf(probe.XFS), zeros, false, keep, "holds xfs"},
		{"any name", gptDisk("whatever"), volumeOf(probe.Ext4), zeros, false, keep, "holds ext4"},
		{"DOS of an old agent", dosDisk, volumeOf(probe.Ext4), zeros, false, keep, "holds ext4"},
		{"ours, never formatted (D.5)", gptDisk("bosh-partition-0"), volumeOf(probe.Blank), zeros, false, format,
			"named bosh-partition-0 and blank"},
		{"ours, superblock lost", gptDisk("bosh-partition-0"), volumeOf(probe.Blank), ext4At(0, 128*testMiB), false,
			refuse, "byte 135266304. Look: e2fsck -n -b 32768 -B 4096 /dev/vdb1. Repair: e2fsck -b 32768 -B 4096 /dev/vdb1"},
		{"ours, ext4 begins later", gptDisk("bosh-partition-0"), volumeOf(probe.Blank), ext4At(testMiB, 0), false,
			refuse, "ext4 begins at byte 2097152. Look: mount -t ext4 -o ro,noload,loop,offset=2097152 /dev/vdb"},
		{"ours, ext4 begins later, superblock lost", gptDisk("bosh-partition-0"), volumeOf(probe.Blank),
			ext4At(testMiB, 128*testMiB), false, refuse, "--offset 2097152 /dev/vdb); e2fsck -n"},
		{"ours, not blank", gptDisk("bosh-partition-0"), volumeOf(probe.Blank), remains, false, refuse,
			"partition 1 has no file system, but"},
		{"ours, noise", gptDisk("bosh-partition-0"), volumeOf(probe.Blank), noise, false, refuse,
			"persistent_disk_blank: noise"},
		{"ours, unfinished", gptDisk(PreparingName), volumeOf(probe.Blank), remains, true, format, "being prepared"},
		{"not named by us, blank", gptDisk("x"), volumeOf(probe.Blank), zeros, false, refuse, "nothing shows"},
		{"DOS, blank, unfinished", dosDisk, volumeOf(probe.Blank), zeros, true, format, "being prepared"},
		{"DOS, blank", dosDisk, volumeOf(probe.Blank), zeros, false, refuse, "nothing shows"},
		{"ours by name, LUKS inside (D.2)", gptDisk("bosh-partition-0"), volumeOf(probe.LUKS), zeros, false, refuse,
			"LUKS"},
		{"ext3 (D.2)", gptDisk("x"), volumeOf(probe.Ext3), zeros, false, refuse, "ext3"},
		{"btrfs (D.2)", gptDisk("x"), volumeOf(probe.Btrfs), zeros, false, refuse, "btrfs"},
		{"btrfs, unfinished", gptDisk("x"), volumeOf(probe.Btrfs), zeros, true, refuse, "btrfs"},
		{"ext4 and RAID", gptDisk("x"), volumeOf(probe.Ext4, probe.MD), zeros, false, refuse, "md RAID"},
		{"only partition 2", state(100*testMiB, layout.Table{Label: layout.GPT,
			Partitions: []layout.Partition{{Number: 2, Start: testMiB, Size: testMiB}}}), volumeOf(probe.Ext4),
			zeros, false, refuse, "number 2"},
		{"two partitions", gptDisk("a", "b"), Volume{}, zeros, false, refuse, "2 partitions"},
		{"lost table, large sectors", largeSectors, Volume{}, ext4At(testMiB, 0), false, refuse,
			"ext4 begins at byte 1048576"},
		{"within a large sector", largeSectors, Volume{}, ext4At(63*512, 0), false, refuse,
			"ext4 begins at byte 32256"},
	} {
		o := Persistent{Disk: c.state, Volume: c.content, Residue: c.residue, Pending: c.pending}
		if got := judge(o); got.Verdict != c.want || !strings.Contains(inBrief(got), c.says) {
			t.Errorf("%s: verdict %+v; want %d with %q", c.name, got, c.want, c.says)
		}
		o.CID, o.AllowForeign, o.FileSystem, o.Label = "vol-1", true, probe.Ext4, layout.GPT
		if got, err := o.judge(onRecord); err == nil && got.Verdict != keep {
			t.Errorf("%s, on record: verdict %+v, want it never formatted", c.name, got)
		}
		o.Damaged = layout.ErrDamaged
		if damaged := judge(o); damaged.Verdict != refuse {
			t.Errorf("%s, table damaged: verdict %d, want it refused", c.name, damaged.Verdict)
		}
	}
}

// TestJudgeWhereNewVolumesHoldNoise: random bytes count as blank if the settings allow it, and nothing else does.
func TestJudgeWhereNewVolumesHoldNoise(t *testing.T) {
	for _, c := range []struct {
		name    string
		state   layout.State
		residue probe.Residue
		damaged error
		want    verdict
	}{
		{"noise", diskWithoutTable(probe.Blank), noise, nil, create},
		{"noise that looks like a signature", diskWithoutTable(probe.F2FS), noise, nil, create},
		{"noise that looks like a table", state(100*testMiB, layout.Table{}), noise, layout.ErrDamaged, create},
		{"an empty table in noise", oneEmpty, noise, nil, create},
		{"our partition, noise inside", gptDisk("bosh-partition-0"), noise, nil, format},
		{"zeros", diskWithoutTable(probe.Blank), zeros, nil, create},
		{"data", diskWithoutTable(probe.Blank), remains, nil, refuse},
		{"a backup superblock", diskWithoutTable(probe.Blank), ext4At(0, 128*testMiB), nil, refuse},
		{"a damaged table", diskWithoutTable(probe.Blank), remains, layout.ErrDamaged, refuse},
		{"a foreign partition, noise inside", gptDisk("x"), noise, nil, refuse},
	} {
		o := Persistent{Disk: c.state, Volume: volumeOf(probe.Blank), Residue: c.residue, Damaged: c.damaged,
			AllowNoise: true}
		if got := judge(o); got.Verdict != c.want {
			t.Errorf("%s: %+v, want %d", c.name, got, c.want)
		}
		o.CID, o.FileSystem, o.Label = "vol-1", probe.Ext4, layout.GPT
		if got, err := o.judge(onRecord); err == nil && got.Verdict != refuse {
			t.Errorf("%s, on record: %+v, want it refused", c.name, got)
		}
	}
}

func TestMountPersistent(t *testing.T) {
	ext4, blank := volumeOf(probe.Ext4), volumeOf(probe.Blank)
	faulty, small := ext4, ext4
	faulty.Content.Errors = true
	small.Content.Bytes = testMiB
	recovered := gptDisk("bosh-partition-0")
	recovered.Table = named("bosh-partition-0")
	recovered.Table.Lost, recovered.Table.GUID = layout.FirstCopy, "G"
	recovered.Table.Partitions[0].Size = 98 * testMiB
	full := gptDisk("x")
	full.Table.Partitions[0].Size = 98 * testMiB
	grown := full
	grown.Bytes = 900 * testMiB
	preparing := gptDisk(PreparingName)
	preparing.Table.GUID, preparing.Table.Partitions[0].Size = "G", 98*testMiB
	dosFull := dosDisk
	dosFull.Table.Partitions = slices.Clone(dosDisk.Table.Partitions)
	dosFull.Table.GUID, dosFull.Table.Partitions[0].Size = "D", 98*testMiB
	sized := func(bytes int64) layout.State {
		s := diskWithoutTable(probe.Blank)
		s.Bytes = bytes
		return s
	}
	huge := sized(3 << 40)
	for _, c := range []struct {
		name     string
		o        Persistent
		want     string
		notGrown string
		fails    string
	}{
		{name: "blank", o: Persistent{Disk: diskWithoutTable(probe.Blank)},
			want: "create-table make-file-system1 name-partition mount1"},
		{name: "blank, DOS", o: Persistent{Disk: diskWithoutTable(probe.Blank), Label: layout.MBR},
			want: "create-table make-file-system1 name-partition mount1"},
		{name: "blank, unknown file system", o: Persistent{Disk: diskWithoutTable(probe.Blank), FileSystem: "zfs"},
			fails: `persistent_disk_fs "zfs" is not supported, only ext4 and xfs`},
		{name: "unfinished, unknown file system", o: Persistent{Disk: gptDisk("bosh-partition-0"), Volume: blank, FileSystem: "zfs"}, fails: `"zfs" is not supported`},
		{name: "kept, unknown file system", o: Persistent{Disk: full, Volume: ext4, FileSystem: "zfs"}, want: "mount1"},
		{name: "too large for its table", o: Persistent{Disk: huge, Label: layout.MBR}, fails: "larger than 2 TiB"},
		{name: "too small", o: Persistent{Disk: sized(2 * testMiB)}, fails: "/dev/vdb has 2.0 MiB, which is too small"},
		{name: "no size", o: Persistent{Disk: sized(0)}, fails: "/dev/vdb has 0.0 MiB, which is too small"},
		{name: "large", o: Persistent{Disk: huge}, want: "create-table make-file-system1 name-partition mount1"},
		{name: "foreign", o: Persistent{Disk: diskWithoutTable(probe.LVM)},
			fails: "/dev/vdb is refused: the whole disk holds LVM"},
		{name: "foreign, released", o: Persistent{Disk: diskWithoutTable(probe.LVM), AllowForeign: true},
			want: "create-table make-file-system1 name-partition mount1"},
		{name: "foreign with a superblock, released", o: Persistent{Disk: diskWithoutTable(probe.LVM),
			AllowForeign: true, Superblocks: []probe.Superblock{{Kind: probe.Ext4, Start: 4096}}},
			fails: "LVM physical volume. Attach the right disk: vol-1 is expected to be blank, or to have a single partition with ext4 or xfs. Because ext4 begins at byte 4096, no setting allows formatting it"},
		{name: "foreign with a damaged superblock, released", o: Persistent{Disk: diskWithoutTable(probe.Unknown),
			AllowForeign: true, Superblocks: []probe.Superblock{{Kind: probe.Unknown}}},
			fails: "Because a damaged ext4 or xfs begins at byte 0, no setting allows formatting it"},
		{name: "a lost table, released", o: Persistent{Disk: diskWithoutTable(probe.Blank), AllowForeign: true,
			Residue: ext4At(16*testMiB, 0)},
			fails: "ext4 begins at byte 16777216. Attach the right disk: vol-1 is expected to be blank, or to have a single " +
				"partition with ext4 or xfs. To look at it without writing, run 'mount -t ext4 " +
				"-o ro,noload,loop,offset=16777216 /dev/vdb /mnt'. Because ext4 begins at byte 16777216, no setting " +
				"allows formatting it. DESTRUCTIVE: to lose its content and use it empty, run 'agent disk format vol-1 --yes'"},
		{name: "a lost superblock, released", o: Persistent{Disk: gptDisk("bosh-partition-0"), Volume: blank,
			AllowForeign: true, Residue: ext4At(0, 128*testMiB)},
			fails: "take a snapshot of the disk first, then run 'e2fsck -b 32768 -B 4096 /dev/vdb1'. Because there is a backup"},
		{name: "bytes, released", o: Persistent{Disk: diskWithoutTable(probe.Blank), AllowForeign: true,
			Residue: remains}, want: "create-table make-file-system1 name-partition mount1"},
		{name: "unfinished, with a superblock", o: Persistent{Disk: preparing, Volume: blank, Pending: true,
			Superblocks: []probe.Superblock{{Kind: probe.Ext4}}},
			want: "make-file-system1 name-partition mount1"},
		{name: "damaged, released", o: Persistent{Disk: state(100*testMiB, layout.Table{}),
			Damaged: layout.ErrDamaged, AllowForeign: true},
			want: "create-table make-file-system1 name-partition mount1"},
		{name: "never formatted", o: Persistent{Disk: recovered, Volume: blank},
			want: "repair-table name-partition make-file-system1 name-partition mount1"},
		{name: "kept", o: Persistent{Disk: full, Volume: ext4}, want: "mount1"},
		{name: "one good copy", o: Persistent{Disk: recovered, Volume: ext4}, want: "repair-table mount1"},
		{name: "unfinished in a DOS table, complete", o: Persistent{Disk: dosFull, Volume: ext4, Pending: true,
			Finished: true}, want: "name-partition mount1"},
		{name: "unfinished in a DOS table, blank", o: Persistent{Disk: dosFull, Volume: blank, Pending: true},
			want: "make-file-system1 name-partition mount1"},
		{name: "unfinished by its name, blank", o: Persistent{Disk: preparing, Volume: blank, Pending: true},
			want: "make-file-system1 name-partition mount1"},
		{name: "unfinished by its name, complete", o: Persistent{Disk: preparing, Volume: ext4, Pending: true,
			Finished: true}, want: "name-partition mount1"},
		{name: "unfinished by its name", o: Persistent{Disk: preparing, Volume: faulty, Pending: true},
			want: "make-file-system1 name-partition mount1"},
		{name: "unfinished in a DOS table", o: Persistent{Disk: dosFull, Volume: faulty, Pending: true},
			want: "make-file-system1 name-partition mount1"},
		{name: "errors on record (D.22)", o: Persistent{Disk: full, Volume: faulty}, want: "check-file-system1 mount1"},
		{name: "grown by the IaaS", o: Persistent{Disk: grown, Volume: ext4}, want: "grow-partition mount1 grow-file-system1"},
		{name: "grown, the file system lags behind", o: Persistent{Disk: grown, Volume: small}, want: "grow-partition mount1 grow-file-system1"},
		{name: "the file system lags behind (D.6)", o: Persistent{Disk: full, Volume: small},
			want: "mount1 grow-file-system1"},
		{name: "cannot be grown",
			o: Persistent{Disk: func() layout.State { s := grown; s.Table.Fixed = "it has an extended partition"; return s }(),
				Volume: ext4}, want: "mount1", notGrown: "it has an extended partition"},
		{name: "preformatted", o: Persistent{Disk: state(100*testMiB, layout.Table{}), Volume: ext4,
			Preformatted: true}, want: "mount"},
		{name: "preformatted, grown", o: Persistent{Disk: state(100*testMiB, layout.Table{}), Volume: small,
			Preformatted: true}, want: "mount grow-file-system"},
		{name: "preformatted, blank", o: Persistent{Disk: state(100*testMiB, layout.Table{}), Volume: blank,
			Preformatted: true}, fails: "there is nothing to mount"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.o.FileSystem == "" {
				c.o.FileSystem = probe.Ext4
			}
			if c.o.Label == "" {
				c.o.Label = layout.GPT
			}
			c.o.CID, c.o.Serial = "vol-1", "s1"
			if c.o.Residue.NonZero == 0 { // not looked
				c.o.Residue = zeros
			}
			p, err := MountPersistent(c.o, record.New(), "/store")
			notGrown := p.NotGrown
			wantError(t, err, c.fails)
			if got := ops(p); got != c.want || p.Begin != "" || p.Finish || notGrown != c.notGrown {
				t.Errorf("plan %q, begin %q, finish %v, not grown %q; want %q, not grown %q", got, p.Begin, p.Finish, notGrown,
					c.want, c.notGrown)
			}
			for _, change := range p.Changes {
				if change.Op == CreateTable && (!change.Destructive ||
					!strings.Contains(change.Proof, "persistent disk vol-1, ") || !strings.HasSuffix(change.Proof, ", serial s1")) {
					t.Errorf("%+v, want it destructive, with a proof", change)
				}
			}
		})
	}
}

// onRecord is the record of an agent whose store was vol-1.
var onRecord = record.Record{Disks: map[string]record.Disk{"vol-1": {}}}

// recorded returns the record of an agent that last mounted this disk on the store.
func recorded(cid string) record.Record {
	r := record.New()
	r.Store, r.Published, r.Disks[cid] = cid, true, record.Disk{FileSystem: "u-" + cid}
	return r
}

// asking adds an operator's request to a record.
func asking(r record.Record, a record.Action, cid string) record.Record {
	r.Asked = maps.Clone(r.Asked)
	r.Asked[cid] = a
	return r
}

func TestStoreDisk(t *testing.T) {
	two, none, unpublished := []string{"a", "b"}, record.New(), recorded("b")
	unpublished.Published = false
	formerly := record.New()
	formerly.Disks["a"] = record.Disk{FileSystem: "u-a"}
	damaged := errors.New("managed_disk_settings.json is damaged")
	for _, c := range []struct {
		name           string
		o              Surroundings
		mount, warning string
		fails          string
	}{
		{"none, and a disk was the store", Surroundings{Record: formerly, Known: two}, "", "", ""},
		{"ours", Surroundings{Record: recorded("a"), ManagedCID: "a", Known: two}, "a", "", ""},
		{"ours, a crash before it was published", Surroundings{Record: unpublished, ManagedCID: "a", Known: two}, "b", "", ""},
		{"the only one, recorded by another agent", Surroundings{Record: none, ManagedCID: "a", Known: two[:1]}, "a", "", ""},
		{"one of two, recorded by another agent after ours", Surroundings{Record: recorded("a"), ManagedCID: "b", Known: two}, "b", "", ""},
		{"the same, the other accepted", Surroundings{Record: asking(none, record.Accept, "a"), ManagedCID: "b", Known: two}, "a", "", ""},
		{"the same, accepted itself", Surroundings{Record: asking(recorded("a"), record.Accept, "b"), ManagedCID: "b", Known: two}, "b", "", ""},
		{"the same, which left the store mounted", Surroundings{Record: none, ManagedCID: "b", Known: two, OnStore: "b"}, "b", "", ""},
		{"the same, directories", Surroundings{Record: none, ManagedCID: "b", Known: two, Directories: true}, "b", "", ""},
		{"a disk other than the recorded one is on the store", Surroundings{Record: recorded("a"), ManagedCID: "a", Known: two, OnStore: "b"}, "b", "", ""},
		{"nothing is on record", Surroundings{Record: none, Known: two}, InspectDisks, "", ""},
		{"nothing is on record, and no disk is known", Surroundings{Record: none}, "", "", ""},
		{"ours, and what other agents read is lost", Surroundings{Record: recorded("a"), Known: two}, "a", "", ""},
		{"none is known, left by another agent (D.15)", Surroundings{Record: none, ManagedCID: "a"}, "", "is in neither settings nor hints", ""},
		{"none is known, its identity is on record", Surroundings{Record: recorded("a"), ManagedCID: "a"}, "", "", "agent disk release a"},
		{"others are known", Surroundings{Record: none, ManagedCID: "a", Known: two[1:]}, "", "", "is in neither settings nor hints"},
		{"others are known, one accepted", Surroundings{Record: asking(recorded("a"), record.Accept, "b"), ManagedCID: "a", Known: two[1:]}, "b", "", ""},
		{"damaged", Surroundings{Record: recorded("a"), Unreadable: damaged, Known: two}, "", "", "is damaged"},
		{"damaged, one accepted", Surroundings{Record: asking(recorded("a"), record.Accept, "b"), Unreadable: damaged, Known: two}, "b", "", ""},
	} {
		cid, warning, err := StoreDisk(c.o)
		wantError(t, err, c.fails)
		if err == nil && cid != c.mount || !strings.Contains(warning, c.warning) || (warning == "") != (c.warning == "") {
			t.Errorf("%s: %q, %q; want %q, %q", c.name, cid, warning, c.mount, c.warning)
		}
	}
}

func TestCheckKnown(t *testing.T) {
	for _, c := range []struct {
		known          string
		devices        int
		named, refused string
	}{
		{"", 0, "", ""},
		{"a", 1, "", ""},
		{"a b", 2, "", ""}, // while one takes the other's place
		{"a b c", 3, "", "3 persistent disks are attached"},
		{"a b c", 2, "", ""}, // one was detached without a word
		{"a b", 2, "a b", ""},
		{"a b c", 3, "a b", ""},
		{"a b c d", 4, "a b", "4 persistent disks are attached"},
		{"a", 1, "a b", `"b", named "name of b", is not attached`},
		{"", 0, "b", `"b", named "name of b", is not attached`},
	} {
		known := map[string]bool{}
		for _, cid := range strings.Fields(c.known) {
			known[cid] = true
		}
		var named []Association
		for _, cid := range strings.Fields(c.named) {
			named = append(named, Association{Name: "name of " + cid, CID: cid})
		}
		wantError(t, CheckKnown(known, c.devices, named), c.refused)
	}
	var advised interface{ Advice() string }
	if err := CheckKnown(nil, 3, nil); !errors.As(err, &advised) || !strings.HasPrefix(advised.Advice(), "detach ") {
		t.Errorf("the advice for too many disks is not to detach some: %v", err)
	}
}

func TestGrowTo(t *testing.T) {
	part := func(start, size int64) layout.Partition {
		return layout.Partition{Number: 1, Start: start * testMiB, Size: size * testMiB}
	}
	table := func(label layout.Label, parts ...layout.Partition) layout.Table {
		return layout.Table{Label: label, Partitions: parts}
	}
	after := layout.Partition{Number: 2, Start: 500 * testMiB, Size: testMiB}
	for _, c := range []struct {
		name     string
		size     int64
		table    layout.Table
		end      int64
		obstacle string
	}{
		{"room at the end", 900 * testMiB, table(layout.GPT, part(1, 100)), 899 * testMiB, ""},
		{"room up to the next partition", 900 * testMiB, table(layout.GPT, part(1, 100), after), 500 * testMiB, ""},
		{"no room", 900 * testMiB, table(layout.GPT, part(1, 898)), 0, ""},
		{"no room, DOS", 900 * testMiB, table(layout.MBR, part(1, 899)), 0, ""},
		{"DOS to the very end", 900 * testMiB, table(layout.MBR, part(1, 100)), 900 * testMiB, ""},
		{"DOS across 2 TiB (D.7)", 3 << 40, table(layout.MBR, part(1, 100)), 0, "2 TiB"},
		{"GPT across 2 TiB", 3 << 40, table(layout.GPT, part(1, 100)), 3<<40 - testMiB, ""},
		{"a table that cannot be rewritten", 900 * testMiB, layout.Table{Label: layout.MBR, Fixed: "extended",
			Partitions: []layout.Partition{part(1, 100)}}, 0, "extended"},
		{"metadata at the end", 900 * testMiB, table(layout.MBR, part(1, 100)), 0, "metadata of a md RAID member"},
		{"not there", 900 * testMiB, table(layout.GPT), 0, "not in the table"},
	} {
		s := state(c.size, c.table)
		if c.name == "metadata at the end" {
			s.Trailer = probe.MD
		}
		end, obstacle := growTo(s, 1)
		if end != c.end || !strings.Contains(obstacle, c.obstacle) || (obstacle == "") != (c.obstacle == "") {
			t.Errorf("%s: end %d MiB, %q; want %d, %q", c.name, end/testMiB, obstacle, c.end/testMiB, c.obstacle)
		}
	}
}

func TestGrowMounted(t *testing.T) {
	disk900 := func(size int64, parts int) layout.State {
		s := state(900*testMiB, named(make([]string, parts)...))
		if parts > 0 {
			s.Table.Partitions[0].Size = size * testMiB
		}
		return s
	}
	lags := mountedOn("/store", probe.XFS)
	lags.Growable = true
	recovered := disk900(898, 1)
	recovered.Table.Lost = layout.SecondCopy
	for _, c := range []struct {
		name     string
		o        Persistent
		want     string
		notGrown string
	}{
		{"as large as its disk", Persistent{Disk: disk900(898, 1), Volume: mountedOn("/store", probe.XFS)}, "", ""},
		{"room that older agents left", Persistent{Disk: disk900(800, 1), Volume: mountedOn("/store", probe.XFS)},
			"", ""},
		{"grown", Persistent{Disk: disk900(400, 1), Volume: mountedOn("/store", probe.XFS)},
			"grow-partition grow-file-system1", ""},
		{"the file system lags behind", Persistent{Disk: disk900(898, 1), Volume: lags}, "grow-file-system1", ""},
		{"one good copy", Persistent{Disk: recovered, Volume: lags}, "repair-table grow-file-system1", ""},
		{"two partitions", Persistent{Disk: disk900(400, 2), Volume: lags}, "", ""},
		{"preformatted", Persistent{Disk: disk900(400, 0), Volume: lags, Preformatted: true}, "grow-file-system", ""},
	} {
		p := GrowMounted(c.o, "/store")
		notGrown := p.NotGrown
		if got := ops(p); got != c.want || notGrown != c.notGrown {
			t.Errorf("%s: plan %q, %q; want %q, %q", c.name, got, notGrown, c.want, c.notGrown)
		}
	}
}

func TestGrowRoot(t *testing.T) {
	root := func(size int64, v Volume) Root {
		s := state(900*testMiB, named("root"))
		s.Table.Partitions[0].Size = size * testMiB
		return Root{Disk: s, Partition: 1, Volume: v}
	}
	lags := mountedOn("/", probe.Ext4)
	lags.Growable = true
	for _, c := range []struct {
		name string
		o    Root
		want string
	}{
		{"as large as its disk", root(898, mountedOn("/", probe.Ext4)), ""},
		{"grown by a little", root(890, mountedOn("/", probe.Ext4)), "grow-partition grow-file-system1"},
		{"the file system lags behind", root(898, lags), "grow-file-system1"},
		{"a kind that is not grown", root(400, mountedOn("/", probe.Ext2)), "grow-partition"},
	} {
		p := GrowRoot(c.o)
		if got := ops(p); got != c.want || p.SizeCheck.Directory != "/" {
			t.Errorf("%s: plan %q, compared afterwards: %q; want %q", c.name, got, p.SizeCheck.Directory, c.want)
		}
	}
	for _, c := range []struct{ skip, create, named, want bool }{
		{false, false, false, true}, {false, false, true, true}, {false, true, false, false}, {false, true, true, true}, {true, false, true, false},
	} {
		if got := RootGrowth(c.skip, c.create, c.named); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
