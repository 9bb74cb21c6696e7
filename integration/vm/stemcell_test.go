//go:build vm

package vm

import (
	"path/filepath"
	"strings"
	"testing"

	"cambium/integration/lab"
	"cambium/integration/lab/image"
	"cambium/integration/lab/labtest"
	"cambium/integration/lab/machine/qemu"
	"cambium/integration/lab/tree"

	"go.yaml.in/yaml/v3"
)

// TestVMStemcell boots the stemcell that is shipped, by its own boot loader, with nothing of the
// lab in it; all that is known of the machine is what its agent says.
func TestVMStemcell(t *testing.T) {
	t.Parallel()
	virtual.Need(t)
	cache := image.Cache{Dir: tree.DefaultDir(), Progress: t.Logf}
	tarball, err := cache.EnsureStemcell(t.Context(), labtest.Agent(t), image.Stemcell{Version: "0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	disk := filepath.Join(t.TempDir(), "root.img")
	manifest, err := image.UnpackStemcell(tarball, disk)
	if err != nil {
		t.Fatal(err)
	}
	var mf struct {
		Name       string         `yaml:"name"`
		Version    string         `yaml:"version"`
		APIVersion int            `yaml:"api_version"`
		SHA1       string         `yaml:"sha1"`
		Cloud      map[string]any `yaml:"cloud_properties"`
	}
	if err := yaml.Unmarshal(manifest, &mf); err != nil {
		t.Fatal(err)
	}
	if mf.APIVersion != 3 || mf.Version != "0.0.1" || len(mf.SHA1) != 40 || mf.Cloud["disk_format"] != "raw" || !strings.HasPrefix(mf.Name, "bosh-openstack-kvm-") {
		t.Errorf("stemcell.MF: %+v", mf)
	}
	if data, err := image.Extract(t.Context(), disk, image.GuestProgram); err == nil {
		t.Errorf("the stemcell has the lab's program in it (%d bytes)", len(data))
	}

	l := newLab(t, func(o *lab.Options) { o.Engine = qemu.Engine{Image: image.Image{Disk: disk}} })
	i := start(t, l, lab.VM{Source: lab.ConfigDrive, Ephemeral: 2 * lab.GiB})
	ready(t, i)
	state, err := i.Agent.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if state.AgentID != i.AgentID || state.VM.Name != i.Name() {
		t.Errorf("get_state: agent %q of %q, want %q of %q", state.AgentID, state.VM.Name, i.AgentID, i.Name())
	}
}
