package recordfile

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"testing"

	"cambium/internal/vcap"
	"cambium/storage/record"
)

func newFile(t *testing.T) File {
	t.Helper()
	dirs := vcap.New(t.TempDir())
	ok(t, os.Mkdir(dirs.Bosh(), 0o755))
	return In(dirs)
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, f File) record.Record {
	t.Helper()
	r, err := f.Read()
	ok(t, err)
	return r
}

var one = record.Disk{FileSystem: "11111111-aaaa", Table: "AAAA", Bytes: 100, Hardware: "naa.1"}

func put(f File, cid string) error {
	return f.Update(func(r *record.Record) { r.Put(cid, one) })
}

func TestRecordIsKept(t *testing.T) {
	f := newFile(t)
	if r := read(t, f); !reflect.DeepEqual(r, record.New()) {
		t.Errorf("without a file: %+v", r)
	}
	ok(t, put(f, "vol-1"))
	before, err := os.Stat(f.dirs.DiskRecord())
	ok(t, err)
	if before.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", before.Mode())
	}
	ok(t, put(f, "vol-1"))
	after, err := os.Stat(f.dirs.DiskRecord())
	ok(t, err)
	if !os.SameFile(before, after) {
		t.Error("the same record was written again")
	}
	if r := read(t, f); r.Disks["vol-1"] != one || len(r.Disks) != 1 {
		t.Errorf("got %+v", r)
	}
}

// The agent and a command change different parts of the record at the same time.
func TestChangesAreNotLost(t *testing.T) {
	f := newFile(t)
	var all sync.WaitGroup
	for _, cid := range []string{"a", "b", "c", "d", "e", "f"} {
		all.Go(func() { ok(t, put(f, cid)) })
		all.Go(func() { ok(t, f.Ask(record.Accept, cid+"2")) })
	}
	all.Wait()
	if r := read(t, f); len(r.Disks) != 6 || len(r.Asked) != 6 {
		t.Errorf("%d disks and %d requests are left of six each", len(r.Disks), len(r.Asked))
	}
}

// Contract D.16: the record is replaced as a whole, so that a part of one is damage and never an empty record. Only an
// operator begins a new one, and the old one is kept.
func TestDamageIsAnError(t *testing.T) {
	for name, content := range map[string]string{
		"empty": "", "zeros": "\x00\x00", "half": `{"version":1,"disks":{"vol-1":`, "other type": `[]`, "null": "null", "without disks": `{"version":1,"disks":null}`,
		"newer": `{"version":2,"disks":{}}`, "no version": `{"disks":{}}`, "wrong field": `{"version":1,"disks":{"vol-1":{"bytes":"100"}}}`,
	} {
		dirs := newFile(t).dirs
		for _, path := range []string{dirs.DiskRecord(), dirs.FormerDiskRecords(), dirs.FormerDiskIntents()} {
			if path == dirs.FormerDiskIntents() && (name == "newer" || name == "no version" || name == "wrong field" || name == "without disks") {
				continue // that one had no version
			}
			t.Run(name+" "+filepath.Base(path), func(t *testing.T) {
				f := newFile(t)
				path := filepath.Join(f.dirs.Bosh(), filepath.Base(path))
				ok(t, os.WriteFile(path, []byte(content), 0o600))
				if _, err := f.Read(); !errors.Is(err, ErrDamaged) {
					t.Fatalf("Read: %v, want ErrDamaged", err)
				}
				for _, err := range []error{put(f, "vol-1"), f.Ask(record.Release, "vol-1"), f.Ask(record.Format, "vol-1")} {
					if !errors.Is(err, ErrDamaged) {
						t.Fatalf("%v, want ErrDamaged", err)
					}
				}
				ok(t, f.Ask(record.Accept, "vol-1"))
				if r := read(t, f); r.Asked["vol-1"] != record.Accept || len(r.Disks) != 0 {
					t.Errorf("accepted: %+v", r)
				}
				ok(t, put(f, "vol-1"))
				if r := read(t, f); r.Disks["vol-1"] != one || len(r.Asked) != 0 {
					t.Errorf("then: %+v", r)
				}
				if kept, err := os.ReadFile(path + ".damaged"); err != nil || string(kept) != content {
					t.Errorf("kept %q, %v", kept, err)
				}
			})
		}
	}
}

func TestAsk(t *testing.T) {
	f := newFile(t)
	cid := "vol/../1 ☃"
	ok(t, put(f, cid))
	if f.Ask(record.Accept, "") == nil || f.Ask(record.Release, "vol-9") == nil {
		t.Error("a request without a disk was taken")
	}
	ok(t, errors.Join(f.Ask(record.Accept, cid), f.Ask(record.Release, cid), f.Ask(record.Accept, "new")))
	if r := read(t, f); r.Asked[cid] != record.Release || r.Asked["new"] != record.Accept {
		t.Errorf("asked is %v", r.Asked)
	}
	none := In(vcap.New(filepath.Join(t.TempDir(), "none")))
	if err := none.Ask(record.Accept, "vol-1"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without an agent's directory: %v", err)
	}
}

// The files of earlier versions are read until the first change, which takes their place.
func TestFormerFiles(t *testing.T) {
	f := newFile(t)
	write := func(path, content string) {
		t.Helper()
		ok(t, os.MkdirAll(filepath.Dir(path), 0o700))
		ok(t, os.WriteFile(path, []byte(content), 0o600))
	}
	write(f.dirs.FormerDiskRecords(), `{"version":1,"disks":{"vol-1":{"file_system":"11111111-aaaa","table":"AAAA","bytes":100,"hardware":"naa.1"}}}`)
	write(f.dirs.FormerDiskIntents(), `{"vol-2":{"table":"T"},".ephemeral":{"table":"E"},".migration":{"table":"vol-1 to vol-2"},".migrated":{"table":"vol-1"}}`)
	write(filepath.Join(f.dirs.FormerDiskRequests(), "accept-vol-2"), `{"version":1,"action":"accept","cid":"vol-2"}`)
	write(filepath.Join(f.dirs.FormerDiskRequests(), "release-vol-3"), `{"version":1,"act`) // was being written
	want := record.New()
	want.Disks["vol-1"], want.Unfinished["vol-2"], want.Unfinished[record.Ephemeral] = one, "T", "E"
	want.Migration, want.Migrated, want.Asked["vol-2"] = record.Migration{From: "vol-1", To: "vol-2"}, "vol-1", record.Accept
	if got := read(t, f); !reflect.DeepEqual(got, want) {
		t.Fatalf("read %+v, want %+v", got, want)
	}
	ok(t, f.Update(func(r *record.Record) { r.Migrated = "" }))
	want.Migrated = ""
	if got := read(t, f); !reflect.DeepEqual(got, want) {
		t.Errorf("after a change %+v, want %+v", got, want)
	}
	for _, path := range []string{f.dirs.FormerDiskRecords(), f.dirs.FormerDiskIntents(), f.dirs.FormerDiskRequests()} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
}
