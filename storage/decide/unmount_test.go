package decide

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// vol-1 is device 1, vol-2 is device 2; 9 is the disk of another, and 0 is not a disk.
func mountOf(id int, target string, device uint64, owner string) Mounted {
	return Mounted{ID: id, Source: fmt.Sprint("/dev/", device), Target: target, Device: device, OnDevice: device > 0,
		Owner: owner}
}

// What unmount_disk unmounts, in which order, and what list_disk says.
func TestUnmountAndListDisks(t *testing.T) {
	onStore, onTarget := mountOf(1, "/store", 1, "vol-1"), mountOf(2, "/target", 2, "vol-2")
	tmpfs, other := mountOf(3, "/store", 0, ""), mountOf(3, "/store", 9, "")
	bind, inner := mountOf(4, "/bind", 1, ""), mountOf(5, "/bind", 0, "")
	leads := func(l Lead) map[string]Lead { return map[string]Lead{"vol-1": l} }
	there := Lead{Source: "/dev/1", Device: 1}
	taken := there
	taken.Claims = Claims{ByPath: []string{"vol-1"}, ByIdentifier: []string{"vol-2"}}
	both := Around{Known: []string{"vol-1", "vol-2"}, OnStore: "vol-1"}
	alone, unnamed := Around{Known: []string{"vol-1"}}, Around{Known: []string{"vol-1"}, Unnamed: true}
	for _, c := range []struct {
		name  string
		m     Mounts
		order string
		held  string
		list  string
		fails string
	}{
		{"on the store", Mounts{Around: both, All: []Mounted{onStore, onTarget}}, "1", "/dev/1", "vol-1 vol-2", ""},
		{"mounted elsewhere", Mounts{Around: both, All: []Mounted{bind, onTarget}, Leads: leads(there)}, "4", "/dev/1",
			"vol-1 vol-2", ""},
		{"not mounted", Mounts{Around: alone, All: []Mounted{onTarget}, Leads: leads(there)}, "", "/dev/1", "", ""},
		{"without a node", Mounts{Around: alone, Leads: leads(Lead{Source: "/dev/1"})}, "", "", "", ""},
		{"absent", Mounts{Around: alone, Leads: leads(Lead{Err: errors.New("gone"), Missing: true})}, "", "", "", ""},
		{"ambiguous", Mounts{Around: alone, Leads: leads(Lead{Err: errors.New("two disks")})}, "", "", "", "two disks"},
		{"ambiguous, and on the store", Mounts{Around: both, All: []Mounted{onStore}}, "1", "/dev/1", "vol-1", ""},
		{"absent, and something without a name is mounted", Mounts{Around: unnamed,
			Leads: leads(Lead{Err: errors.New("gone"), Missing: true})}, "", "", "vol-1", ""},
		{"its hint leads to another disk", Mounts{Around: both, All: []Mounted{bind}, Leads: leads(taken)}, "", "",
			"vol-1", ""},
		{"about to be mounted", Mounts{Around: alone, Leads: leads(there), Working: "vol-1"}, "", "/dev/1", "vol-1",
			""},
		{"under something", Mounts{Around: both, All: []Mounted{onStore, tmpfs}}, "3 1", "/dev/1", "vol-1", ""},
		{"under another disk", Mounts{Around: both, All: []Mounted{onStore, other}}, "", "", "vol-1",
			"/dev/9 is mounted over it on /store: unmount that first"},
		{"bound elsewhere", Mounts{Around: both, All: []Mounted{onStore, bind, inner}}, "5 4 1", "/dev/1", "vol-1", ""},
		{"bound elsewhere, under another disk", Mounts{Around: both, All: []Mounted{onStore, bind,
			mountOf(6, "/bind", 9, ""), mountOf(7, "/last", 1, "")}}, "", "", "vol-1",
			"/dev/9 is mounted over it on /bind"},
		{"bound twice at one place", Mounts{Around: both,
			All: []Mounted{onStore, bind, inner, mountOf(6, "/bind", 1, "")}}, "6 5 4 1", "/dev/1", "vol-1", ""},
		{"a directory", Mounts{Around: Around{Directories: true, Known: []string{"vol-1"}, OnStore: "vol-1"},
			All: []Mounted{mountOf(8, "/elsewhere", 1, ""), onStore}}, "1", "/dev/1", "vol-1", ""},
		{"a directory that is not mounted", Mounts{Around: Around{Directories: true, Known: []string{"vol-1"}},
			All: []Mounted{mountOf(8, "/elsewhere", 1, "")}}, "", "", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			order, held, err := UnmountDisk(c.m, "vol-1")
			wantError(t, err, c.fails)
			var ids, devices []string
			for _, m := range order {
				ids = append(ids, fmt.Sprint(m.ID))
			}
			for _, m := range held {
				devices = append(devices, m.Source)
			}
			if got := strings.Join(ids, " "); got != c.order {
				t.Errorf("unmounts %q, want %q", got, c.order)
			}
			if got := strings.Join(devices, " "); got != c.held {
				t.Errorf("waits for %q, want %q", got, c.held)
			}
			if got := ListDisks(c.m); !slices.Equal(got, strings.Fields(c.list)) {
				t.Errorf("lists %q, want %q", got, c.list)
			}
		})
	}
}
