//go:build vm

package vm

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

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
	tarball, err := cache.EnsureStemcell(t.Context(), labtest.Agent(t), image.Stemcell{Version: "0.0.1", IaaS: "qemu"})
	if err != nil {
		t.Fatal(err)
	}
	disk := filepath.Join(t.TempDir(), "root.img")
	manifest, err := image.UnpackStemcell(t.Context(), tarball, disk)
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
	if mf.APIVersion != 3 || mf.Version != "0.0.1" || len(mf.SHA1) != 40 || mf.Cloud["disk_format"] != "raw" || !strings.HasPrefix(mf.Name, "bosh-qemu-kvm-") {
		t.Errorf("stemcell.MF: %+v", mf)
	}
	for _, path := range []string{image.GuestProgram, "/etc/systemd/journald.conf.d/lab.conf", "/etc/systemd/network/80-container-host0.network", "/var/vcap/data/x"} {
		if data, err := image.Extract(t.Context(), disk, path); err == nil {
			t.Errorf("the stemcell has the lab's %s in it (%d bytes)", path, len(data))
		}
	}
	for path, want := range map[string]string{"stemcell_version": "0.0.1", "operating_system": "ubuntu", "infrastructure": "qemu"} {
		if got, err := image.Extract(t.Context(), disk, "/var/vcap/bosh/etc/"+path); err != nil || string(got) != want {
			t.Errorf("%s is %q (%v), want %q without a newline", path, got, err, want)
		}
	}
	if tools, err := image.Extract(t.Context(), disk, "/var/vcap/bosh/etc/dev_tools_file_list"); err != nil || !strings.Contains(string(tools), "\n/usr/bin/make\n") {
		t.Errorf("dev_tools_file_list has %d bytes (%v) without make", len(tools), err)
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
	agentLog(t, l, i)
}

// agentLog waits until the log that `bosh logs --agent` packs has the boot in it: rsyslog starts once the agent has
// mounted /var/log, and takes what the journal has kept for it.
func agentLog(t *testing.T, l *lab.Lab, i *lab.Instance) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Second) {
		var answer any
		err := i.Agent.Into(t.Context(), &answer, "fetch_logs_with_signed_url",
			map[string]any{"signed_url": l.Blobs.SignedURL("PUT", "agent-logs"), "log_type": "agent", "filters": []string{}})
		if err != nil {
			t.Fatal(err)
		}
		content, found := l.Blobs.Get("agent-logs")
		if !found {
			t.Fatal("the logs did not arrive")
		}
		log := member(t, content, "current")
		if strings.Contains(log, "bosh-agent") {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("current holds nothing of the agent: %q", log)
		}
	}
}

// member is a file of a gzipped tarball, or nothing.
func member(t *testing.T, archive []byte, name string) string {
	t.Helper()
	zip, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return ""
		}
		if err != nil {
			t.Fatal(err)
		}
		if path.Base(h.Name) == name {
			data, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			return string(data)
		}
	}
}
