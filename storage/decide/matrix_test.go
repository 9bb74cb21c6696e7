package decide

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"cambium/platform/disk/layout"
	"cambium/platform/filesystem/probe"
	"cambium/storage/record"
)

// The matrix lets MountDisk decide about all disks that result from five axes: the content of the volume, the partition
// table around it, the record, the settings and an operator's requests, and whether it is a boot. The axes themselves
// define the expected result. TestRootMatrix in package storage shows that these values are observed on real disks.

// matrixVolume is a value of the first axis.
type matrixVolume struct {
	name    string
	content probe.Content
	residue probe.Residue
	// sound is an ext4 or xfs without errors; fresh is one that was never mounted, and whose making was not completed.
	sound, fresh bool
	// trace is a superblock of ext or xfs, also a damaged one or a backup.
	trace bool
}

func (v matrixVolume) zeros() bool { return v.content.Blank() && v.residue.IsEmpty() }

// superblocks returns what a survey would find of the volume, which begins at start.
func (v matrixVolume) superblocks(start int64) (found []probe.Superblock) {
	if !v.trace {
		return nil
	}
	if !v.content.Blank() {
		kind := v.content.Kind
		if !kind.ExtOrXFS() {
			kind = v.content.Also[0] // below a RAID
		}
		return []probe.Superblock{{Kind: kind, Start: start, UUID: v.content.UUID}}
	}
	for _, s := range v.residue.Found {
		s.Start += start
		found = append(found, s)
	}
	return found
}

func matrixVolumes() []matrixVolume {
	held := func(kind probe.Kind, also ...probe.Kind) probe.Content {
		return probe.Content{Kind: kind, Also: also, UUID: "u-1"}
	}
	volumes := []matrixVolume{
		{name: "zeros", content: probe.Content{Kind: probe.Blank}, residue: zeros},
		{name: "ext4", content: held(probe.Ext4), sound: true, trace: true},
		{name: "xfs", content: held(probe.XFS), sound: true, trace: true},
		{name: "ext4, and a boot sector", content: held(probe.Ext4, probe.DOS), sound: true, trace: true},
		{name: "unfinished ext4", content: held(probe.Ext4), sound: true, fresh: true, trace: true},
		{name: "unfinished xfs", content: held(probe.XFS), sound: true, fresh: true, trace: true},
		{name: "ext4 below RAID", content: held(probe.MD, probe.Ext4), trace: true},
		{name: "ext4 and RAID", content: held(probe.Ext4, probe.MD), trace: true},
		{name: "damaged superblock", content: probe.Content{Kind: probe.Unknown}, trace: true},
		{name: "superblock lost", content: probe.Content{Kind: probe.Blank}, residue: ext4At(0, 128*testMiB),
			trace: true},
		{name: "bytes", content: probe.Content{Kind: probe.Blank}, residue: remains},
		{name: "noise", content: probe.Content{Kind: probe.Blank}, residue: noise},
	}
	for _, kind := range []probe.Kind{probe.Ext2, probe.Ext3, probe.JBD} {
		volumes = append(volumes, matrixVolume{name: string(kind), content: held(kind), trace: true})
	}
	for _, kind := range []probe.Kind{probe.Btrfs, probe.LVM, probe.LUKS, probe.MD, probe.NTFS, probe.FAT, probe.Swap,
		probe.Bcache} {
		volumes = append(volumes, matrixVolume{name: string(kind), content: probe.Content{Kind: kind, UUID: "u-1"}})
	}
	return volumes
}

// matrixTable is a value of the second axis.
type matrixTable struct {
	name  string
	table layout.Table
	// damaged tables cannot be trusted, and preformatted disks have none.
	damaged, preformatted bool
	// older says that an older superblock is beneath the table.
	older bool
	// grown says that the disk is larger than its partition.
	grown bool
}

// one reports whether the volume is in the only partition, and that has number 1.
func (t matrixTable) one() bool {
	return len(t.table.Partitions) == 1 && t.table.Partitions[0].Number == 1
}

// ours reports whether the partition has an agent's name.
func (t matrixTable) ours() bool {
	return t.one() && strings.HasPrefix(t.table.Partitions[0].Name, persistentPrefix)
}

