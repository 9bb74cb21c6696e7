package identity

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"cambium/internal/vcap"
)

func newFile(t *testing.T) File {
	t.Helper()
	dirs := vcap.New(t.TempDir())
	if err := os.Mkdir(dirs.Bosh(), 0o755); err != nil {
		t.Fatal(err)
	}
	return In(dirs)
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func all(t *testing.T, f File) Records {
	t.Helper()
	r, err := f.All()
	ok(t, err)
	return r
}

var (
	one = Disk{FileSystem: "11111111-aaaa", Table: "AAAA", Bytes: 100, Hardware: "naa.1"}
	two = Disk{FileSystem: "22222222-bbbb", Table: "BBBB", Bytes: 200}
)

func TestRecordsAreKept(t *testing.T) {
	f := newFile(t)
	if len(all(t, f)) != 0 {
		t.Error("records without a file")
	}
	ok(t, errors.Join(f.Put("vol-1", one), f.Put("vol-2", two)))
	before, err := os.Stat(f.path)
	ok(t, err)
	if before.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", before.Mode())
	}
	ok(t, f.Put("vol-1", one))
	after, err := os.Stat(f.path)
	ok(t, err)
	if !os.SameFile(before, after) {
		t.Error("the same record was written again")
	}
	if got := all(t, f); got["vol-1"] != one || got["vol-2"] != two || len(got) != 2 {
		t.Errorf("got %v", got)
	}
}

// A disk that cannot be read for a moment does not lose its identity.
func TestUnreadableIdentifiersStay(t *testing.T) {
	f := newFile(t)
	ok(t, errors.Join(f.Put("vol-1", one), f.Put("vol-1", Disk{Bytes: 300})))
	if got, want := all(t, f)["vol-1"], (Disk{FileSystem: one.FileSystem, Table: one.Table, Bytes: 300}); got != want {
		t.Errorf("on record is %v, want %v", got, want)
	}
	ok(t, errors.Join(f.Request(Accept, "vol-1"), f.Put("vol-1", Disk{Table: "CCCC", Bytes: 50})))
	if got, want := all(t, f)["vol-1"], (Disk{Table: "CCCC", Bytes: 50}); got != want {
		t.Errorf("after it was accepted, on record is %v, want %v", got, want)
	}
}

func TestKnown(t *testing.T) {
	r := Records{"vol-1": one, "vol-2": two, "vol-3": {FileSystem: "33333333-cccc", Table: "00000000"}}
	for name, c := range map[string]struct{ cid, fileSystem, table, want string }{
		"cid":                    {"vol-2", "", "", "vol-2"},
		"file system":            {"vol-9", "11111111-AAAA", "", "vol-1"},
		"table":                  {"vol-9", "", "bbbb", "vol-2"},
		"file system over table": {"vol-9", "11111111-aaaa", "BBBB", "vol-1"},
		"nothing":                {"vol-9", "", "", ""},
		"no DOS signature":       {"vol-9", "", "00000000", ""},
		"others":                 {"vol-9", "99999999-dddd", "DDDD", ""},
	} {
		t.Run(name, func(t *testing.T) {
			of, d, known := r.Known(c.cid, c.fileSystem, c.table)
			if of != c.want || known != (c.want != "") || d != r[c.want] {
				t.Errorf("Known = %q, %v, %v; want %q", of, d, known, c.want)
			}
		})
	}
}

func TestConflict(t *testing.T) {
	for name, c := range map[string]struct {
		found Disk
		want  string
	}{
		"same":                         {one, ""},
		"grown":                        {Disk{FileSystem: one.FileSystem, Table: one.Table, Bytes: 300}, ""},
		"shrunk":                       {Disk{FileSystem: one.FileSystem, Table: one.Table, Bytes: 99}, "a smaller disk"},
		"other file system":            {Disk{FileSystem: two.FileSystem, Table: one.Table, Bytes: 100}, "another file system"},
		"new table around it":          {Disk{FileSystem: one.FileSystem, Table: "FFFF", Bytes: 100}, ""},
		"other table, nothing inside":  {Disk{Table: "FFFF", Bytes: 100}, "another partition table"},
		"no table, nothing readable":   {Disk{Bytes: 100}, ""},
		"hardware alone never refuses": {Disk{FileSystem: one.FileSystem, Table: one.Table, Bytes: 100, Hardware: "naa.2"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := one.Conflict(c.found); got != c.want {
				t.Errorf("Conflict = %q, want %q", got, c.want)
			}
		})
	}
}

