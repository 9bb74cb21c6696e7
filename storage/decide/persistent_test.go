package decide

import (
	"errors"
	"strings"
	"testing"

	"cambium/platform/disk"
	"cambium/platform/filesystem"
)

func whole(k filesystem.Kind) disk.State {
	s := state(100*testMiB, disk.Table{})
	s.Content = filesystem.Content{Kind: k}
	return s
}

var (
	dosDisk  = state(100*testMiB, disk.Table{Label: disk.MBR, Partitions: []disk.Partition{{Number: 1, Start: 512, Size: testMiB, Type: "83"}}})
	oneEmpty = state(100*testMiB, disk.Table{Label: disk.GPT})
	nothing  = filesystem.Content{Kind: filesystem.Blank}
)

func gptDisk(names ...string) disk.State { return state(100*testMiB, named(names...)) }

func TestJudge(t *testing.T) {
	for _, c := range []struct {
		name    string
		state   disk.State
		content Volume
		earlier filesystem.Content
		pending bool
		want    Verdict
	}{
		{"blank", whole(filesystem.Blank), Volume{}, nothing, false, Create},
		{"file system without a table (point 1)", whole(filesystem.Ext4), Volume{}, nothing, false, Refuse},
		{"LVM on the disk", whole(filesystem.LVM), Volume{}, nothing, false, Refuse},
		{"empty table", oneEmpty, Volume{}, nothing, false, Create},
		{"empty table over lost data", oneEmpty, Volume{}, filesystem.Content{Kind: filesystem.Ext4}, false, Refuse},
		{"empty table, not looked behind", oneEmpty, Volume{}, filesystem.Content{}, false, Refuse},
		{"ours, ext4", gptDisk("bosh-partition-0"), holding(filesystem.Ext4), nothing, false, Keep},
		{"ours, xfs", gptDisk("bosh-partition-0"), holding(filesystem.XFS), nothing, false, Keep},
		{"any name", gptDisk("whatever"), holding(filesystem.Ext4), nothing, false, Keep},
		{"DOS of an old agent", dosDisk, holding(filesystem.Ext4), nothing, false, Keep},
		{"ours, never formatted (point 5)", gptDisk("bosh-partition-0"), holding(filesystem.Blank), nothing, false, Format},
		{"not named by us, blank", gptDisk("x"), holding(filesystem.Blank), nothing, false, Refuse},
		{"DOS, blank, unfinished on record", dosDisk, holding(filesystem.Blank), nothing, true, Format},
		{"DOS, blank", dosDisk, holding(filesystem.Blank), nothing, false, Refuse},
		{"ours by name, LUKS inside (point 2)", gptDisk("bosh-partition-0"), holding(filesystem.LUKS), nothing, false, Refuse},
		{"ext3 (point 2)", gptDisk("x"), holding(filesystem.Ext3), nothing, false, Refuse},
		{"btrfs (point 2)", gptDisk("x"), holding(filesystem.Btrfs), nothing, false, Refuse},
		{"btrfs, unfinished on record", gptDisk("x"), holding(filesystem.Btrfs), nothing, true, Refuse},
		{"ext4 and RAID", gptDisk("x"), holding(filesystem.Ext4, filesystem.MD), nothing, false, Refuse},
		{"only partition 2", state(100*testMiB, disk.Table{Label: disk.GPT, Partitions: []disk.Partition{{Number: 2, Start: testMiB, Size: testMiB}}}), holding(filesystem.Ext4), nothing, false, Refuse},
		{"two partitions", gptDisk("a", "b"), Volume{}, nothing, false, Refuse},
	} {
		got, proof := Judge(Persistent{Disk: c.state, Volume: c.content, Earlier: c.earlier, Pending: c.pending})
		if got != c.want || proof == "" {
			t.Errorf("%s: verdict %d (%q); want %d", c.name, got, proof, c.want)
		}
		if damaged, _ := Judge(Persistent{Disk: c.state, Volume: c.content, Earlier: c.earlier, Pending: c.pending, Damaged: disk.ErrDamaged}); damaged != Refuse {
			t.Errorf("%s, table damaged: verdict %d, want it refused", c.name, damaged)
		}
	}
}

