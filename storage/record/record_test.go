package record

import (
	"maps"
	"reflect"
	"testing"
)

var (
	one = Disk{FileSystem: "11111111-aaaa", Table: "AAAA", Bytes: 100, Generation: 3}
	two = Disk{FileSystem: "22222222-bbbb", Table: "BBBB", Bytes: 200}
)

// TestUnreadableIdentifiersStay: a disk that cannot be read at the moment keeps its identity, unless an operator has
// made a request about it.
func TestUnreadableIdentifiersStay(t *testing.T) {
	r := New()
	r.Put("vol-1", one)
	r.Put("vol-1", Disk{Bytes: 300})
	if got, want := r.Disks["vol-1"], (Disk{FileSystem: one.FileSystem, Table: one.Table, Bytes: 300}); got != want {
		t.Errorf("on record is %v, want %v", got, want)
	}
	for _, a := range []Action{Accept, Format} {
		r.Asked["vol-1"] = a
		r.Put("vol-1", Disk{Table: "CCCC", Bytes: 50})
		if got, want := r.Disks["vol-1"], (Disk{Table: "CCCC", Bytes: 50}); got != want || r.Asked["vol-1"] != "" {
			t.Errorf("after %s, on record is %v, want %v; asked: %v", a, got, want, r.Asked)
		}
	}
}

// TestStoreDisk: the precedence of this agent's record and what other agents write.
func TestStoreDisk(t *testing.T) {
	published := Record{Store: "a", Published: true}
	for _, c := range []struct {
		name    string
		r       Record
		told    string
		want    string
		byOther bool
	}{
		{"nothing", Record{}, "", "", false},
		{"the same", published, "a", "a", false},
		{"not published yet", Record{Store: "a"}, "b", "a", false},
		{"not published yet, and nothing told", Record{Store: "a"}, "", "a", false},
		{"another agent wrote another", published, "b", "b", true},
		{"what other agents read is lost", published, "", "a", false},
		{"only another agent", Record{}, "b", "b", true},
	} {
		if got, byOther := c.r.StoreDisk(c.told); got != c.want || byOther != c.byOther {
			t.Errorf("%s: %q by another: %v; want %q, %v", c.name, got, byOther, c.want, c.byOther)
		}
	}
}

func TestReleaseAndRemove(t *testing.T) {
	r := New()
	r.Put("vol-1", one)
	r.Put("vol-2", two)
	r.Store, r.Published, r.Unfinished, r.Asked["vol-1"] = "vol-1", true, "T", Release
	named := r
	named.Disks, named.Asked = maps.Clone(r.Disks), maps.Clone(r.Asked)
	named.Release("vol-1", true)
	r.Remove("vol-1")
	want := New()
	want.Unfinished = "T" // of the ephemeral disk
	want.Put("vol-1", one)
	want.Put("vol-2", two)
	if !reflect.DeepEqual(r, want) {
		t.Errorf("after a removal %+v, want %+v", r, want)
	}
	delete(want.Disks, "vol-1")
	r.Release("vol-1", false)
	if !reflect.DeepEqual(r, want) {
		t.Errorf("released %+v, want %+v", r, want)
	}
	want.Store, want.Published = "vol-1", true
	if !reflect.DeepEqual(named, want) {
		t.Errorf("released while settings name it %+v, want %+v", named, want)
	}
}

// FuzzDecode: a record is accepted completely or not at all, and encoding a decoded one preserves it.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{`{"version":1}`,
		`{"version":1,"store":"vol-1","published":true,"disks":{"vol-1":{"file_system":"11111111-aaaa","table":"AAAA","bytes":100,"generation":3}},` +
			`"unfinished":"T","read_only":true,"asked":{"vol-1":"format"}}`,
		`{"version":2}`, `{"version":1,"disks":null}`, `{"version":1,"asked":{"a":"destroy"}}`, `{"version":1}{}`,
		`{"version":1,"disks":{"a":{"bytes":1e3}}}`, ``, `null`, `[]`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := Decode(data)
		if err != nil {
			return
		}
		again, err := r.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if second, err := Decode(again); err != nil || !reflect.DeepEqual(second, r) {
			t.Fatalf("%+v became %+v, %v", r, second, err)
		}
		for cid, d := range r.Disks {
			if of, found, known := r.Find(cid, "", ""); !known || of != cid || found != d || d.Conflict(d) != "" {
				t.Fatalf("%q is on record as %v, and found as %q %v", cid, d, of, found)
			}
		}
		r.StoreDisk("vol-1")
		r.Accepted()
	})
}
