//go:build vm || nightly

package stemcell

import (
	"crypto/ed25519"
	"crypto/rand"
	_ "embed"
	"encoding/pem"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"cambium/lab"
	"cambium/lab/labtest"
	"cambium/lab/machine/nspawn"

	"golang.org/x/crypto/ssh"
)

// lookScript prints what there is to know of a booted stemcell.
//
//go:embed testdata/look.sh
var lookScript string

// wanted are the lines of lookScript on every machine of a hardened stemcell, as regular expressions.
var wanted = map[string]string{
	"syslog-groups":       "adm syslog tty vcap",
	"vcap-sudo":           "yes",
	"programs":            "bosh-agent-rc sync-time restart_networking nc",
	"lock":                "770 root:vcap",
	"ipc":                 "b false",
	"path-of-root":        "/var/vcap/bosh/bin:.*",
	"path-of-vcap":        "/var/vcap/bosh/bin:.*",
	"rsyslog-user":        "syslog",
	"omrelp":              "yes",
	"lmnsd_gtls":          "yes",
	"rsyslog-syntax":      "yes",
	"forwarded":           "of-a-file second-line",
	"forwarded-of-agent":  "0",
	"agent-log":           "first-line",
	"time-stamp":          "look: second-line",
	"log-files":           "600 syslog:syslog",
	"logs-closed-to-vcap": "yes",
	"logrotate":           "",
	"rotated":             "600 syslog:syslog third-line",
	"set-id":              "/usr/bin/su /usr/bin/sudo",
	"shadow":              "0 root:root",
	"sshd": "banner /etc/issue.net " +
		"ciphers aes256-gcm@openssh.com,aes128-gcm@openssh.com,aes256-ctr,aes192-ctr,aes128-ctr " +
		"macs hmac-sha2-512-etm@openssh.com,hmac-sha2-256-etm@openssh.com,hmac-sha2-512,hmac-sha2-256 " +
		"passwordauthentication no permitrootlogin no",
	"core":                "0",
	"min-days":            "1 1",
	"hash":                "6",
	"su-of-root":          "yes",
	"su-of-sudo":          "yes",
	"su-of-others":        "no",
	"su-without-password": "no",
	"su-when-locked":      "no",
	"su-when-unlocked":    "yes",
	"ssh":                 "0 0 vcap",
	"banner":              "Authorized users only",
	"ssh-errors":          "",
	"guess":               "4 pam_pwquality.so yes",
}

// wantedOfKernel are further lines of a machine with a kernel of its own.
var wantedOfKernel = map[string]string{
	"modules":         "",
	"module-that-may": "yes",
	"sysctls":         "1 1 1 1000000",
	"boot":            "audit=1 enabled 1 kauditd",
	"audit-drift":     "",
	"clock":           "active _chrony yes",
}

// inspectStemcell has a machine run lookScript, and compares what it prints. A user logs in as with `bosh ssh`.
func inspectStemcell(t *testing.T, l *lab.Lab, i *lab.Instance, wanted ...map[string]string) map[string]string {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ssh.NewPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := i.Agent.Do(t.Context(), "ssh", "setup",
		map[string]any{"user": "bosh_look", "public_key": string(ssh.MarshalAuthorizedKey(key))}); err != nil {
		t.Fatal(err)
	}
	script := "KEY=$PWD/key\n(umask 077 && cat >$KEY) <<'E'\n" + string(pem.EncodeToMemory(block)) + "E\n" +
		"{\n" + lookScript + "} >$BOSH_INSTALL_TARGET/seen\n"
	said := map[string]string{}
	text := compileReport(t, l, i, script)("seen")
	for line := range strings.Lines(text) {
		if name, value, found := strings.Cut(strings.TrimSuffix(line, "\n"), ":"); found {
			said[name] = strings.TrimSpace(value)
		}
	}
	for _, lines := range wanted {
		for name, pattern := range lines {
			if value, found := said[name]; !found || !regexp.MustCompile("^("+pattern+")$").MatchString(value) {
				t.Errorf("%s is %q, want %q", name, value, pattern)
			}
		}
	}
	if t.Failed() {
		t.Log(text)
	}
	return said
}

// TestVMStemcellContainer boots the files of a stemcell's disk as a container, with a systemd of its own, and looks at
// everything that does not need a kernel of its own.
func TestVMStemcellContainer(t *testing.T) {
	kind := labtest.Kind{Engine: nspawn.Engine{Tree: mounted(t, unpack(t, tarball(t, "qemu")))}, Letter: "n",
		Timeout: 2 * time.Minute}
	l := kind.Lab(t)
	i := labtest.Start(t, l, lab.VM{Ephemeral: lab.GiB})
	kind.Ready(t, i)
	// A host without CAP_SYS_RESOURCE gives what it has.
	said := inspectStemcell(t, l, i, wanted)
	host := hostLimit(t)
	if limit, err := strconv.Atoi(said["open-files"]); err != nil || limit < min(host, 65536) {
		t.Errorf("jobs may open %q files, want at least %d", said["open-files"], min(host, 65536))
	}
}

// hostLimit returns the hard limit of open files of this process.
func hostLimit(t *testing.T) int {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "sh", "-c", "ulimit -Hn").Output()
	limit := 0
	if _, scan := fmt.Sscan(string(out), &limit); err != nil || scan != nil {
		return 65536 // unlimited
	}
	return limit
}
