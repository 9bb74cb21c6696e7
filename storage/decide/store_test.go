package decide

import (
	"errors"
	"testing"

	"cambium/storage/identity"
	"cambium/storage/record"
)

// store returns a disk whose statement says that it has been the store.
func store(cid string, generation uint64) Disk {
	return Disk{CID: cid, Path: "/dev/" + cid, FileSystem: "u-" + cid,
		Statement: Statement{Store: identity.Store{Version: 1, CID: cid,
			FileSystem: "u-" + cid, Generation: generation}}}
}

// copied returns a copy of a disk when that had the given generation.
func copied(cid string, generation uint64, from string, at uint64) Disk {
	d := store(cid, generation)
	d.Statement.Origin = identity.Origin{CID: from, FileSystem: "u-" + from, Generation: at}
	return d
}

// silent returns a disk with a file system but without a statement.
func silent(cid string) Disk { return Disk{CID: cid, Path: "/dev/" + cid, FileSystem: "u-" + cid} }

func saying(d Disk, cid string) Disk { d.Statement.CID = cid; return d }

func incomplete(d Disk) Disk { d.Statement.Incomplete = true; return d }

func others(all ...Disk) []Disk { return all }

// TestChoose: the rules of docs/adr/0036-a-store-says-who-it-is.md, with the histories that match them.
func TestChoose(t *testing.T) {
	strange := silent("a")
	strange.Statement.Err = errors.New("version 9, want 1")
	none := record.New()
	stale := recorded("a")
	stale.Disks["a"] = record.Disk{FileSystem: "u-a", Generation: 6}
	ofA := func(c Choice) Choice { c.Record, c.ManagedCID = recorded("a"), "a"; return c }
	for _, c := range []struct {
		name  string
		c     Choice
		fails string
		by    string // the disk that is the store instead
	}{
		{"1 accepted, an incomplete copy", Choice{Disk: incomplete(store("a", 0)),
			Surroundings: Surroundings{Record: asking(none, record.Accept, "a")}}, "", ""},
		{"2 an incomplete copy, on record", ofA(Choice{Disk: incomplete(copied("a", 0, "b", 3))}), "incomplete copy of b", ""},
		{"2 not understood", ofA(Choice{Disk: strange}), "version 9, want 1", ""},
		{"3 g, j: it is another disk that is named now", ofA(Choice{Disk: saying(store("a", 5), "b"), Elsewhere: []string{"b"}}),
			"it says that it is persistent disk b", ""},
		{"3 g, i: that disk is gone, or its leftover hint leads here", Choice{Disk: saying(store("a", 5), "b")}, "", ""},
		{"4 j: another device says that it is this disk", ofA(Choice{Disk: silent("a"), Others: others(saying(store("b", 5), "a"))}),
			"may have been exchanged", ""},
		{"4 with a higher generation", ofA(Choice{Disk: store("a", 5), Others: others(saying(store("b", 6), "a"))}), "exchanged", ""},
		{"4 a clone of the same generation, by path", ofA(Choice{Disk: store("a", 5), Others: others(saying(store("b", 5), "a"))}),
			"exchanged", ""},
		{"4 the same, found by an identifier", ofA(Choice{Disk: store("a", 5), Identified: true,
			Others: others(saying(store("b", 5), "a"))}), "", ""},
		{"4 an older clone", ofA(Choice{Disk: store("a", 6), Others: others(saying(store("b", 5), "a"))}), "", ""},
		{"5 b: it was copied, and the copy is the store", ofA(Choice{Disk: store("a", 5), Others: others(copied("b", 1, "a", 5))}),
			"it was copied to b", "b"},
		{"5 k: set back to before the copy", ofA(Choice{Disk: store("a", 3), Others: others(copied("b", 1, "a", 5))}), "copied to b", "b"},
		{"5 m: it cannot say anything", ofA(Choice{Disk: silent("a"), Others: others(copied("b", 1, "a", 0))}), "copied to b", "b"},
		{"5 c, e: its copy was never the store", ofA(Choice{Disk: store("a", 5), Others: others(copied("b", 0, "a", 5))}), "", ""},
		{"5 its copy is not complete", ofA(Choice{Disk: store("a", 5), Others: others(incomplete(copied("b", 0, "a", 5)))}), "", ""},
		{"6 c, e: a copy that was never the store, on record", ofA(Choice{Disk: copied("a", 0, "b", 5), Others: others(store("b", 6))}),
			"it is a copy of b (/dev/b) and has never been the store", "b"},
		{"6 the source as it was", ofA(Choice{Disk: copied("a", 0, "b", 5), Others: others(store("b", 5))}), "never been the store", "b"},
		{"6 m: a source that cannot say anything", ofA(Choice{Disk: copied("a", 0, "b", 0), Others: others(silent("b"))}),
			"never been the store", "b"},
		{"6 the source is gone", Choice{Disk: copied("a", 0, "b", 5)}, "", ""},
		{"6 the source is gone, and was the store after the copy", Choice{Disk: copied("b", 0, "a", 5),
			Surroundings: Surroundings{Record: stale, ManagedCID: "a"}}, "it is a copy of a, which has been the store since",
			""},
		{"6 blank beside a store", Choice{Disk: Disk{CID: "b"}, New: true, Others: others(store("a", 5))},
			"it has never been the store, and a (/dev/a) may be the store", ""},
		{"6 blank beside a disk that says nothing", Choice{Disk: Disk{CID: "b"}, New: true, Others: others(silent("a"))},
			"Run mount_disk a first", ""},
		{"7 f: another agent recorded it", Choice{Disk: silent("b"), Surroundings: Surroundings{Record: recorded("a"), ManagedCID: "b",
			Known: []string{"a", "b"}}, Others: others(store("a", 5))}, "may be an incomplete copy", ""},
		{"7 f: both say nothing", Choice{Disk: silent("b"), Surroundings: Surroundings{Record: none, ManagedCID: "b",
			Known: []string{"a", "b"}}, Others: others(silent("a"))},
			"'agent disk accept a --yes' or 'agent disk accept b --yes'", ""},
		{"7 f: mount_disk of the old one", Choice{Disk: silent("a"), Surroundings: Surroundings{Record: none, ManagedCID: "b",
			Known: []string{"a", "b"}}, Others: others(silent("b"))}, "", ""},
		{"7 f: the old one is detached", Choice{Disk: silent("b"), Surroundings: Surroundings{Record: recorded("a"), ManagedCID: "b",
			Known: []string{"b"}}}, "", ""},
		{"8 a: on record", ofA(Choice{Disk: store("a", 5), Others: others(silent("b"))}), "", ""},
		{"8 both were the store since the copy, and it is on record", ofA(Choice{Disk: store("a", 6),
			Others: others(copied("b", 1, "a", 5))}), "", ""},
		{"9 the same, on another machine", Choice{Disk: store("a", 6), Surroundings: Surroundings{Record: none},
			Others: others(copied("b", 1, "a", 5))}, "b (/dev/b) has been a store as well", ""},
		{"9 f: on another machine", Choice{Disk: silent("b"), Surroundings: Surroundings{Record: none}, Others: others(store("a", 5))},
			"a (/dev/a) has been a store as well", ""},
		{"9 the copy as it is, on another machine", Choice{Disk: copied("b", 2, "a", 5), Surroundings: Surroundings{Record: none},
			Others: others(store("a", 5))}, "", ""},
		{"10 a: alone on another machine", Choice{Disk: store("a", 5), Surroundings: Surroundings{Record: none}}, "", ""},
		{"10 a first deploy", Choice{Disk: Disk{CID: "a"}, New: true, Surroundings: Surroundings{Record: none}}, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := CheckChoice(c.c)
			wantError(t, err, c.fails)
			by := ""
			if o, ok := errors.AsType[*Outranked](err); ok {
				by = o.By
			}
			if by != c.by {
				t.Errorf("the store is %q instead, want %q", by, c.by)
			}
		})
	}
}