func matrixTables() []matrixTable {
	gpt := func(names ...string) layout.Table {
		t := named(names...)
		t.GUID = "t-1"
		return t
	}
	second, recovered, dos := gpt(PersistentName), gpt(PersistentName), dosDisk.Table
	second.Partitions[0].Number, recovered.Lost, dos.GUID = 2, layout.FirstCopy, "t-1"
	preparing := dos
	preparing.Partitions = slices.Clone(dos.Partitions)
	preparing.Partitions[0].Name = PreparingName
	return []matrixTable{
		{name: "no table"},
		{name: "preformatted", preformatted: true},
		{name: "damaged table", damaged: true},
		{name: "empty GPT", table: layout.Table{Label: layout.GPT, GUID: "t-1"}},
		{name: "empty DOS", table: layout.Table{Label: layout.MBR, GUID: "t-1"}},
		{name: "GPT of an agent", table: gpt(PersistentName)},
		{name: "GPT of an agent, grown", table: gpt(PersistentName), grown: true},
		{name: "GPT of an agent, being prepared", table: gpt(PreparingName)},
		{name: "GPT without a name", table: gpt("")},
		{name: "GPT with one good copy", table: recovered},
		{name: "GPT of two", table: gpt(PersistentName, "x")},
		{name: "GPT with the second alone", table: second},
		{name: "DOS", table: dos},
		{name: "DOS, being prepared", table: preparing},
		{name: "DOS over an older ext4", table: dos, older: true},
	}
}

// matrixRecord is a value of the third axis: the CID under which a disk is on record, and which of this disk's
// identifiers the record has. The disk is attached as vol-1.
type matrixRecord struct {
	name               string
	cid, system, table string
}

var matrixRecords = []matrixRecord{
	{name: "nothing known"},
	{name: "its CID", cid: "vol-1", system: "u-1", table: "t-1"},
	{name: "its CID with another disk", cid: "vol-1", system: "u-9", table: "t-9"},
	{name: "a clone", cid: "vol-0", system: "u-1", table: "t-1"},
	{name: "its file system", cid: "vol-0", system: "u-1", table: "t-9"},
	{name: "its table", cid: "vol-0", system: "u-9", table: "t-1"},
	{name: "others", cid: "vol-0", system: "u-9", table: "t-9"},
}

// matrixWish is a value of the fourth axis.
type matrixWish struct {
	foreign, noise bool
	asked          record.Action
}

var matrixWishes = []matrixWish{{}, {foreign: true}, {noise: true}, {foreign: true, noise: true},
	{asked: record.Accept}, {asked: record.Format}, {foreign: true, asked: record.Format}}

// matrixCell is a disk of the matrix.
type matrixCell struct {
	volume matrixVolume
	table  matrixTable
	record matrixRecord
	wish   matrixWish
	boot   bool
}

func (c matrixCell) pending() bool {
	return c.table.one() && c.table.table.Partitions[0].Name == PreparingName
}

// possible excludes impossible combinations: a disk is wiped before its preparation is recorded.
func (c matrixCell) possible() bool {
	if c.pending() && (c.table.older || c.volume.content.Blank() && !c.volume.zeros()) {
		return false
	}
	return !c.volume.fresh || c.pending()
}

// observed returns the facts that would be observed.
func (c matrixCell) observed() Observed {
	v, t := c.volume, c.table
	p := Persistent{Disk: state(100*testMiB, t.table), Preformatted: t.preformatted, AllowForeign: c.wish.foreign,
		AllowNoise: c.wish.noise}
	if t.grown {
		p.Disk.Bytes = 900 * testMiB
	}
	r := record.New()
	if c.record.cid != "" {
		r.Disks[c.record.cid] = record.Disk{FileSystem: c.record.system, Table: c.record.table, Bytes: 1}
	}
	if c.wish.asked != "" {
		r.Asked["vol-1"] = c.wish.asked
	}
	switch {
	case t.preformatted:
		p.Volume.Content = v.content
	case len(t.table.Partitions) == 0:
		p.Disk.Content, p.Residue = v.content, v.residue
		if t.damaged {
			p.Damaged, p.Disk.Content = layout.ErrDamaged, probe.Content{Kind: probe.GPT}
		}
		if !v.content.Blank() { // its signature is found again
			p.Residue = probe.Residue{NonZero: 3, Found: append(v.superblocks(0),
				probe.Superblock{Kind: v.content.Kind})}
		}
	case len(t.table.Partitions) == 1:
		p.Volume.Content, p.Pending = v.content, c.pending()
		if v.content.Blank() && !p.Pending {
			p.Residue = v.residue
		}
		p.Finished = p.Pending && v.content.Data() && !v.fresh
	}
	o := observedDisk(p, r, "")
	if NeedsSuperblocks(o) {
		o.Superblocks = v.superblocks(testMiB)
		if t.older {
			o.Superblocks = append(o.Superblocks, probe.Superblock{Kind: probe.Ext4})
		}
	}
	o.Boot = c.boot
	return o
}

