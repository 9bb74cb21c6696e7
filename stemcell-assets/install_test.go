//go:build root

package assets

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"cambium/internal/skiptest"
)

// emptyRoot is a root file system with nothing but what account tools need.
func emptyRoot(t *testing.T) string {
	t.Helper()
	skiptest.WithoutRoot(t, "to give files to other users")
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
	for _, dir := range []string{"etc/sudoers.d", "usr/lib/udev/rules.d"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// elf is as much of a program as the scripts look at before they run it.
const elf = "\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x3e\x00"

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
	if err := os.WriteFile(agent, []byte(elf+"one"), 0o600); err != nil {
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
		"usr/lib/udev/rules.d/72-cambium-media.rules":         0o644,
		"home/vcap":                                                     0o700 | fs.ModeDir,
		"var/vcap/monit/events":                                         0o700 | fs.ModeDir,
		"etc/systemd/system/agent.service":                              0o777 | fs.ModeSymlink,
		"var/vcap/bosh/bin/monit":                                       0o777 | fs.ModeSymlink,
		"var/vcap/bosh/etc/operating_system":                            0o644,
		"var/vcap/bosh/etc/infrastructure":                              0o644,
		"var/vcap/bosh/etc/bosh-enable-monit-access":                    0o755,
		"var/vcap/micro_bosh/data/cache":                                0o755 | fs.ModeDir,
		"etc/cron.allow":                                                0o600,
		"etc/at.allow":                                                  0o600,
		"etc/environment":                                               0o644,
		"usr/local/bin/agent":                                           0o777 | fs.ModeSymlink,
		"usr/local/bin/monit":                                           0o777 | fs.ModeSymlink,
		"var/vcap/bosh/bin/agent":                                       0o777 | fs.ModeSymlink,
		"usr/share/bash-completion/completions/agent":                   0o644,
		"usr/share/zsh/vendor-completions/_agent":                       0o644,
		"usr/share/fish/vendor_completions.d/agent.fish":                0o644,
		"usr/local/share/man/man8/agent-status.8":                       0o644,
		"etc/systemd/system/multi-user.target.wants/bosh-agent.service": 0o777 | fs.ModeSymlink,
	} {
		info, err := os.Lstat(filepath.Join(root, path))
		if err != nil || info.Mode() != mode {
			t.Errorf("%s: %v (%v), want mode %v", path, info, err, mode)
		}
	}
	for path, want := range map[string]string{
		"var/vcap/bosh/etc/operating_system": "ubuntu", "var/vcap/bosh/etc/infrastructure": "vsphere",
		"etc/cron.allow": "vcap\n",
	} {
		if data, err := os.ReadFile(filepath.Join(root, path)); err != nil || string(data) != want {
			t.Errorf("%s is %q (%v), want %q", path, data, err, want)
		}
	}
	if _, err := os.Lstat(filepath.Join(root, "var/vcap/data")); err == nil {
		t.Error("/var/vcap/data was made; stemcells must not have it")
	}
	sameFile(t, root)
	passwd, _ := os.ReadFile(filepath.Join(root, "etc/passwd"))
	if !strings.Contains(string(passwd), "vcap:x:1000:1000::/home/vcap:/bin/bash") {
		t.Errorf("passwd is %q, want the user vcap in it", passwd)
	}
	group, _ := os.ReadFile(filepath.Join(root, "etc/group"))
	for _, want := range []string{"\nvcap:x:1000:syslog\n", "\ntty:x:5:syslog\n", "\nbosh_sudoers:", "\nbosh_sshers:",
		"\nadm:x:4:vcap", "\ncdrom:x:24:vcap"} {
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
	if err := os.WriteFile(agent, []byte(elf+"two"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := install(t, root, "--agent", agent); err != nil {
		t.Fatalf("upgrade: %v: %s", err, out)
	}
	if data, err := os.ReadFile(filepath.Join(root, "var/vcap/bosh/bin/bosh-agent")); err != nil ||
		string(data) != elf+"two" {
		t.Errorf("agent is %q (%v), want the new one", data, err)
	}
	sameFile(t, root)
	content := make([]byte, len(elf)+3)
	if _, err := old.ReadAt(content, 0); err != nil || string(content) != elf+"one" {
		t.Errorf("the open file is %q (%v), want the old one: it was written over", content, err)
	}
	if data, _ := os.ReadFile(filepath.Join(root, "var/vcap/bosh/agent.json")); !strings.Contains(string(data), "CDROM") {
		t.Errorf("agent.json is %q, want the one of the first run kept", data)
	}
}

// sameFile checks that the program for jobs is a hard link: containers see its directory alone.
func sameFile(t *testing.T, root string) {
	t.Helper()
	agent, err1 := os.Lstat(filepath.Join(root, "var/vcap/bosh/bin/bosh-agent"))
	access, err2 := os.Lstat(filepath.Join(root, "var/vcap/bosh/etc/bosh-enable-monit-access"))
	if err1 != nil || err2 != nil || !os.SameFile(agent, access) {
		t.Errorf("bosh-enable-monit-access is not a hard link to the agent (%v, %v)", err1, err2)
	}
}

// TestRootInstallRemove: removal restores the files that were there before, and leaves no others.
func TestRootInstallRemove(t *testing.T) {
	for _, log := range []string{"rsyslog", "file", "journal"} {
		t.Run(log, func(t *testing.T) {
			root := emptyRoot(t)
			for path, content := range map[string]string{
				"var/vcap/bosh/bin/bosh-agent": "upstream", "etc/cron.allow": "root\n", "etc/environment": "LANG=C\n",
				"etc/logrotate.d/x": "", "etc/gshadow-": "", "etc/subuid": "",
			} {
				if err := os.MkdirAll(filepath.Join(root, filepath.Dir(path)), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(root, path), []byte(content), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			wants := filepath.Join(root, "etc/systemd/system/multi-user.target.wants")
			if err := errors.Join(os.MkdirAll(wants, 0o755),
				os.Symlink("/lib/systemd/system/monit.service", filepath.Join(wants, "monit.service"))); err != nil {
				t.Fatal(err)
			}
			before := contents(t, root)
			for _, args := range [][]string{{"--agent", "/bin/true", "--iaas", "aws", "--log", log},
				{"--agent", "/bin/false", "--log", log}, {"--remove"}} {
				if out, err := install(t, root, args...); err != nil {
					t.Fatalf("install %q: %v: %s", args, err, out)
				}
			}
			if after := contents(t, root); after != before {
				t.Errorf("after --remove:\n%s\nbefore:\n%s", after, before)
			}
			if out, err := install(t, root, "--remove"); err == nil {
				t.Errorf("a second --remove was accepted: %s", out)
			}
		})
	}
}

// contents lists every file with its content, but for the copies that the account tools keep.
func contents(t *testing.T, root string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || strings.HasSuffix(path, "-") || strings.Contains(path, "/etc/sub") {
			return err
		}
		link, _ := os.Readlink(path)
		data, _ := os.ReadFile(path)
		_, _ = fmt.Fprintf(&b, "%s %v %s %s\n", path, d.Type(), link, shown(data))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// shown is a text as it is, and of a program the digest.
func shown(data []byte) string {
	if len(data) > 4096 {
		return fmt.Sprintf("%x", sha256.Sum256(data))
	}
	return fmt.Sprintf("%q", data)
}

func TestRootInstallWithIDsTaken(t *testing.T) {
	root := emptyRoot(t)
	for path, line := range map[string]string{"etc/passwd": "debian:x:1000:1000::/home/debian:/bin/bash\n",
		"etc/group": "debian:x:1000:\n"} {
		f, err := os.OpenFile(filepath.Join(root, path), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.WriteString(line)
		if err = errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	out, err := install(t, root, "--agent", "/bin/true")
	if err != nil || !strings.Contains(out, "1000 is taken") {
		t.Errorf("install: %v: %s, want a warning", err, out)
	}
	passwd, _ := os.ReadFile(filepath.Join(root, "etc/passwd"))
	if !strings.Contains(string(passwd), "\nvcap:x:") || strings.Contains(string(passwd), "vcap:x:1000:") {
		t.Errorf("passwd is %q, want vcap with another number", passwd)
	}
}

// TestRootInstallLog: every flavor has the agent's log at one place.
func TestRootInstallLog(t *testing.T) {
	for want, program := range map[string]string{"etc/rsyslog.d/10-bosh-agent.conf": "rsyslogd",
		"etc/systemd/system/bosh-agent.service.d/log.conf": "logrotate"} {
		root := emptyRoot(t)
		if err := errors.Join(os.MkdirAll(filepath.Join(root, "usr/sbin"), 0o755),
			os.WriteFile(filepath.Join(root, "usr/sbin", program), nil, 0o755)); err != nil {
			t.Fatal(err)
		}
		if out, err := install(t, root, "--agent", "/bin/true"); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		data, err := os.ReadFile(filepath.Join(root, want))
		if err != nil || !strings.Contains(string(data), "bosh") {
			t.Errorf("with %s: %s is %q (%v)", program, want, data, err)
		}
		link, _ := os.Readlink(filepath.Join(root, "var/vcap/bosh/log/current"))
		if program == "rsyslogd" && link != "/var/log/bosh-agent.log" {
			t.Errorf("current leads to %q", link)
		}
	}
}

// TestRootInstallSupervisor: the agent's own supervisor runs the jobs, unless the stemcell's monit is the one that jobs
// are written for, or systemd does not run it.
func TestRootInstallSupervisor(t *testing.T) {
	const own, monit = " -M systemd", ""
	files := map[string]map[string]string{
		"none":    {},
		"current": {"usr/bin/monit": "This is Monit version 5.33.0\n"},
		"old":     {"var/vcap/bosh/bin/monit": "\x00monit 5.2.5 daemon\x00"},
		"wrapped": {"var/vcap/bosh/bin/monit": "#!/bin/sh\n", "var/vcap/bosh/bin/monit-actual": "\x005.2.5\x00"},
		"runit":   {"etc/sv/monit/run": "#!/bin/sh\n", "usr/bin/monit": "5.33.0"},
	}
	for _, c := range []struct {
		name string
		has  string
		runs [][]string // options of one run after the other
		want string
	}{
		{"no monit", "none", [][]string{{}}, own},
		{"current monit", "current", [][]string{{}}, own},
		{"monit 5.2", "old", [][]string{{}}, monit},
		{"monit 5.2 in a wrapper", "wrapped", [][]string{{}}, monit},
		{"runit", "runit", [][]string{{}}, monit},
		{"own asked for", "old", [][]string{{"--supervisor", "systemd"}}, own},
		{"monit asked for", "current", [][]string{{"--supervisor", "monit"}}, monit},
		{"own kept", "old", [][]string{{"--supervisor", "systemd"}, {}}, own},
		{"monit kept", "current", [][]string{{"--supervisor", "monit"}, {}}, monit},
		{"changed", "current", [][]string{{}, {"--supervisor", "monit"}}, monit},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := emptyRoot(t)
			for path, content := range files[c.has] {
				path = filepath.Join(root, path)
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755),
					os.WriteFile(path, []byte(content), 0o755)); err != nil {
					t.Fatal(err)
				}
			}
			for _, options := range c.runs {
				if out, err := install(t, root, append([]string{"--agent", "/bin/true"}, options...)...); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
			}
			unit, err := os.ReadFile(filepath.Join(root, "etc/systemd/system/bosh-agent.service"))
			want := "\nExecStart=/var/vcap/bosh/bin/bosh-agent -P ubuntu -C /var/vcap/bosh/agent.json" + c.want + "\n"
			if err != nil || !strings.Contains(string(unit), want) {
				t.Errorf("the unit is %q (%v), want %q in it", unit, err, want)
			}
			// The stemcell's program stays; where it has none, it is the agent.
			link, _ := os.Readlink(filepath.Join(root, "var/vcap/bosh/bin/monit"))
			if wantLink := map[bool]string{true: "", false: "bosh-agent"}[c.has == "old" ||
				c.has == "wrapped"]; link != wantLink {
				t.Errorf("monit leads to %q, want %q", link, wantLink)
			}
			if link, _ := os.Readlink(filepath.Join(root, "usr/local/bin/monit")); link != "/var/vcap/bosh/bin/monit" {
				t.Errorf("the command monit leads to %q", link)
			}
		})
	}
	root := emptyRoot(t)
	if err := errors.Join(os.MkdirAll(filepath.Join(root, "etc/sv/monit"), 0o755),
		os.WriteFile(filepath.Join(root, "etc/sv/monit/run"), nil, 0o755)); err != nil {
		t.Fatal(err)
	}
	before := snapshot(t, root)
	if out, err := install(t, root, "--agent", "/bin/true", "--supervisor", "systemd"); err == nil ||
		!strings.Contains(out, "runit runs monit here") {
		t.Errorf("with runit: got %v, %s", err, out)
	}
	if snapshot(t, root) != before {
		t.Error("a refused run changed something")
	}
}

func TestRootInstallRefuses(t *testing.T) {
	root := emptyRoot(t)
	before := snapshot(t, root)
	for name, args := range map[string][]string{
		"no agent": {}, "a text as agent": {"--agent", "../README.md"}, "missing agent": {"--agent", "/nonexistent"},
		"unknown iaas":   {"--agent", "/bin/true", "--iaas", "mainframe"},
		"unknown option": {"--agent", "/bin/true", "--fast"}, "unknown log": {"--agent", "/bin/true", "--log", "paper"},
		"unknown supervisor": {"--agent", "/bin/true", "--supervisor", "runit"}, "nothing to remove": {"--remove"},
	} {
		if out, err := install(t, root, args...); err == nil {
			t.Errorf("%s: accepted: %s", name, out)
		}
	}
	if out, err := install(t, t.TempDir(), "--agent", "/bin/true"); err == nil {
		t.Errorf("a directory that is not a root file system was accepted: %s", out)
	}
	if after := snapshot(t, root); after != before {
		t.Error("a refused run changed something")
	}
}

// TestRootMonitrc: every monit understands the file that install writes, 5.2.5 of 2011 and current ones. MONIT names
// further programs.
func TestRootMonitrc(t *testing.T) {
	programs := filepath.SplitList(os.Getenv("MONIT"))
	if program, err := exec.LookPath("monit"); err == nil {
		programs = append(programs, program)
	}
	if len(programs) == 0 {
		skiptest.Skip(t, "there is no monit on this machine: apt-get install monit")
	}
	root := t.TempDir()
	text, err := os.ReadFile("etc/monitrc")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "\nset log ") {
		t.Error("monit 5.2.5 does not have the statement set log")
	}
	text = []byte(strings.ReplaceAll(string(text), "/var/vcap", root))
	rc, account := filepath.Join(root, "monitrc"), filepath.Join(root, "monit/monit.user")
	if err := errors.Join(os.MkdirAll(filepath.Join(root, "monit/job"), 0o700), os.WriteFile(rc, text, 0o600),
		os.WriteFile(account, []byte("vcap:x"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, program := range programs {
		if out, err := exec.Command(program, "-t", "-c", rc).CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", program, err, out)
		}
	}
}
