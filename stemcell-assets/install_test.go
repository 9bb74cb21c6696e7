//go:build root

package assets

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// emptyRoot is a root file system with nothing but what account tools need.
func emptyRoot(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("needs root")
		}
		t.Skip("needs root, to give files to other users")
	}
	root := t.TempDir()
	for path, content := range map[string]string{
		"etc/passwd":  "root:x:0:0:root:/root:/bin/bash\nsyslog:x:102:4::/nonexistent:/usr/sbin/nologin\n",
		"etc/shadow":  "root:*:19000:0:99999:7:::\nsyslog:!:19000::::::\n",
		"etc/group":   "root:x:0:\nadm:x:4:\ntty:x:5:\ncdrom:x:24:\n",
		"etc/gshadow": "root:*::\nadm:*::\ntty:*::\ncdrom:*::\n",
	} {
		if err := os.MkdirAll(filepath.Join(root, filepath.Dir(path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, path), []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(root, "etc/sudoers.d"), 0o750); err != nil {
		t.Fatal(err)
	}
	return root
}

func install(t *testing.T, root string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command("./install", args...)
	cmd.Env = append(os.Environ(), "DESTDIR="+root)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// snapshot lists every file with what matters of it.
func snapshot(t *testing.T, root string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		link, _ := os.Readlink(path)
		_, _ = fmt.Fprintln(&b, path, info.Mode(), info.ModTime().UnixNano(), link)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestRootInstall(t *testing.T) {
	root := emptyRoot(t)
	agent := filepath.Join(t.TempDir(), "agent")
	if err := os.WriteFile(agent, []byte("one"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := install(t, root, "--agent", agent, "--iaas", "vsphere"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for path, mode := range map[string]fs.FileMode{
		"var/vcap/bosh/bin/bosh-agent":                        0o755,
		"var/vcap/bosh/agent.json":                            0o644,
		"var/vcap/bosh/etc/monitrc":                           0o600,
		"etc/sudoers.d/bosh":                                  0o440,
		"etc/systemd/system/bosh-agent.service":               0o644,
		"etc/systemd/system/monit.service":                    0o644,
		"etc/systemd/system/sysinit.target.d/bosh-agent.conf": 0o644,
		"home/vcap":                          0o700 | fs.ModeDir,
		"var/vcap/monit/events":              0o700 | fs.ModeDir,
		"etc/systemd/system/agent.service":   0o777 | fs.ModeSymlink,
		"var/vcap/bosh/bin/monit":            0o777 | fs.ModeSymlink,
		"var/vcap/bosh/etc/operating_system": 0o644,
		"etc/systemd/system/multi-user.target.wants/bosh-agent.service": 0o777 | fs.ModeSymlink,
	} {
		info, err := os.Lstat(filepath.Join(root, path))
		if err != nil || info.Mode() != mode {
			t.Errorf("%s: %v (%v), want mode %v", path, info, err, mode)
		}
	}
	passwd, _ := os.ReadFile(filepath.Join(root, "etc/passwd"))
	if !strings.Contains(string(passwd), "vcap:x:1000:1000::/home/vcap:/bin/bash") {
		t.Errorf("passwd is %q, want the user vcap in it", passwd)
	}
	group, _ := os.ReadFile(filepath.Join(root, "etc/group"))
	for _, want := range []string{"\nvcap:x:1000:syslog\n", "\ntty:x:5:syslog\n", "\nbosh_sudoers:", "\nbosh_sshers:", "\nadm:x:4:vcap", "\ncdrom:x:24:vcap"} {
		if !strings.Contains(string(group), want) {
			t.Errorf("group is %q, want %q in it", group, want)
		}
	}
	before := snapshot(t, root)
	if out, err := install(t, root, "--agent", agent, "--iaas", "vsphere"); err != nil {
		t.Fatalf("second run: %v: %s", err, out)
	}
	if after := snapshot(t, root); after != before {
		t.Errorf("the second run changed something:\n%s\nbefore:\n%s", after, before)
	}
	// A new agent replaces the file under its name, so that a running one can be replaced.
	old, err := os.Open(filepath.Join(root, "var/vcap/bosh/bin/bosh-agent"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = old.Close() }()
	if err := os.WriteFile(agent, []byte("two"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := install(t, root, "--agent", agent); err != nil {
		t.Fatalf("upgrade: %v: %s", err, out)
	}
	if data, err := os.ReadFile(filepath.Join(root, "var/vcap/bosh/bin/bosh-agent")); err != nil || string(data) != "two" {
		t.Errorf("agent is %q (%v), want the new one", data, err)
	}
	content := make([]byte, 3)
	if _, err := old.ReadAt(content, 0); err != nil || string(content) != "one" {
		t.Errorf("the open file is %q (%v), want the old one: it was written over", content, err)
	}
	if data, _ := os.ReadFile(filepath.Join(root, "var/vcap/bosh/agent.json")); !strings.Contains(string(data), "CDROM") {
		t.Errorf("agent.json is %q, want the one of the first run kept", data)
	}
}

func TestRootInstallRefuses(t *testing.T) {
	root := emptyRoot(t)
	before := snapshot(t, root)
	for name, args := range map[string][]string{
		"no agent": {}, "missing agent": {"--agent", "/nonexistent"}, "unknown iaas": {"--agent", "/bin/true", "--iaas", "mainframe"},
		"unknown option": {"--agent", "/bin/true", "--fast"},
	} {
		if out, err := install(t, root, args...); err == nil {
			t.Errorf("%s: accepted: %s", name, out)
		}
	}
	if out, err := install(t, t.TempDir(), "--agent", "/bin/true"); err == nil {
		t.Errorf("a directory that is no root file system was accepted: %s", out)
	}
	if after := snapshot(t, root); after != before {
		t.Error("a refused run changed something")
	}
}
