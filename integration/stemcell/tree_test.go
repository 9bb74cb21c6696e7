//go:build vm || nightly

package stemcell

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// mounted returns the root file system of a stemcell's disk, read-only.
func mounted(t *testing.T, disk string) string {
	t.Helper()
	dir := t.TempDir()
	// Partition 2, by its place: a host without a parser for the table has no node for it.
	if out, err := exec.CommandContext(t.Context(), "mount", "-o", "loop,ro,noload,offset=51380224", disk,
		dir).CombinedOutput(); err != nil {
		t.Fatalf("mount: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	return dir
}

// lines lists the lines that files of a hardened stemcell must contain, as regular expressions.
var lines = map[string][]string{
	"etc/ssh/sshd_config.d/bosh.conf":         {"Banner /etc/issue.net", "PermitRootLogin no", "AllowGroups bosh_sshers"},
	"etc/ssh/sshd_config.d/bosh-ciphers.conf": {"Ciphers aes256-gcm@.*", "MACs hmac-sha2-512-etm@.*"},
	"etc/systemd/logind.conf.d/bosh.conf":     {"RemoveIPC=no"},
	"etc/systemd/journald.conf.d/bosh.conf":   {"ForwardToSyslog=yes"},
	"etc/tmpfiles.d/bosh.conf":                {"d /run/lock 0770 root vcap"},
	"etc/rsyslog.d/10-bosh-agent.conf":        {"  stop"},
	"etc/rsyslog.conf":                        {`\$PrivDropToUser syslog`, `\$FileCreateMode 0600`},
	"etc/logrotate.conf":                      {"su root root"},
	"root/.bashrc":                            {".*PATH=/var/vcap/bosh/bin:.*", "PS1=.*"},
	"home/vcap/.bashrc":                       {".*PATH=/var/vcap/bosh/bin:.*", "PS1=.*"},
	"etc/skel/.bashrc":                        {".*PATH=/var/vcap/bosh/bin:.*", "PS1=.*"},
	"etc/group":                               {"sudo:.*:vcap", "adm:.*:(.*,)?syslog(,.*)?", "vcap:.*:1000:syslog"},
	"etc/pam.d/common-auth": {`auth\s+required\s+pam_faillock.so preauth`, `auth\s+.*pam_unix.so`,
		`auth\s+\[default=die\]\s+pam_faillock.so authfail`},
	"etc/pam.d/common-password": {`password\s+requisite\s+pam_pwquality.so .*`,
		`password\s+.*pam_unix.so .*sha512`},
	"etc/pam.d/su":                    {`auth\s+required\s+pam_wheel.so use_uid group=sudo`},
	"etc/security/faillock.conf":      {"deny = 5", "unlock_time = 900"},
	"etc/security/limits.d/bosh.conf": {`\* hard core 0`},
	"etc/login.defs":                  {`PASS_MIN_DAYS\s+1`, "ENCRYPT_METHOD SHA512"},
	"etc/modprobe.d/bosh.conf": {"install usb-storage /bin/false", "install bluetooth /bin/false",
		"install tipc /bin/false", "install sctp /bin/false", "install dccp /bin/false",
		"install rds /bin/false", "install cramfs /bin/false", "install freevxfs /bin/false", "install jffs2 /bin/false",
		"install hfs /bin/false", "install hfsplus /bin/false",
		"install squashfs /bin/false"},
	"etc/modprobe.d/bosh-udf.conf": {"install udf /bin/false"},
	"etc/sysctl.d/60-bosh-sysctl.conf": {`net.ipv4.conf.default.log_martians=1`, `net.ipv4.icmp_echo_ignore_broadcasts=1`,
		`net.ipv4.icmp_ignore_bogus_error_responses=1`,
		`kernel.keys.root_maxkeys=1000000`, `net.ipv4.conf.all.rp_filter=1`, `kernel.randomize_va_space=2`},
	"boot/grub/grub.cfg": {`set superusers="vcap"`,
		`password_pbkdf2 vcap grub\.pbkdf2\.sha512\.10000\.[0-9A-F]{128}\.[0-9A-F]{128}`,
		`linux /boot/vmlinuz .* audit=1 audit_backlog_limit=8192 .*`},
}

// modes of a hardened stemcell's files; the owner is root.
var modes = map[string]fs.FileMode{
	"etc/shadow": 0, "etc/gshadow": 0, "boot/grub/grub.cfg": 0o600, "etc/ssh/sshd_config": 0o600, "etc/crontab": 0o600,
	"etc/cron.d": fs.ModeDir | 0o700, "etc/cron.allow": 0o600,
	"var/vcap/bosh/bin/bosh-agent-rc": 0o755, "var/vcap/bosh/bin/sync-time": 0o755,
	"var/vcap/bosh/bin/restart_networking": 0o755, "usr/sbin/chronyd": 0o755, "usr/bin/nc.openbsd": 0o755,
}

// checkTree looks at the files of a hardened stemcell.
func checkTree(t *testing.T, root string) {
	t.Helper()
	for name, wanted := range lines {
		data, err := os.ReadFile(filepath.Join(root, name))
		for _, line := range wanted {
			if !regexp.MustCompile("(?m)^" + line + "$").Match(data) {
				t.Errorf("/%s (%v) has no line %q:\n%s", name, err, line, data)
			}
		}
	}
	for name, want := range modes {
		info, err := os.Stat(filepath.Join(root, name))
		if err != nil {
			t.Error(err)
			continue
		}
		if st, ok := info.Sys().(*syscall.Stat_t); info.Mode() != want || !ok || st.Uid != 0 || st.Gid != 0 {
			t.Errorf("/%s is %v, want %v of root", name, info.Mode(), want)
		}
	}
	if data, err := os.ReadFile(filepath.Join(root, "etc/pam.d/common-auth")); err != nil ||
		strings.Contains(string(data), "nullok") {
		t.Errorf("empty passwords are accepted (%v)", err)
	}
	rules, err := filepath.Glob(filepath.Join(root, "etc/rsyslog.d/*"))
	for n := range rules {
		rules[n] = filepath.Base(rules[n])
	}
	if err != nil || !slices.Equal(rules, []string{"10-bosh-agent.conf", "50-default.conf"}) {
		t.Errorf("rsyslog.d holds %q (%v)", rules, err)
	}
	var found []string
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 {
			found = append(found, strings.TrimPrefix(path, root))
		}
		return err
	})
	if err != nil || !slices.Equal(found, []string{"/usr/bin/su", "/usr/bin/sudo"}) {
		t.Errorf("set-id programs are %q (%v), want su and sudo alone", found, err)
	}
	if _, err := os.Stat(filepath.Join(root, "var/vcap/data")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("/var/vcap/data: %v, want none", err)
	}
}

// TestVMStemcellTree looks at every line of the hardening profile in the made disk.
func TestVMStemcellTree(t *testing.T) {
	checkTree(t, mounted(t, unpack(t, tarball(t, "qemu"))))
}