// identified describes how the record identifies the disk, or returns "".
func (c matrixCell) identified() string {
	switch {
	case c.record.cid == "vol-1":
		return "its CID"
	case c.record.cid == "":
	case c.record.table == c.table.table.GUID && c.table.table.GUID != "":
		return "its table"
	case c.record.system == "u-1" && c.volume.content.UUID != "" && (c.volume.trace ||
		len(c.table.table.Partitions) == 1):
		return "its file system"
	}
	return ""
}

// knownAsAnother reports whether the record has another file system for the disk.
func (c matrixCell) knownAsAnother() bool {
	return c.record.cid == "vol-1" && c.wish.asked == "" &&
		(c.record.system != "" && !c.volume.content.Kind.Managed() || c.record.system != "u-1" && c.volume.sound)
}

// outcome returns an error if the disk must not be formatted, mounted or refused as it was.
func (c matrixCell) outcome(formatted bool, refusal error) error {
	v, t := c.volume, c.table
	trace := v.trace || t.older
	nothing := v.zeros() || c.wish.noise && v.residue.Noise
	unfinished := c.pending() && (v.fresh || v.zeros())
	forced := c.wish.asked == record.Format && !t.preformatted
	known := c.identified()
	otherDisk := c.record.cid == "vol-1" && c.record.system != "u-1" && c.wish.asked == ""
	ours := v.sound && !unfinished && (t.one() || t.preformatted) && !otherDisk && !forced
	blank := nothing && !unfinished && !t.preformatted && !(t.damaged && v.zeros()) &&
		(len(t.table.Partitions) == 0 || t.ours()) &&
		known == ""
	switch {
	case formatted && refusal != nil:
		return errors.New("refused, with changes")
	case formatted && forced:
		return nil
	case formatted && c.boot:
		return errors.New("formatted by a boot")
	case formatted && known != "":
		return errors.New("formatted, and " + known + " is on record")
	case formatted && !nothing && !unfinished && (!c.wish.foreign || trace):
		return errors.New("formatted, and it held anything")
	case formatted:
		return nil
	case refusal == nil && !ours && !(t.preformatted && !v.content.Blank() && !c.knownAsAnother()):
		return errors.New("mounted, and neither blank nor ours")
	case refusal == nil:
		return nil
	case ours:
		return errors.New("refused, and it is ours")
	case (blank || unfinished && known == "") && !c.boot, forced:
		return errors.New("refused, and it is blank, unfinished, or to be formatted")
	}
	return nil
}

func TestMatrix(t *testing.T) {
	var cells, formatted, mounted, refused, wrong int
	for _, volume := range matrixVolumes() {
		for _, table := range matrixTables() {
			for _, r := range matrixRecords {
				for _, wish := range matrixWishes {
					for _, boot := range []bool{false, true} {
						c := matrixCell{volume, table, r, wish, boot}
						if !c.possible() {
							continue
						}
						p, err := MountDisk(c.observed())
						formats := slices.ContainsFunc(p.Changes, Change.formats)
						namesACommand(t, err)
						cells++
						switch {
						case err != nil:
							refused++
						case formats:
							formatted++
						default:
							mounted++
						}
						if bad := c.outcome(formats, err); bad != nil && wrong < 20 {
							wrong++
							t.Errorf("%s; %s; on record: %s; %+v; boot %v: %v: %v %v", volume.name, table.name,
								r.name, wish, boot,
								bad, p.Changes, err)
						}
					}
				}
			}
		}
	}
	t.Logf("%d disks: %d formatted, %d mounted, %d refused", cells, formatted, mounted, refused)
	if formatted == 0 || mounted == 0 || refused == 0 {
		t.Error("an outcome was not seen")
	}
}
