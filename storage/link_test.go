package storage

import (
	"strings"
	"testing"

	"cambium/settings"
)

// list is records of disks that nobody changes.
type list struct {
	Records
	disks map[string]settings.PersistentDisk
}

func (l list) Disks() map[string]settings.PersistentDisk { return l.disks }

func TestKnownDisksAreAccountedFor(t *testing.T) {
	for _, c := range []struct{ known, named, refused string }{
		{"", "", ""},
		{"a", "", ""},
		{"a b", "", ""}, // while one takes the other's place
		{"a b c", "", "3 persistent disks are attached"},
		{"a b", "a b", ""},
		{"a b c", "a b", ""},
		{"a b c d", "a b", "4 persistent disks are attached"},
		{"a", "a b", `"b", named "name of b", is not attached`},
		{"", "b", `"b", named "name of b", is not attached`},
	} {
		known := list{disks: map[string]settings.PersistentDisk{}}
		for _, cid := range strings.Fields(c.known) {
			known.disks[cid] = settings.PersistentDisk{CID: cid}
		}
		var named []settings.DiskAssociation
		for _, cid := range strings.Fields(c.named) {
			named = append(named, settings.DiskAssociation{Name: "name of " + cid, CID: cid})
		}
		err := New(Config{Records: known}).Persistent.CheckKnown(named)
		if (err == nil) != (c.refused == "") || err != nil && !strings.Contains(err.Error(), c.refused) {
			t.Errorf("known %q, named %q: got %v, want %q", c.known, c.named, err, c.refused)
		}
	}
}