func TestMountPersistent(t *testing.T) {
	ext4, blank := holding(filesystem.Ext4), holding(filesystem.Blank)
	faulty, small := ext4, ext4
	faulty.Content.Errors = true
	small.Content.Bytes = testMiB
	recovered := gptDisk("bosh-partition-0")
	recovered.Table = named("bosh-partition-0")
	recovered.Table.Recovered, recovered.Table.GUID = true, "G"
	recovered.Table.Partitions[0].Size = 98 * testMiB
	full := gptDisk("x")
	full.Table.Partitions[0].Size = 98 * testMiB
	grown := full
	grown.Bytes = 900 * testMiB
	huge := whole(filesystem.Blank)
	huge.Bytes = 3 << 40
	for _, c := range []struct {
		name     string
		o        Persistent
		want     string
		begin    string
		finish   bool
		notGrown string
		fails    string
	}{
		{name: "blank", o: Persistent{Disk: whole(filesystem.Blank)}, want: "create-table make-file-system1 mount1", finish: true},
		{name: "blank, unknown file system", o: Persistent{Disk: whole(filesystem.Blank), FileSystem: "zfs"}, fails: `persistent_disk_fs "zfs" is not supported, only ext4 and xfs`},
		{name: "unfinished, unknown file system", o: Persistent{Disk: gptDisk("bosh-partition-0"), Volume: blank, FileSystem: "zfs"}, fails: `"zfs" is not supported`},
		{name: "kept, unknown file system", o: Persistent{Disk: full, Volume: ext4, FileSystem: "zfs"}, want: "mount1"},
		{name: "too large for its table", o: Persistent{Disk: huge, Label: disk.MBR}, fails: "larger than 2 TiB"},
		{name: "large", o: Persistent{Disk: huge}, want: "create-table make-file-system1 mount1", finish: true},
		{name: "foreign", o: Persistent{Disk: whole(filesystem.LVM)}, fails: "/dev/vdb is refused: the whole disk holds LVM"},
		{name: "foreign, released", o: Persistent{Disk: whole(filesystem.LVM), AllowForeign: true}, want: "create-table make-file-system1 mount1", finish: true},
		{name: "damaged, released", o: Persistent{Disk: state(100*testMiB, disk.Table{}), Damaged: disk.ErrDamaged, AllowForeign: true}, want: "create-table make-file-system1 mount1", finish: true},
		{name: "never formatted", o: Persistent{Disk: recovered, Volume: blank}, want: "repair-table make-file-system1 mount1", begin: "G", finish: true},
		{name: "kept", o: Persistent{Disk: full, Volume: ext4}, want: "mount1"},
		{name: "one good copy", o: Persistent{Disk: recovered, Volume: ext4}, want: "repair-table mount1"},
		{name: "unfinished on record, complete", o: Persistent{Disk: full, Volume: ext4, Pending: true, Finished: true}, want: "mount1", finish: true},
		{name: "unfinished on record", o: Persistent{Disk: full, Volume: faulty, Pending: true}, want: "make-file-system1 mount1", finish: true},
		{name: "errors on record", o: Persistent{Disk: full, Volume: faulty}, want: "check-file-system1 mount1"},
		{name: "grown by the IaaS", o: Persistent{Disk: grown, Volume: ext4}, want: "grow-partition mount1 grow-file-system1"},
		{name: "grown, the file system lags behind", o: Persistent{Disk: grown, Volume: small}, want: "grow-partition mount1 grow-file-system1"},
		{name: "the file system lags behind", o: Persistent{Disk: full, Volume: small}, want: "mount1 grow-file-system1"},
		{name: "cannot be grown", o: Persistent{Disk: func() disk.State { s := grown; s.Table.Fixed = "it has an extended partition"; return s }(), Volume: ext4}, want: "mount1", notGrown: "it has an extended partition"},
		{name: "preformatted", o: Persistent{Disk: state(100*testMiB, disk.Table{}), Volume: ext4, Preformatted: true}, want: "mount"},
		{name: "preformatted, grown", o: Persistent{Disk: state(100*testMiB, disk.Table{}), Volume: small, Preformatted: true}, want: "mount grow-file-system"},
		{name: "preformatted, blank", o: Persistent{Disk: state(100*testMiB, disk.Table{}), Volume: blank, Preformatted: true}, fails: "there is nothing to mount"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.o.FileSystem == "" {
				c.o.FileSystem = filesystem.Ext4
			}
			if c.o.Label == "" {
				c.o.Label = disk.GPT
			}
			c.o.CID, c.o.Earlier, c.o.Serial = "vol-1", nothing, "s1"
			p, notGrown, err := MountPersistent(c.o, "/store")
			wantError(t, err, c.fails)
			if got := ops(p); got != c.want || p.Begin != c.begin || p.Finish != c.finish || notGrown != c.notGrown {
				t.Errorf("plan %q, begin %q, finish %v, not grown %q; want %q, %q, %v, %q", got, p.Begin, p.Finish, notGrown, c.want, c.begin, c.finish, c.notGrown)
			}
			for _, change := range p.Changes {
				if change.Op == CreateTable && (!change.Destructive || !strings.Contains(change.Proof, "persistent disk vol-1, ") || !strings.HasSuffix(change.Proof, ", serial s1")) {
					t.Errorf("%+v, want it destructive, with a proof", change)
				}
			}
		})
	}
	var foreign *ForeignError
	if _, _, err := MountPersistent(Persistent{Disk: whole(filesystem.LVM)}, "/store"); !errors.As(err, &foreign) || foreign.Found == "" {
		t.Errorf("error %v, want one that can be told from others", err)
	}
}

