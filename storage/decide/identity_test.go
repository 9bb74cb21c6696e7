package decide

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"cambium/platform/filesystem/probe"
	"cambium/storage/record"
)

// TestDisksOnRecordAreNeverFormatted: a disk that matches a record by CID, file system or table is never formatted,
// whatever it contains and whatever the deployment allows.
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
			o.Residue = zeros
			if p, err := MountPersistent(o, record.New(), "/store"); err != nil || !p.has(MakeFileSystem) {
				t.Fatalf("without a record it is not formatted, so this shows nothing: %v %v", p, err)
			}
			p, err := MountPersistent(o, records, "/store")
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
			FileSystem: probe.Ext4}
		o.Volume.Content.UUID = uuid
		if change != nil {
			change(&o)
		}
		return o
	}
	for _, c := range []struct {
		name  string
		o     Persistent
		wrong string // empty if it is mounted
	}{
		{"its own", with("U", nil), ""},
		{"grown", with("U", func(o *Persistent) { o.Disk.Bytes *= 2 }), ""},
		{"another", with("V", nil), "has a different file system"},
		{"shrunk", with("U", func(o *Persistent) { o.Disk.Bytes-- }), "is smaller"},
		{"a clone under a new CID", with("U", func(o *Persistent) { o.CID = "vol-2" }), ""},
		{"a stranger under a new CID", with("V", func(o *Persistent) { o.CID = "vol-2" }), ""},
		{"preformatted, another", with("V", func(o *Persistent) { o.Preformatted = true }), "has a different file system"},
		{"preformatted, of a kind without an identifier", with("", func(o *Persistent) {
			o.Preformatted, o.Volume.Content.Kind = true, "btrfs"
		}), "has a different file system"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := MountPersistent(c.o, records, "/store")
			if c.wrong == "" {
				if err != nil || !p.has(Mount) {
					t.Errorf("plan %v, error %v; want it mounted", p.Changes, err)
				}
				return
			}
			if _, refused := errors.AsType[*Refusal](err); !refused || len(p.Changes) > 0 {
				t.Fatalf("plan %v, error %v; want it refused", p.Changes, err)
			}
			for _, text := range []string{c.wrong, "file system U", "file system " + c.o.Volume.Content.UUID,
				"agent disk accept vol-1"} {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("error %q, want it to say %q", err, text)
				}
			}
		})
	}
	records.Asked = map[string]record.Action{"vol-1": record.Accept}
	if p, err := MountPersistent(with("V", nil), records, "/store"); err != nil || !p.has(Mount) {
		t.Errorf("another that was accepted: plan %v, error %v; want it mounted", p.Changes, err)
	}
}

// TestDuplicateUUID: XFS refuses to mount a UUID that is already mounted.
func TestDuplicateUUID(t *testing.T) {
	for kind, want := range map[probe.Kind]bool{probe.XFS: true, probe.Ext4: false} {
		o := Persistent{CID: "vol-2", Disk: gptDisk("x"), Volume: volumeOf(kind), DuplicateUUID: true,
			MountOptions: []string{"noatime"}}
		p, err := MountPersistent(o, record.New(), "/store")
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(p.Changes, func(c Change) bool { return c.Op == Mount })
		if got := slices.Contains(p.Changes[i].MountOptions, "nouuid"); got != want ||
			!slices.Contains(p.Changes[i].MountOptions, "noatime") {
			t.Errorf("%s: options %v", kind, p.Changes[i].MountOptions)
		}
	}
}
