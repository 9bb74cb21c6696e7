package decide

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// mountOf returns a mount. vol-1 is device 1, vol-2 is device 2, 9 is another disk, and 0 is not a disk.
func mountOf(id int, target string, device uint64, owner string) Mounted {
	return Mounted{ID: id, Source: fmt.Sprint("/dev/", device), Target: target, Device: device, OnDevice: device > 0,
		Owner: owner}
}

// TestUnmountDisk: the mounts that unmount_disk unmounts, and their order.
func TestUnmountDisk(t *testing.T) {
	onStore, onTarget := mountOf(1, "/store", 1, "vol-1"), mountOf(2, "/target", 2, "vol-2")
	tmpfs, other := mountOf(3, "/store", 0, ""), mountOf(3, "/store", 9, "")
	bind, inner := mountOf(4, "/bind", 1, ""), mountOf(5, "/bind", 0, "")
	there := Resolved{Source: "/dev/1", Device: 1}
	taken := bind
	taken.Owner = "vol-2"
	both := Surroundings{Known: []string{"vol-1", "vol-2"}, OnStore: "vol-1"}
	alone := Surroundings{Known: []string{"vol-1"}}
	for _, c := range []struct {
		name  string
		m     Mounts
		order string
		held  string
		fails string
	}{
		{"on the store", Mounts{Surroundings: both, All: []Mounted{onStore, onTarget}}, "1", "/dev/1", ""},
		{"mounted elsewhere", Mounts{Surroundings: both, All: []Mounted{bind, onTarget}, Resolved: there}, "4", "/dev/1", ""},
		{"not mounted", Mounts{Surroundings: alone, All: []Mounted{onTarget}, Resolved: there}, "", "/dev/1", ""},
		{"without a node", Mounts{Surroundings: alone, Resolved: Resolved{Source: "/dev/1"}}, "", "", ""},
		{"absent", Mounts{Surroundings: alone, Resolved: Resolved{Err: errors.New("gone"), Missing: true}}, "", "", ""},
		{"ambiguous", Mounts{Surroundings: alone, Resolved: Resolved{Err: errors.New("two disks")}}, "", "", "two disks"},
		{"ambiguous, and on the store", Mounts{Surroundings: both, All: []Mounted{onStore}}, "1", "/dev/1", ""},
		{"unplugged, and attached as another device", Mounts{Surroundings: both, All: []Mounted{onStore},
			Resolved: Resolved{Source: "/dev/5", Device: 5}}, "1", "/dev/1", ""},
		{"its hint leads to another disk", Mounts{Surroundings: both, All: []Mounted{taken}, Resolved: there}, "", "", ""},
		{"under something", Mounts{Surroundings: both, All: []Mounted{onStore, tmpfs}}, "3 1", "/dev/1", ""},
		{"under another disk", Mounts{Surroundings: both, All: []Mounted{onStore, other}}, "", "",
			"/dev/9 is mounted over it on /store: unmount that first"},
		{"bound elsewhere", Mounts{Surroundings: both, All: []Mounted{onStore, bind, inner}}, "5 4 1", "/dev/1", ""},
		{"bound elsewhere, under another disk", Mounts{Surroundings: both, All: []Mounted{onStore, bind,
			mountOf(6, "/bind", 9, ""), mountOf(7, "/last", 1, "")}}, "", "", "/dev/9 is mounted over it on /bind"},
		{"bound twice at one place", Mounts{Surroundings: both,
			All: []Mounted{onStore, bind, inner, mountOf(6, "/bind", 1, "")}}, "6 5 4 1", "/dev/1", ""},
		{"a directory", Mounts{Surroundings: Surroundings{Directories: true, Known: []string{"vol-1"}, OnStore: "vol-1"},
			All: []Mounted{mountOf(8, "/elsewhere", 1, ""), onStore}}, "1", "/dev/1", ""},
		{"a directory that is not mounted", Mounts{Surroundings: Surroundings{Directories: true, Known: []string{"vol-1"}},
			All: []Mounted{mountOf(8, "/elsewhere", 1, "")}}, "", "", ""},
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
		})
	}
}

// TestListDisks: list_disk returns the disks with a noted mount that still exists.
func TestListDisks(t *testing.T) {
	onStore, onTarget := mountOf(1, "/store", 1, "vol-1"), mountOf(2, "/target", 2, "vol-2")
	noted := []Noted{{Mounted: onTarget}, {Mounted: onStore, OnStore: true}}
	for _, c := range []struct {
		name        string
		all         []Mounted
		noted       []Noted
		working     string
		directories bool
		want        string
	}{
		{"the one on the store is first", []Mounted{onTarget, onStore}, noted, "", false, "vol-1 vol-2"},
		{"one is unmounted", []Mounted{onStore}, noted, "", false, "vol-1"},
		{"all are unmounted", []Mounted{mountOf(1, "/store", 9, "")}, noted, "", false, ""},
		{"one is mounted elsewhere", []Mounted{mountOf(7, "/bind", 2, "")}, noted, "", false, "vol-2"},
		{"nothing is noted", []Mounted{onStore}, nil, "", false, ""},
		{"the mount table cannot be read", nil, noted, "", false, "vol-1 vol-2"},
		{"one is being checked", []Mounted{onStore}, noted, "vol-3", false, "vol-1 vol-3"},
		{"one is being mounted and is there", []Mounted{onStore}, noted, "vol-1", false, "vol-1"},
		{"directories", []Mounted{mountOf(1, "/store", 1, ""), mountOf(4, "/target", 1, "")}, noted, "", true, "vol-1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := ListDisks(c.all, c.noted, c.working, c.directories); !slices.Equal(got, strings.Fields(c.want)) {
				t.Errorf("lists %q, want %q", got, c.want)
			}
		})
	}
}
