//go:build vm

package stemcell

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"go.yaml.in/yaml/v3"
)

// TestVMStemcellCLI: the released bosh CLI reads and repacks the stemcell.
func TestVMStemcellCLI(t *testing.T) {
	file := tarball(t, "qemu")
	path, err := exec.CommandContext(t.Context(), "../../scripts/bosh-cli").Output()
	if err != nil {
		t.Fatalf("build the CLI: %v", err)
	}
	home := t.TempDir()
	bosh := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), strings.TrimSpace(string(path)),
			append([]string{"--non-interactive"}, args...)...)
		cmd.Env = append(os.Environ(), "HOME="+home)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("bosh %q: %v: %s", args, err, out)
		}
		return string(out)
	}
	var shown struct {
		Tables []struct{ Rows []map[string]string }
	}
	if err := json.Unmarshal([]byte(bosh("--json", "inspect-local-stemcell", file)), &shown); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"name": "bosh-qemu-kvm-debian-bookworm-cambium", "os": "debian-bookworm",
		"version": version, "infrastructure": "qemu", "hypervisor": "kvm"}
	if len(shown.Tables) != 1 || len(shown.Tables[0].Rows) != 1 || !maps.Equal(shown.Tables[0].Rows[0], want) {
		t.Errorf("inspect-local-stemcell shows %v, want %v", shown, want)
	}

	repacked := filepath.Join(t.TempDir(), "repacked.tgz")
	bosh("repack-stemcell", "--version=1.10", "--name=renamed", "--empty-image",
		`--cloud-properties={"image_id":"ami-1"}`, file, repacked)
	var mf struct {
		Name, Version string
		API           int            `yaml:"api_version"`
		Formats       []string       `yaml:"stemcell_formats"`
		Cloud         map[string]any `yaml:"cloud_properties"`
	}
	if err := yaml.Unmarshal(manifest(t, repacked), &mf); err != nil {
		t.Fatal(err)
	}
	if mf.Name != "renamed" || mf.Version != "1.10" || mf.API != 3 || mf.Cloud["image_id"] != "ami-1" ||
		mf.Cloud["infrastructure"] != "qemu" || len(mf.Formats) != 2 {
		t.Errorf("repacked: %+v", mf)
	}
}

// manifest reads stemcell.MF, wherever it is in the tarball.
func manifest(t *testing.T, tarball string) []byte {
	t.Helper()
	f, err := os.Open(tarball)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	zip, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			t.Fatal("no stemcell.MF")
		}
		if err != nil {
			t.Fatal(err)
		}
		if filepath.Base(h.Name) == "stemcell.MF" {
			data, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			return data
		}
	}
}
