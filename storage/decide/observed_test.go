package decide

import (
	"errors"
	"strings"
	"testing"

	"cambium/platform/filesystem/probe"
	"cambium/storage/record"
)

// observedDisk returns the facts about a disk on a machine without other mounts.
func observedDisk(p Persistent, r record.Record, told string) Observed {
	p.CID, p.FileSystem, p.Label = "vol-1", probe.Ext4, "gpt"
	return Observed{Persistent: p, Surroundings: Surroundings{Record: r, ManagedCID: told, Known: []string{"vol-1"},
		Store: "/store", MigrationTarget: "/target"}}
}

// TestMountDisk covers a disk from its observation to its record.
func TestMountDisk(t *testing.T) {
	blank := Persistent{Disk: diskWithoutTable(probe.Blank), Residue: zeros}
	lvm := Persistent{Disk: diskWithoutTable(probe.LVM), Superblocks: []probe.Superblock{{Kind: probe.Ext4}}}
	store := Persistent{Disk: gptDisk("bosh-partition-0"), Volume: volumeOf(probe.Ext4)}
	store.Volume.Content.UUID = "u-vol-1"
	other := store
	other.Volume.Content.UUID = "u-9"
	mountedStore := store
	mountedStore.Volume.MountedOn, mountedStore.Volume.InUse = "/store", true
	none, ours := record.New(), recorded("vol-1")
	accept, format := asking(ours, record.Accept, "vol-1"), asking(ours, record.Format, "vol-1")
	with := func(o Observed, change func(*Observed)) Observed { change(&o); return o }
	boot := func(o *Observed) { o.Boot = true }
	mounted := func(o *Observed) {
		o.MountedOn, o.MountedFor, o.OnStore, o.StoreTaken = "/store", "vol-1", "vol-1", true
	}
	asAnother := func(o *Observed) {
		o.MountedOn, o.MountedFor, o.OnStore, o.StoreTaken = "/store", "vol-0", "vol-0", true
	}
	for _, c := range []struct {
		name  string
		o     Observed
		ops   string
		wants Placed
		fails string
	}{
		{"blank", observedDisk(blank, none, ""), "create-table make-file-system name-partition mount", Placed{Store: true}, ""},
		{"blank, beside the store", with(observedDisk(blank, none, ""), func(o *Observed) { o.OnStore, o.StoreTaken = "old", true }),
			"create-table make-file-system name-partition mount", Placed{}, ""},
		{"blank, at boot", with(observedDisk(blank, none, "vol-1"), boot), "", Placed{},
			"would have to be formatted, which is not done at boot (persistent disk vol-1, blank, 100.0 MiB). " +
				"Attach the right disk: vol-1 holds the store. DESTRUCTIVE: to lose its content and use it empty, run 'agent disk format vol-1 --yes'"},
		{"blank, on record", observedDisk(blank, ours, "vol-1"), "", Placed{}, "on record"},
		{"blank, accepted", observedDisk(blank, asking(none, record.Accept, "vol-1"), ""), "create-table make-file-system name-partition mount", Placed{Store: true}, ""},
		{"blank, on record, an operator formats it", observedDisk(blank, format, "vol-1"), "create-table make-file-system name-partition mount", Placed{Store: true}, ""},
		{"the same, at boot", with(observedDisk(blank, format, "vol-1"), boot), "create-table make-file-system name-partition mount", Placed{Store: true}, ""},
		{"foreign", observedDisk(lvm, none, ""), "", Placed{}, "run 'agent disk format vol-1 --yes'"},
		{"foreign with a superblock, an operator formats it", observedDisk(lvm, asking(none, record.Format, "vol-1"), ""), "create-table make-file-system name-partition mount", Placed{Store: true}, ""},
		{"the same, where a setting formats foreign disks", with(observedDisk(lvm, asking(none, record.Format, "vol-1"), ""), func(o *Observed) { o.AllowForeign = true }),
			"create-table make-file-system name-partition mount", Placed{Store: true}, ""},
		{"a store", observedDisk(store, ours, "vol-1"), "mount", Placed{Store: true}, ""},
		{"a store, at boot", with(observedDisk(store, ours, "vol-1"), boot), "mount", Placed{Store: true}, ""},
		{"a store, an operator formats it", observedDisk(store, format, "vol-1"), "create-table make-file-system name-partition mount", Placed{Store: true}, ""},
		{"a store in use, an operator formats it", with(observedDisk(mountedStore, format, "vol-1"), mounted), "", Placed{}, "run unmount_disk vol-1 first"},
		{"another store", observedDisk(other, ours, "vol-1"), "", Placed{}, "agent disk accept vol-1"},
		{"another store, accepted", observedDisk(other, accept, "vol-1"), "mount", Placed{Store: true}, ""},
		{"mounted", with(observedDisk(mountedStore, ours, "vol-1"), mounted), "", Placed{Store: true}, ""},
		{"mounted as another", with(observedDisk(mountedStore, none, ""), asAnother), "", Placed{},
			"is persistent disk vol-0, which is mounted. Attach the right disk, or run unmount_disk vol-0"},
		{"absent", Observed{Persistent: Persistent{CID: "vol-1"}, Absent: errors.New("not there")}, "await", Placed{CID: "-"}, ""},
		{"a directory", with(observedDisk(Persistent{}, none, ""), func(o *Observed) { o.Directory = true }), "", Placed{}, "is not a block device"},
		{"not a directory, where disks are", with(observedDisk(Persistent{}, none, ""), func(o *Observed) { o.Directories = true }), "", Placed{}, "is not a directory"},
		{"preformatted and blank, at boot", with(observedDisk(Persistent{Volume: volumeOf(probe.Blank),
			Preformatted: true}, none, "vol-1"), boot), "", Placed{},
			"nothing to mount: attach a disk with a file system"},
		{"a directory that is bound", with(observedDisk(Persistent{}, none, ""), func(o *Observed) { o.Directory, o.Directories = true, true }), "bind-mount", Placed{Store: true}, ""},
	} {
		p, err := MountDisk(c.o)
		wantError(t, err, c.fails)
		namesACommand(t, err)
		var ops []string
		for _, change := range p.Changes {
			ops = append(ops, string(change.Op))
		}
		if got := strings.Join(ops, " "); got != c.ops {
			t.Errorf("%s: changes %q, want %q", c.name, got, c.ops)
		}
		if c.wants.CID == "" && err == nil {
			c.wants.CID = "vol-1"
		}
		if c.wants.CID != "-" && p.Placed != c.wants {
			t.Errorf("%s: puts on record %+v, want %+v", c.name, p.Placed, c.wants)
		}
	}
}

// namesACommand checks that a refusal contains a command that resolves it.
func namesACommand(t *testing.T, err error) {
	t.Helper()
	r, refused := errors.AsType[*Refusal](err)
	if refused && !strings.Contains(r.Remedy, "run unmount_disk") &&
		strings.Count(r.Remedy, "'agent disk accept vol-1 --yes'")+
			strings.Count(r.Remedy, "'agent disk format vol-1 --yes'") != 1 {
		t.Errorf("%q names no command, or several", err)
	}
}
