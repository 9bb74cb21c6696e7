//go:build nightly

package release

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"cambium/internal/skiptest"
	"cambium/lab/tree"
)

// TestNightlyDeb: the package installs on a plain Debian, its program makes a machine of it, and both go without a trace.
func TestNightlyDeb(t *testing.T) {
	skiptest.WithoutRoot(t, "for a mount namespace")
	deb := filepath.Join(dist(t), "cambium-agent_"+version+"_amd64.deb")
	debian, err := tree.Cache{Dir: tree.DefaultDir()}.Ensure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	layer := tree.Layer{Tree: debian, Dir: t.TempDir()}
	if err := layer.Make(); err != nil {
		t.Fatal(err)
	}
	err = layer.Mounted(func(root string) error {
		in := func(command string) string { return run(t, "/", nil, "chroot", root, "sh", "-ec", command) }
		run(t, "/", nil, "cp", deb, filepath.Join(root, "agent.deb"))
		in("dpkg --install /agent.deb")
		if got := in("cambium-agent version"); got != version+"\n" {
			t.Errorf("cambium-agent version: %q", got)
		}
		if _, err := os.Stat(filepath.Join(root, "var/vcap")); err == nil {
			t.Error("the package alone made /var/vcap")
		}
		in("cambium-install --iaas qemu && cambium-install")
		in("test -x /var/vcap/bosh/bin/bosh-agent && grep -q ConfigDrive /var/vcap/bosh/agent.json && test -L /etc/systemd/system/multi-user.target.wants/bosh-agent.service")
		in("dpkg --install /agent.deb") // an upgrade
		in("test -x /var/vcap/bosh/bin/bosh-agent")
		in("dpkg --remove cambium-agent")
		if left := in("ls -d /var/vcap /usr/lib/cambium /etc/systemd/system/bosh-agent.service /etc/sudoers.d/bosh 2>/dev/null || true; getent passwd vcap || true"); left != "" {
			t.Errorf("left behind: %s", left)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestNightlyLintian: no error, and no warning, beyond the overrides, which state their reasons.
func TestNightlyLintian(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64"} {
		out, err := exec.CommandContext(t.Context(), "lintian", "--allow-root", "--fail-on=error,warning",
			filepath.Join(dist(t), "cambium-agent_"+version+"_"+arch+".deb")).CombinedOutput()
		if err != nil {
			t.Errorf("lintian: %v\n%s", err, out)
		}
	}
}

// TestNightlyManPage: the package has manual pages and completion for each command.
func TestNightlyManPage(t *testing.T) {
	help := run(t, "/", nil, filepath.Join(dist(t), "cambium-agent-"+version+"-linux-amd64"), "--help")
	content := run(t, "/", nil, "dpkg-deb", "--contents", filepath.Join(dist(t), "cambium-agent_"+version+"_amd64.deb"))
	_, list, _ := strings.Cut(help, "\ncommands:\n")
	list, _, _ = strings.Cut(list, "\n\n")
	want := []string{"/cambium-agent.8.gz", "/completions/cambium-agent", "/_cambium-agent", "/cambium-agent.fish"}
	for line := range strings.Lines(list) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		want = append(want, "/cambium-agent-"+name+".8.gz")
	}
	for _, path := range want {
		if !strings.Contains(content, path+"\n") {
			t.Errorf("%s is missing in the package", path)
		}
	}
}
