//go:build root

package assets

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// host makes a directory of the host beside a tree, with files that no run on the tree may touch.
func host(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for path, content := range map[string]string{
		"file": "host", "file.before-cambium": "another", "dir/bosh": "host", "dir/S20monit": "host",
		"dir/bosh-agent":    "host",
		"dir/monit.service": "host", "passwd": "root:x:0:0:root:/root:/bin/bash\n", "group": "root:x:0:\nadm:x:4:\n",
		"shadow": "root:*:19000:0:99999:7:::\n", "gshadow": "root:*::\nadm:*::\n", "login.defs": "UID_MIN 1000\n",
		"etc/passwd":          "",
		"bosh/bin/bosh-agent": elf, "bosh/bin/bosh-agent.before-swap": elf, "bosh/etc/bosh-enable-monit-access": "host",
		"bosh/etc/installed": "dir /var/vcap/bosh/bin\nfile /var/vcap/bosh/bin/bosh-agent\n",
	} {
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, filepath.Dir(path)), 0o755),
			os.WriteFile(filepath.Join(dir, path), []byte(content), 0o640)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "empty"), 0o755),
		os.Symlink("nowhere", filepath.Join(dir, "dir/monit"))); err != nil {
		t.Fatal(err)
	}
	return dir
}

// symlink puts a link into a tree, in place of a file or directory.
func symlink(t *testing.T, root, name, target string) {
	t.Helper()
	path := filepath.Join(root, name)
	if err := errors.Join(os.RemoveAll(path), os.MkdirAll(filepath.Dir(path), 0o755),
		os.Symlink(target, path)); err != nil {
		t.Fatal(err)
	}
}

const up = "../../../../../../../../../../../../../.."

// hostileLinks are names that the scripts use, with what a hostile tree has them lead to on the host: a map for each
// tree.
var hostileLinks = []map[string]string{
	{
		"etc/passwd-": "file", "etc/passwd.lock": "file", "etc/passwd+": "file", "etc/login.defs": "login.defs",
		"etc/sudoers.d/bosh": "dir", "etc/sudoers.d/bosh.before-cambium": "file", "etc/cron.allow": "file",
		"etc/environment": "file",
		"etc/profile.d":   "dir", "etc/rc2.d": "dir", "etc/logrotate.d": "dir", "etc/rsyslog.d": "dir", "home/vcap": "empty",
		"etc/systemd/system/bosh-agent.service": "file", "etc/systemd/system/agent.service": "dir",
		"etc/systemd/system/multi-user.target.wants": "dir", "usr/local/bin/agent": "dir", "usr/share/zsh": "absent",
		"var/vcap/bosh/bin/bosh-agent.before-swap": "absent", "var/vcap/bosh/bin/bosh-agent.new": "file",
		"var/vcap/bosh/bin/agent":                    "dir",
		"var/vcap/bosh/etc/bosh-enable-monit-access": "dir", "var/vcap/bosh/etc/operating_system": "absent",
		"var/vcap/bosh/log/current": "dir", "var/vcap/monit/events": "absent", "run/systemd/system/monit.service.d": "dir",
	},
	{"etc/sudoers.d": "dir", "etc/environment": "absent", "home": "dir", "usr": "dir", "etc/systemd": "dir",
		"var/vcap/bosh/etc/bosh-enable-monit-access": "file", "var/vcap/bosh/bin/bosh-agent.before-swap": "file"},
	{"etc/sudoers.d/bosh": "absent", "home": "absent", "usr/local/bin": "dir", "etc/systemd/system": "dir", "var/vcap/bosh/bin": "dir"},
	{"etc/sudoers.d/bosh": "file", "home/vcap": "absent", "var/vcap/bosh/bin/bosh-agent": "file"},
	{"etc/passwd": "passwd"}, {"etc/group": "group", "etc/shadow": "shadow", "etc/gshadow": "gshadow"}, {"etc": "etc"},
	{"var": "dir"}, {"var/vcap": ""}, {"var/vcap/bosh": "bosh"}, {"var/vcap/bosh/bin": "absent"}, {"var/vcap/bosh/etc": "dir"},
	{"var/vcap/bosh/etc/installed": "bosh/etc/installed"}, {"var/vcap/bosh/etc/installed": "absent"},
}

// TestRootTreesDoNotLeadOut: whatever links a tree has, install, its removal, swap and the way back change nothing
// outside of it. Some of the runs fail.
func TestRootTreesDoNotLeadOut(t *testing.T) {
	agent := filepath.Join(t.TempDir(), "agent")
	if err := os.WriteFile(agent, thisProgram(t), 0o644); err != nil {
		t.Fatal(err)
	}
	installed := emptyRoot(t)
	if out, err := install(t, installed, "--agent", agent, "--log", "rsyslog"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for n, links := range hostileLinks {
		kind, prefix := "absolute", ""
		if n%2 == 1 {
			kind, prefix = "upwards", up
		}
		t.Run(fmt.Sprint(n, " ", kind), func(t *testing.T) {
			t.Parallel()
			outside := host(t)
			before := snapshot(t, outside)
			run := func(root, script string, args ...string) {
				t.Helper()
				cmd := exec.Command("./"+script, args...)
				cmd.Env = append(os.Environ(), "DESTDIR="+root)
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Logf("%s %s: %v: %s", script, args, err, out)
				}
				if after := snapshot(t, outside); after != before {
					t.Fatalf("%s %s: outside there is now\n%s\nwant\n%s", script, args, after, before)
				}
			}
			first, later := emptyRoot(t), filepath.Join(t.TempDir(), "root")
			if out, err := exec.Command("cp", "-a", installed, later).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			for name, target := range links {
				symlink(t, first, name, prefix+filepath.Join(outside, target))
				symlink(t, later, name, prefix+filepath.Join(outside, target))
			}
			run(first, "install", "--agent", agent, "--iaas", "aws", "--log", "rsyslog")
			run(first, "install", "--remove")
			run(later, "swap", later, agent)
			run(later, "swap", later, "--back")
			run(later, "install", "--remove")
		})
	}
}