func TestOwnersOfAClone(t *testing.T) {
	clone := one
	clone.Hardware = "naa.2"
	r := Records{"vol-1": one, "vol-2": two, "vol-clone": clone}
	for hardware, want := range map[string]int{"naa.1": 1, "naa.2": 1, "": 2, "QM00003": 2} {
		if got := r.Owners(Disk{FileSystem: one.FileSystem, Hardware: hardware}); len(got) != want {
			t.Errorf("with hardware %q: %v, want %d", hardware, got, want)
		}
	}
}

// What cannot be read is never an empty record.
func TestDamageIsAnError(t *testing.T) {
	for name, content := range map[string]string{
		"empty": "", "zeros": "\x00\x00", "half": `{"version":1,"disks":{"vol-1":`, "other type": `[]`, "null": "null", "without disks": `{"version":1}`,
		"newer": `{"version":2,"disks":{}}`, "no version": `{"disks":{}}`, "wrong field": `{"version":1,"disks":{"vol-1":{"bytes":"100"}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			f := newFile(t)
			ok(t, os.WriteFile(f.path, []byte(content), 0o600))
			if r, err := f.All(); !errors.Is(err, errDamaged) || r != nil {
				t.Fatalf("All = %v, %v; want ErrDamaged", r, err)
			}
			if err := f.Put("vol-1", one); !errors.Is(err, errDamaged) {
				t.Fatalf("Put = %v; want ErrDamaged", err)
			}
			// Only an operator begins new records, and what was there is kept.
			ok(t, f.Request(Accept, "vol-1"))
			if r := all(t, f); !r["vol-1"].Accepted || len(r) != 1 {
				t.Errorf("accepted: %v", r)
			}
			if r, err := f.For("vol-1"); err != nil || !r["vol-1"].Accepted {
				t.Errorf("For the accepted disk = %v, %v", r, err)
			}
			if r, err := f.For("vol-2"); !errors.Is(err, errDamaged) || r != nil {
				t.Errorf("For another disk = %v, %v; want ErrDamaged", r, err)
			}
			if err := f.Put("vol-2", two); !errors.Is(err, errDamaged) {
				t.Errorf("Put of another disk = %v; want ErrDamaged", err)
			}
			ok(t, f.Put("vol-1", one))
			if r := all(t, f); r["vol-1"] != one || len(r) != 1 {
				t.Errorf("after Put: %v", r)
			}
			if kept, err := os.ReadFile(f.path + ".damaged"); err != nil || string(kept) != content {
				t.Errorf("kept %q, %v", kept, err)
			}
		})
	}
}

func TestRequests(t *testing.T) {
	f := newFile(t)
	cid := "vol/../1 ☃"
	ok(t, errors.Join(f.Put(cid, one), f.Put("vol-2", two)))
	if f.Request(Accept, "") == nil {
		t.Error("a request without a CID")
	}
	ok(t, f.Request(Release, cid))
	if _, _, known := all(t, f).Known(cid, one.FileSystem, one.Table); known {
		t.Error("a released disk is known")
	}
	// A request that is not whole says nothing.
	ok(t, os.WriteFile(filepath.Join(f.requests, "release-vol-2"), []byte(`{"version":1,"act`), 0o600))
	released, err := f.ApplyReleases()
	if err != nil || len(released) != 1 || released[0] != cid {
		t.Fatalf("ApplyReleases = %v, %v", released, err)
	}
	ok(t, os.Remove(filepath.Join(f.requests, "release-vol-2")))
	if second, err := f.ApplyReleases(); err != nil || len(second) != 0 {
		t.Errorf("a second time: %v, %v", second, err)
	}
	if r := all(t, f); len(r) != 1 || r["vol-2"] != two {
		t.Errorf("records %v", r)
	}

	ok(t, f.Request(Accept, "vol-2"))
	if r := all(t, f); !r["vol-2"].Accepted || r["vol-2"].FileSystem != two.FileSystem {
		t.Errorf("accepted: %v", r)
	}
	if got, err := f.Accepted(); err != nil || got != "vol-2" {
		t.Errorf("Accepted = %q, %v", got, err)
	}
	ok(t, f.Put("vol-2", one))
	if r := all(t, f); r["vol-2"] != one {
		t.Errorf("after Put: %v", r)
	}
	left, err := os.ReadDir(f.requests)
	if err != nil || len(left) != 0 {
		t.Errorf("requests left: %v, %v", left, err)
	}
}