// TestChooseIsExclusive: of two candidates with any statements, at most one passes without a record if one has been the
// store, so that their order does not matter.
func TestChooseIsExclusive(t *testing.T) {
	sayings := func(cid, other string) (all []Disk) {
		for _, generation := range []uint64{0, 1, 5, 6} {
			all = append(all, store(cid, generation), incomplete(store(cid, generation)), saying(store(cid, generation), other))
			for _, at := range []uint64{0, 1, 5, 6} {
				all = append(all, copied(cid, generation, other, at), incomplete(copied(cid, generation, other, at)))
			}
		}
		return all
	}
	passes := func(d, o Disk) bool {
		return CheckChoice(Choice{Disk: d, Surroundings: Surroundings{Record: record.New(), Known: []string{"a", "b"}},
			Elsewhere: []string{o.CID},
			Others:    others(o)}) == nil
	}
	for _, a := range sayings("a", "b") {
		for _, b := range sayings("b", "a") {
			if (a.used() || b.used()) && passes(a, b) && passes(b, a) {
				t.Errorf("both pass: %+v and %+v", a.Statement, b.Statement)
			}
			if passes(a, b) && a.Statement.Incomplete {
				t.Errorf("an incomplete copy passes: %+v", a.Statement)
			}
		}
	}
}