// TestRootLinksOfATreeAreFollowedInIt: absolute links, and those that go up too far, lead where they do on the machine.
func TestRootLinksOfATreeAreFollowedInIt(t *testing.T) {
	root := emptyRoot(t)
	for name, target := range map[string]string{
		"var/vcap": "/data/vcap", "etc/systemd/system": "/lib/units", "home": up + "/srv/../data/home", "lib": "usr/lib",
	} {
		symlink(t, root, name, target)
	}
	if err := errors.Join(os.MkdirAll(filepath.Join(root, "data/vcap/bosh/of another"), 0o755),
		os.MkdirAll(filepath.Join(root, "usr/lib"), 0o755),
		os.Rename(filepath.Join(root, "etc/passwd"), filepath.Join(root, "data/passwd")),
		os.Symlink("/data/passwd", filepath.Join(root, "etc/passwd"))); err != nil {
		t.Fatal(err)
	}
	before := contents(t, root)
	agent := filepath.Join(t.TempDir(), "agent")
	if err := os.WriteFile(agent, thisProgram(t), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := install(t, root, "--agent", agent); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if out, err := exec.Command("./swap", root, agent).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, path := range []string{"data/vcap/bosh/bin/bosh-agent", "data/vcap/bosh/bin/bosh-agent.before-swap",
		"data/vcap/bosh/etc/installed",
		"usr/lib/units/bosh-agent.service", "data/home/vcap"} {
		if _, err := os.Lstat(filepath.Join(root, path)); err != nil {
			t.Error(err)
		}
	}
	if data, err := os.ReadFile(filepath.Join(root, "data/passwd")); err != nil ||
		!strings.Contains(string(data), "\nvcap:x:1000:") {
		t.Errorf("passwd is %q (%v), want the user vcap in it", data, err)
	}
	if out, err := exec.Command("./swap", root, "--back").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if out, err := install(t, root, "--remove"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if after := contents(t, root); after != before {
		t.Errorf("after --remove:\n%s\nbefore:\n%s", after, before)
	}
}

// TestRootAccountToolsTakeNoOrders: the configuration of a tree does not have the host's account tools run commands or
// make files.
func TestRootAccountToolsTakeNoOrders(t *testing.T) {
	root, outside := emptyRoot(t), t.TempDir()
	made := filepath.Join(outside, "made")
	script := filepath.Join(t.TempDir(), "script")
	for path, content := range map[string]string{
		script: "#!/bin/sh\ntouch " + made + "\n",
		filepath.Join(root, "etc/login.defs"): "USERDEL_CMD " + script + "\nMAIL_DIR " + up + outside + "\nCREATE_HOME yes\nUSERGROUPS_ENAB yes\n" +
			"PASS_MAX_DAYS 77\n",
		filepath.Join(root, "etc/default/useradd"): "CREATE_MAIL_SPOOL=yes\nINACTIVE=0\n",
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755),
			os.WriteFile(path, []byte(content), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := install(t, root, "--agent", "/bin/true"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if shadow := string(file(t, filepath.Join(root, "etc/shadow"))); !strings.Contains(shadow, ":77:") {
		t.Errorf("shadow is %q, want the tree's limit in it", shadow)
	}
	if out, err := install(t, root, "--remove"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("outside there is %v (%v)", left, err)
	}
}

// TestRootInstallRecord: a record that install has not written is refused before anything changes.
func TestRootInstallRecord(t *testing.T) {
	for _, line := range []string{
		"file /../victim", "file /etc/../../victim", "file ../victim", "file etc/passwd", "dir /..", "file /", "file",
		"unlinked x", "unlinked /x ../victim", "user --root=/", "user -r", "group -f x", "member a", "member -a b",
		"member .* root",
		"path", "path all", "rm /etc/passwd", "FILE /etc/passwd", "file /a\x00b", "file /a\tb", "file /.hidden", " ",
		"file  /x", "\x1b[2J",
	} {
		t.Run(line, func(t *testing.T) {
			root := emptyRoot(t)
			record := filepath.Join(root, "var/vcap/bosh/etc/installed")
			if err := errors.Join(os.MkdirAll(filepath.Dir(record), 0o755),
				os.WriteFile(record, []byte("dir /var/vcap/bosh/bin\n"+line+"\nfile /etc/passwd\n"), 0o644)); err != nil {
				t.Fatal(err)
			}
			before := snapshot(t, root)
			for _, args := range [][]string{{"--remove"}, {"--agent", "/bin/true"}} {
				out, err := install(t, root, args...)
				if err == nil || !strings.Contains(out, "line 2") || strings.Contains(out, "\x1b") {
					t.Errorf("%q: %v: %q, want an error that names line 2", args, err, out)
				}
			}
			if after := snapshot(t, root); after != before {
				t.Errorf("the tree is now\n%s\nwant\n%s", after, before)
			}
		})
	}
}
