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

var one = record.Disk{FileSystem: "11111111-aaaa", Table: "AAAA", Bytes: 100}

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

// TestChangesAreNotLost: the agent and a command change different parts of the record concurrently.
func TestChangesAreNotLost(t *testing.T) {
	f := newFile(t)
	var all sync.WaitGroup
	for _, cid := range []string{"a", "b", "c", "d", "e", "f"} {
		all.Go(func() { ok(t, put(f, cid)) })
		all.Go(func() { ok(t, f.Ask(record.Accept, cid+"2", "")) })
	}
	all.Wait()
	if r := read(t, f); len(r.Disks) != 6 || len(r.Asked) != 6 {
		t.Errorf("%d disks and %d requests are left of six each", len(r.Disks), len(r.Asked))
	}
}

// Contract D.16: the record is replaced atomically, so a truncated file means damage, not an empty record. The next
// change starts a new record and keeps the damaged one.
func TestDamageIsSetAside(t *testing.T) {
	for name, content := range map[string]string{
		"empty": "", "zeros": "\x00\x00", "half": `{"version":1,"disks":{"vol-1":`, "other type": `[]`, "null": "null",
		"without disks": `{"version":1,"disks":null}`,
		"newer":         `{"version":2,"disks":{}}`, "no version": `{"disks":{}}`,
		"wrong field": `{"version":1,"disks":{"vol-1":{"bytes":"100"}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			f := newFile(t)
			path := f.dirs.DiskRecord()
			ok(t, os.WriteFile(path, []byte(content), 0o600))
			if r, err := f.Read(); !errors.Is(err, ErrDamaged) || !reflect.DeepEqual(r, record.New()) {
				t.Fatalf("Read: %+v, %v; want ErrDamaged with an empty record", r, err)
			}
			if err := f.Ask(record.Release, "vol-1", ""); !errors.Is(err, ErrDamaged) {
				t.Fatalf("%v, want ErrDamaged", err)
			}
			ok(t, put(f, "vol-1"))
			if r := read(t, f); r.Disks["vol-1"] != one || len(r.Disks) != 1 {
				t.Errorf("then: %+v", r)
			}
			if kept, err := os.ReadFile(path + ".damaged"); err != nil || string(kept) != content {
				t.Errorf("kept %q, %v", kept, err)
			}
		})
	}
}

func TestAsk(t *testing.T) {
	f := newFile(t)
	cid := "vol/../1 ☃"
	ok(t, put(f, cid))
	if f.Ask(record.Accept, "", "") == nil || f.Ask(record.Release, "vol-9", "") == nil {
		t.Error("a request without a disk was taken")
	}
	ok(t, errors.Join(f.Ask(record.Accept, cid, ""), f.Ask(record.Release, cid, ""), f.Ask(record.Accept, "new", "")))
	if r := read(t, f); r.Asked[cid] != record.Release || r.Asked["new"] != record.Accept {
		t.Errorf("asked is %v", r.Asked)
	}
	none := In(vcap.New(filepath.Join(t.TempDir(), "none")))
	if err := none.Ask(record.Accept, "vol-1", ""); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without an agent's directory: %v", err)
	}
}