func TestCheckMounted(t *testing.T) {
	around := func(r record.Record, told string) Surroundings {
		return Surroundings{Record: r, ManagedCID: told, Store: "/store"}
	}
	unpublished := recorded("b")
	unpublished.Published = false
	for _, c := range []struct {
		name   string
		on     Disk
		around Surroundings
		others []Disk
		fails  string
	}{
		{"on record", store("a", 5), around(recorded("a"), "a"), nil, ""},
		{"nothing on record", silent("a"), around(record.New(), ""), nil, ""},
		{"l: another one is on record", store("b", 3), around(recorded("a"), "a"), others(store("a", 5)),
			"b is mounted on /store, but a is on record as the store. Run unmount_disk b and mount_disk a"},
		{"l: it is absent", silent("b"), around(recorded("a"), "a"), nil, "but a is on record"},
		{"l: another agent mounted it", silent("b"), around(recorded("a"), "b"), others(store("a", 5)), ""},
		{"another agent, which mounted a third on the target", silent("b"), around(recorded("a"), "c"), nil, ""},
		{"accepted", silent("b"), around(asking(recorded("a"), record.Accept, "b"), "a"), nil, ""},
		{"an incomplete copy", incomplete(store("b", 0)), around(recorded("b"), "b"), nil, "incomplete copy"},
		{"a migration was given up before it was recorded", store("a", 6), around(unpublished, "b"),
			others(copied("b", 0, "a", 5)), ""},
		{"the copy of the recorded disk", copied("b", 1, "a", 5), around(recorded("a"), "a"), others(store("a", 5)), ""},
	} {
		err := CheckMounted(c.on, c.around, c.others)
		if (err == nil) != (c.fails == "") {
			t.Errorf("%s: %v, want %q", c.name, err, c.fails)
		}
		wantError(t, err, c.fails)
	}
}

func TestChosen(t *testing.T) {
	for _, c := range []struct {
		name string
		d    Disk
		want uint64
		from string
	}{
		{"it says nothing", silent("a"), 1, ""},
		{"again", store("a", 5), 6, ""},
		{"a copy", copied("a", 0, "b", 5), 1, "b"},
		{"another CID", saying(store("a", 5), "b"), 6, ""},
	} {
		got := NextStatement(c.d)
		if got.CID != "a" || got.Generation != c.want || got.Origin.CID != c.from || got.Incomplete ||
			got.FileSystem != "u-a" {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}
