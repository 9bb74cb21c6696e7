package decide

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"cambium/platform/filesystem/probe"
	"cambium/storage/record"
)

// A disk that matches a record by its CID, its file system or its table is never formatted, whatever it looks like and whatever
// the deployment allows.
func TestDisksOnRecordAreNeverFormatted(t *testing.T) {
	records := record.Record{Disks: map[string]record.Disk{"vol-1": {FileSystem: "U", Table: "T", Bytes: 1}}}
	blank, unnamed := diskWithoutTable(probe.Blank), gptDisk("x")
	unnamed.Table.GUID = "T"
	ours := gptDisk("bosh-partition-0")
	ours.Table.GUID = "T"
	other := volumeOf(probe.Btrfs)
	other.Content.UUID = "U"
	for name, o := range map[string]Persistent{
		"blank, by CID":                    {CID: "vol-1", Disk: blank},
		"our empty partition, by table":    {CID: "vol-9", Disk: ours, Volume: volumeOf(probe.Blank)},
		"unfinished on record, by table":   {CID: "vol-9", Disk: ours, Volume: volumeOf(probe.Blank), Pending: true},
		"unfinished file system, by table": {CID: "vol-9", Disk: ours, Volume: volumeOf(probe.Ext4), Pending: true},
		"foreign allowed, by table": {CID: "vol-9", Disk: unnamed, Volume: volumeOf(probe.Blank),
			AllowForeign: true},
		"foreign allowed, by file system": {CID: "vol-9", Disk: gptDisk("x"), Volume: other, AllowForeign: true},
	} {
		t.Run(name, func(t *testing.T) {
			o.FileSystem = probe.Ext4
			o.Record, o.Residue = record.Record{}, zeros
			if p, err := MountPersistent(o, "/store"); err != nil || !p.has(MakeFileSystem) {
				t.Fatalf("without a record it is not formatted, so this shows nothing: %v %v", p, err)
			}
			o.Record = records
			p, err := MountPersistent(o, "/store")
			r, refused := errors.AsType[*Refusal](err)
			if !refused || !strings.Contains(r.Found, "is on record") || len(p.Changes) > 0 ||
				!strings.Contains(err.Error(), "agent disk format "+o.CID+" --yes") {
				t.Errorf("plan %v, error %v; want it refused", p.Changes, err)
			}
		})
	}
}

func TestMountingChecksIdentity(t *testing.T) {
	records := record.Record{Disks: map[string]record.Disk{"vol-1": {FileSystem: "U", Table: "T", Bytes: 100 * testMiB}}}
	with := func(uuid string, change func(*Persistent)) Persistent {
		o := Persistent{CID: "vol-1", Disk: gptDisk("bosh-partition-0"), Volume: volumeOf(probe.XFS),
			Record: records, FileSystem: probe.Ext4}
		o.Volume.Content.UUID = uuid
		if change != nil {
			change(&o)
		}
		return o
	}
	accepted := records
	accepted.Asked = map[string]record.Action{"vol-1": record.Accept}
	for _, c := range []struct {
		name  string
		o     Persistent
		wrong string // empty if it is mounted
	}{
		{"its own", with("U", nil), ""},
		{"grown", with("U", func(o *Persistent) { o.Disk.Bytes *= 2 }), ""},
		{"another", with("V", nil), "has a different file system"},
		{"another that was accepted", with("V", func(o *Persistent) { o.Record = accepted }), ""},
		{"shrunk", with("U", func(o *Persistent) { o.Disk.Bytes-- }), "is smaller"},
		{"a clone under a new CID", with("U", func(o *Persistent) { o.CID = "vol-2" }), ""},
		{"a stranger under a new CID", with("V", func(o *Persistent) { o.CID = "vol-2" }), ""},
		{"preformatted, another", with("V", func(o *Persistent) { o.Preformatted = true }), "has a different file system"},
		{"preformatted, of a kind without an identifier", with("", func(o *Persistent) {
			o.Preformatted, o.Volume.Content.Kind = true, "btrfs"
		}), "has a different file system"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := MountPersistent(c.o, "/store")
			if c.wrong == "" {
				if err != nil || !p.has(Mount) {
					t.Errorf("plan %v, error %v; want it mounted", p.Changes, err)
				}
				return
			}
			if _, refused := errors.AsType[*Refusal](err); !refused || len(p.Changes) > 0 {
				t.Fatalf("plan %v, error %v; want it refused", p.Changes, err)
			}
			for _, text := range []string{c.wrong, "file system U", "file system " + c.o.Volume.Content.UUID, "agent disk accept vol-1"} {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("error %q, want it to say %q", err, text)
				}
			}
		})
	}
}

