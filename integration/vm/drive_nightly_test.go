//go:build vm && nightly

package vm

import (
	"strings"
	"testing"

	"cambium/lab"
)

// TestNightlyVMConfigDriveISO: a config drive as CD image on a disk, static addresses of both families.
func TestNightlyVMConfigDriveISO(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	i := start(t, l, lab.VM{Source: lab.ConfigDrive, Ephemeral: 2 * lab.GiB, Edit: func(d lab.Document) {
		d.Set("networks.six", map[string]any{"type": "manual", "ip": "fd88::10", "netmask": "ffff:ffff:ffff:ffff::",
			"gateway": lab.Gateway6, "default": []string{"gateway"}, "mac": cardMAC(l, 0)})
	}})
	ready(t, i)
	wantReady(t, i)
	wantAddresses(t, i, "eth0", i.IP+"/24", "fd88::10/64")
	reaches(t, i, "eth0", "fd88:0:0:99::1")
	label := run(t, i, "lsblk", "-n", "-o", "LABEL", "/dev/disk/by-label/config-2")
	if strings.TrimSpace(label) != "config-2" {
		t.Errorf("the config drive's label is %q", label)
	}
	if mounted := run(t, i, "sh", "-c", "grep -c iso9660 /proc/self/mountinfo || true"); mounted != "0\n" {
		t.Error("the config drive is still mounted")
	}
	if conn, err := l.Net.DialContext(t.Context(), "tcp", "[fd88::10]:22"); err == nil {
		_ = conn.Close()
	} else if !strings.Contains(err.Error(), "refused") {
		t.Errorf("the IPv6 address cannot be reached: %v", err)
	}
}