func TestLastMounted(t *testing.T) {
	for _, c := range []struct {
		name     string
		recorded string
		isKnown  bool
		known    int
		mount    bool
		warning  string
		fails    string
	}{
		{"none", "", false, 2, false, "", ""},
		{"known", "a", true, 2, true, "", ""},
		{"none is known", "a", false, 0, false, "no longer known", ""},
		{"others are known", "a", false, 1, false, "", "not among those known"},
	} {
		mount, warning, err := LastMounted(c.recorded, c.isKnown, c.known)
		wantError(t, err, c.fails)
		if mount != c.mount || !strings.Contains(warning, c.warning) || (warning == "") != (c.warning == "") {
			t.Errorf("%s: %v, %q; want %v, %q", c.name, mount, warning, c.mount, c.warning)
		}
	}
}

func TestLeftToDirector(t *testing.T) {
	for _, c := range []struct {
		name         string
		state        disk.State
		damaged      error
		preformatted bool
		want         bool
	}{
		{"blank", whole(filesystem.Blank), nil, false, true},
		{"a table", gptDisk("x"), nil, false, false},
		{"an empty table", oneEmpty, nil, false, false},
		{"a file system", whole(filesystem.Ext4), nil, false, false},
		{"damaged", whole(filesystem.Blank), disk.ErrDamaged, false, false},
		{"preformatted, blank", whole(filesystem.Blank), nil, true, true},
		{"preformatted", whole(filesystem.Ext4), nil, true, false},
	} {
		if got := LeftToDirector(c.state, c.damaged, c.preformatted); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestCheckKnown(t *testing.T) {
	for _, c := range []struct{ known, named, refused string }{
		{"", "", ""},
		{"a", "", ""},
		{"a b", "", ""}, // while one takes the other's place
		{"a b c", "", "3 persistent disks are attached"},
		{"a b", "a b", ""},
		{"a b c", "a b", ""},
		{"a b c d", "a b", "4 persistent disks are attached"},
		{"a", "a b", `"b", named "name of b", is not attached`},
		{"", "b", `"b", named "name of b", is not attached`},
	} {
		known := map[string]bool{}
		for _, cid := range strings.Fields(c.known) {
			known[cid] = true
		}
		var named []Association
		for _, cid := range strings.Fields(c.named) {
			named = append(named, Association{Name: "name of " + cid, CID: cid})
		}
		wantError(t, CheckKnown(known, named), c.refused)
	}
}

func TestGrowTo(t *testing.T) {
	part := func(start, size int64) disk.Partition {
		return disk.Partition{Number: 1, Start: start * testMiB, Size: size * testMiB}
	}
	table := func(label disk.Label, parts ...disk.Partition) disk.Table {
		return disk.Table{Label: label, Partitions: parts}
	}
	behind := disk.Partition{Number: 2, Start: 500 * testMiB, Size: testMiB}
	for _, c := range []struct {
		name     string
		size     int64
		table    disk.Table
		end      int64
		obstacle string
	}{
		{"room at the end", 900 * testMiB, table(disk.GPT, part(1, 100)), 899 * testMiB, ""},
		{"room up to the next partition", 900 * testMiB, table(disk.GPT, part(1, 100), behind), 500 * testMiB, ""},
		{"no room", 900 * testMiB, table(disk.GPT, part(1, 898)), 0, ""},
		{"no room, DOS", 900 * testMiB, table(disk.MBR, part(1, 899)), 0, ""},
		{"DOS to the very end", 900 * testMiB, table(disk.MBR, part(1, 100)), 900 * testMiB, ""},
		{"DOS across 2 TiB", 3 << 40, table(disk.MBR, part(1, 100)), 0, "2 TiB"},
		{"GPT across 2 TiB", 3 << 40, table(disk.GPT, part(1, 100)), 3<<40 - testMiB, ""},
		{"a table that cannot be rewritten", 900 * testMiB, disk.Table{Label: disk.MBR, Fixed: "extended", Partitions: []disk.Partition{part(1, 100)}}, 0, "extended"},
		{"not there", 900 * testMiB, table(disk.GPT), 0, "not in the table"},
	} {
		end, obstacle := GrowTo(state(c.size, c.table), 1)
		if end != c.end || !strings.Contains(obstacle, c.obstacle) || (obstacle == "") != (c.obstacle == "") {
			t.Errorf("%s: end %d MiB, %q; want %d, %q", c.name, end/testMiB, obstacle, c.end/testMiB, c.obstacle)
		}
	}
}

func TestGrowMounted(t *testing.T) {
	disk900 := func(size int64, parts int) disk.State {
		s := state(900*testMiB, named(make([]string, parts)...))
		if parts > 0 {
			s.Table.Partitions[0].Size = size * testMiB
		}
		return s
	}
	lags := mountedOn("/store", filesystem.XFS)
	lags.Growable = true
	recovered := disk900(898, 1)
	recovered.Table.Recovered = true
	for _, c := range []struct {
		name     string
		o        Persistent
		want     string
		notGrown string
	}{
		{"as large as its disk", Persistent{Disk: disk900(898, 1), Volume: mountedOn("/store", filesystem.XFS)}, "", ""},
		{"room that older agents left", Persistent{Disk: disk900(800, 1), Volume: mountedOn("/store", filesystem.XFS)}, "", ""},
		{"grown", Persistent{Disk: disk900(400, 1), Volume: mountedOn("/store", filesystem.XFS)}, "grow-partition grow-file-system1", ""},
		{"the file system lags behind", Persistent{Disk: disk900(898, 1), Volume: lags}, "grow-file-system1", ""},
		{"one good copy", Persistent{Disk: recovered, Volume: lags}, "repair-table grow-file-system1", ""},
		{"two partitions", Persistent{Disk: disk900(400, 2), Volume: lags}, "", ""},
		{"preformatted", Persistent{Disk: disk900(400, 0), Volume: lags, Preformatted: true}, "grow-file-system", ""},
	} {
		p, notGrown := GrowMounted(c.o, "/store")
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
	lags := mountedOn("/", filesystem.Ext4)
	lags.Growable = true
	for _, c := range []struct {
		name string
		o    Root
		want string
	}{
		{"as large as its disk", root(898, mountedOn("/", filesystem.Ext4)), ""},
		{"grown by a little", root(890, mountedOn("/", filesystem.Ext4)), "grow-partition grow-file-system1"},
		{"the file system lags behind", root(898, lags), "grow-file-system1"},
		{"a kind that is not grown", root(400, mountedOn("/", filesystem.Ext2)), "grow-partition"},
	} {
		p := GrowRoot(c.o)
		if got := ops(p); got != c.want || !p.MustGrow {
			t.Errorf("%s: plan %q, failure allowed: %v; want %q", c.name, got, !p.MustGrow, c.want)
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