// XFS refuses to mount a UUID that is mounted already.
func TestDuplicateUUID(t *testing.T) {
	for kind, want := range map[probe.Kind]bool{probe.XFS: true, probe.Ext4: false} {
		o := Persistent{CID: "vol-2", Disk: gptDisk("x"), Volume: volumeOf(kind), DuplicateUUID: true, MountOptions: []string{"noatime"}}
		p, err := MountPersistent(o, "/store")
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(p.Changes, func(c Change) bool { return c.Op == Mount })
		if got := slices.Contains(p.Changes[i].MountOptions, "nouuid"); got != want || !slices.Contains(p.Changes[i].MountOptions, "noatime") {
			t.Errorf("%s: options %v", kind, p.Changes[i].MountOptions)
		}
	}
}

func TestClaims(t *testing.T) {
	a, b := []string{"A"}, []string{"B"}
	for _, c := range []struct {
		name    string
		claims  Claims
		owner   string
		refused string // the disk that it is instead, when it is about to be mounted for B
	}{
		{"nothing known", Claims{}, "", ""},
		{"B by its hint", Claims{ByPath: b}, "B", ""},
		{"mounted as A, the path of B leads there", Claims{Recorded: "A", ByIdentifier: a, ByPath: b}, "A", "A"},
		{"mounted as A, whose hint is gone", Claims{Recorded: "A", ByPath: b, ByRecord: a}, "A", "A"},
		{"mounted as A, no hint leads there", Claims{Recorded: "A"}, "A", "A"},
		{"mounted as A, whose hint leads elsewhere", Claims{Recorded: "A", Elsewhere: a}, "", ""},
		{"mounted as A, whose identifiers it lacks", Claims{Recorded: "A", Absent: a}, "", ""},
		{"mounted as A, the hint of B leads elsewhere", Claims{Recorded: "A", Elsewhere: b, Absent: b}, "A", "A"},
		{"A by identifier, B by path", Claims{ByIdentifier: a, ByPath: b}, "A", "A"},
		{"B by identifier, A by path", Claims{ByIdentifier: b, ByPath: a}, "B", ""},
		{"two hints with one path", Claims{ByPath: []string{"A", "B"}}, "A", "A"},
		{"two hints with one path, it was B", Claims{ByPath: []string{"A", "B"}, ByRecord: b}, "B", ""},
		{"two hints with one path, A is gone", Claims{ByPath: []string{"A", "B"}, Absent: a}, "A", ""},
		{"mounted as A, though it has lost its identifiers", Claims{Recorded: "A", ByPath: []string{"A", "B"}, Absent: a}, "A", "A"},
		{"A by identifier, though it has lost its others", Claims{ByIdentifier: a, ByPath: b, Absent: a}, "A", "A"},
		{"a clone of A attached as B", Claims{ByPath: b, ByRecord: a}, "B", ""},
		{"a clone that was both", Claims{ByPath: b, ByRecord: []string{"A", "B"}}, "B", ""},
		{"A is on record, the device carries the ids of B", Claims{Recorded: "A", ByPath: b, ByRecord: b}, "B", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := c.claims.Owner(); got != c.owner {
				t.Errorf("Owner = %q, want %q", got, c.owner)
			}
			err := c.claims.check("B", "/dev/vdb", false)
			want := ""
			if c.refused != "" {
				want = "it is persistent disk " + c.refused
			}
			if c.refused != "" && c.claims.Recorded != "" { // then it is no use to accept it
				want += ", which is mounted. Attach the right disk, or run unmount_disk " + c.refused
			}
			wantError(t, err, want)
			if err := c.claims.check("B", "/dev/vdb", true); (err != nil) != (c.refused != "" && c.claims.Recorded != "") {
				t.Errorf("accepted: %v; want it refused only where it is in use as another", err)
			}
		})
	}
}

// Two clones that have been stores of this agent, and that only their paths tell apart.
func TestTwins(t *testing.T) {
	clones := Claims{ByPath: []string{"A"}, ByRecord: []string{"A", "B"}, Elsewhere: []string{"B"}, Twins: []string{"B"}}
	identified, mounted := clones, clones
	identified.ByPath, identified.ByIdentifier = nil, []string{"A"}
	mounted.Recorded = "A"
	for name, c := range map[string]struct {
		claims   Claims
		accepted bool
		refused  bool
	}{
		"by path": {clones, false, true}, "by path, accepted": {clones, true, false}, "by an identifier": {identified, false, false}, "mounted": {mounted, false, false},
	} {
		if err := c.claims.check("A", "/dev/vdb", c.accepted); (err != nil) != c.refused {
			t.Errorf("%s: %v, want it refused: %v", name, err, c.refused)
		}
	}
}
