//go:build linux

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cambium/lab/iaas"
)

// TestVMByItsCID: shell and logs take the CID that a Director shows.
func TestVMByItsCID(t *testing.T) {
	clouds := []iaasListing{{}, {Listing: iaas.Listing{VMs: []iaas.VMListing{{Common: iaas.Common{CID: "vm-1"}},
		{Common: iaas.Common{CID: "vm-2"},
			Running: true, Console: "/console", Shell: []string{"nsenter", "/bin/bash", "-l"}}}}}}
	if m, found := vmNamed(clouds, "vm-2"); !found || !m.Running || m.Console != "/console" || len(m.Shell) != 3 {
		t.Errorf("got %+v, %v", m, found)
	}
	if m, found := vmNamed(clouds, "vm-3"); found {
		t.Errorf("got %+v for a CID that does not exist", m)
	}
}

// TestSizeOfTheCache: `lab ls` shows it, so that it can be freed.
func TestSizeOfTheCache(t *testing.T) {
	dir := t.TempDir()
	if n, err := cacheSize(filepath.Join(dir, "none")); n != 0 || err != nil {
		t.Errorf("a cache that does not exist has %d bytes, %v", n, err)
	}
	image := filepath.Join(dir, "vm-test")
	if err := os.Mkdir(image, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(image, "disk"), bytes.Repeat([]byte("x"), 3<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if n, err := cacheSize(dir); n < 3<<20 || err != nil {
		t.Errorf("the cache has %d bytes, %v", n, err)
	}
	if _, err := os.Stat(filepath.Join(image, "disk")); err != nil {
		t.Errorf("looking has changed it: %v", err)
	}
}

func TestChooseWhatIsRemoved(t *testing.T) {
	of := func(cid, director string) iaas.Common { return iaas.Common{CID: cid, Director: director} }
	l := iaas.Listing{
		Stemcells: []iaas.StemcellListing{{Common: of("sc-1", "a")}},
		VMs:       []iaas.VMListing{{Common: of("vm-1", "a")}, {Common: of("vm-2", "b")}},
		Disks:     []iaas.DiskListing{{Common: of("d-1", "a")}, {Common: of("d-2", "b")}},
		Snapshots: []iaas.SnapshotListing{{Common: of("snap-1", "a")}},
	}
	for name, c := range map[string]struct {
		cids     []string
		director string
		disks    bool
		all      bool // stemcells, too
		want     string
		err      string
	}{
		"one VM":                 {[]string{"vm-2"}, "", false, false, "delete_vm vm-2", ""},
		"one stemcell":           {[]string{"sc-1"}, "", false, false, "delete_stemcell sc-1", ""},
		"a Director":             {nil, "a", false, false, "delete_vm vm-1", ""},
		"a Director's stemcells": {nil, "a", false, true, "delete_vm vm-1, delete_stemcell sc-1", ""},
		"a Director with disks": {nil, "a", true, false,
			"delete_vm vm-1, delete_snapshot snap-1, delete_disk d-1", ""},
		"a disk without permission":  {[]string{"d-1"}, "", false, false, "", "--disks"},
		"a disk with permission":     {[]string{"d-1"}, "", true, false, "delete_disk d-1", ""},
		"what is not there":          {[]string{"vm-9"}, "", false, false, "", "there is no vm-9"},
		"a Director that is unknown": {nil, "c", true, true, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			chosen, err := choose(l, c.cids, c.director, c.disks, c.all)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("got %v, want an error with %q", err, c.err)
				}
				return
			}
			var got []string
			for _, o := range chosen {
				got = append(got, o.method+" "+o.cid)
			}
			if err != nil || strings.Join(got, ", ") != c.want {
				t.Errorf("got %v, %v; want %s", got, err, c.want)
			}
		})
	}
}

func TestListingShowsNetworks(t *testing.T) {
	common := iaas.Common{CID: "net-1", Director: "a"}
	n := iaas.NetworkListing{Common: common, Range: "10.0.0.0/24", Gateway: "10.0.0.1"}
	var b strings.Builder
	writeIaaS(&b, iaasListing{iaas.Listing{Name: "x", Networks: []iaas.NetworkListing{n}}, true})
	for _, want := range []string{"net-1", "10.0.0.0/24", "gateway 10.0.0.1", "director a"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("got %q, want %q in it", b.String(), want)
		}
	}
}

func TestReleaseVersion(t *testing.T) {
	for given, want := range map[string]string{"1.2.3": "1.2.3", "[DEV BUILD] 2fa6101": "DEV.BUILD.2fa6101",
		"unknown": "unknown"} {
		if got := releaseVersion(given); got != want {
			t.Errorf("%q: got %q, want %q", given, got, want)
		}
	}
}
