//go:build nightly

package stemcell

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"testing"

	"cambium/lab/image"
	assets "cambium/stemcell-assets"

	"github.com/klauspost/compress/gzip"
)

// TestNightlyInfrastructures makes the stemcell of every IaaS and looks into its disk or tree, those that take the stemcell of
// another included. Manifests and formats are checked with small disks, at every change.
func TestNightlyInfrastructures(t *testing.T) {
	for _, name := range image.InfrastructureNames() {
		t.Run(name, func(t *testing.T) {
			i, err := image.FindInfrastructure(name)
			if err != nil {
				t.Fatal(err)
			}
			if !i.Container {
				checkDisk(t, name)
				return
			}
			want, err := assets.AgentJSON(i.Name)
			if err != nil {
				t.Fatal(err)
			}
			container(t, tarball(t, name), string(want))
		})
	}
}

// container looks into the tree of files.
func container(t *testing.T, file, agentJSON string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	outer, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	archive := tar.NewReader(outer)
	for h, err := archive.Next(); ; h, err = archive.Next() {
		if err != nil {
			t.Fatal(err)
		}
		if h.Name == "image" {
			break
		}
	}
	inner, err := gzip.NewReader(archive)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]*tar.Header{}
	for r := tar.NewReader(inner); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		found[h.Name] = h
		if h.Name == "./var/vcap/bosh/agent.json" {
			if data, err := io.ReadAll(r); err != nil || string(data) != agentJSON {
				t.Errorf("agent.json is %q (%v)", data, err)
			}
		}
	}
	for _, name := range []string{"./var/vcap/bosh/bin/bosh-agent", "./var/vcap/bosh/etc/bosh-enable-monit-access",
		"./var/vcap/bosh/agent.json", "./sbin", "./usr/lib/systemd/systemd"} {
		if found[name] == nil {
			t.Errorf("the container has no %s", name)
		}
	}
	if found["./var/vcap/data/"] != nil || found["./boot/vmlinuz"] != nil {
		t.Error("the container has a data directory or a kernel")
	}
	if tmp := found["./tmp/"]; tmp == nil || tmp.Mode&0o7777 != 0o1777 {
		t.Errorf("/tmp: %+v, want mode 1777", tmp)
	}
}
