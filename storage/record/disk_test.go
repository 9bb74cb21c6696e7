package record

import "testing"

func TestKnown(t *testing.T) {
	r := Record{Disks: map[string]Disk{"vol-1": one, "vol-2": two,
		"vol-3": {FileSystem: "33333333-cccc", Table: "00000000"}}}
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
			of, d, known := r.Find(c.cid, c.fileSystem, c.table)
			if of != c.want || known != (c.want != "") || d != r.Disks[c.want] {
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
		"same":   {one, ""},
		"grown":  {Disk{FileSystem: one.FileSystem, Table: one.Table, Bytes: 300}, ""},
		"shrunk": {Disk{FileSystem: one.FileSystem, Table: one.Table, Bytes: 99}, "is smaller"},
		"other file system": {Disk{FileSystem: two.FileSystem, Table: one.Table, Bytes: 100},
			"has a different file system"},
		"new table around it":         {Disk{FileSystem: one.FileSystem, Table: "FFFF", Bytes: 100}, ""},
		"other table, nothing inside": {Disk{Table: "FFFF", Bytes: 100}, "has a different partition table"},
		"no table, nothing readable":  {Disk{Bytes: 100}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := one.Conflict(c.found); got != c.want {
				t.Errorf("Conflict = %q, want %q", got, c.want)
			}
		})
	}
}
