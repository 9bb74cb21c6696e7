//go:build machine

package machine

import (
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"cambium/integration/lab/machine"
)

// baselineBinary is the agent that this one is compared with, and that it takes over from.
var baselineBinary = sync.OnceValues(func() (string, error) {
	build := exec.Command("../../scripts/baseline")
	build.Stderr = os.Stderr
	out, err := build.Output()
	return strings.TrimSpace(string(out)), err
})

func baseline(t testing.TB) string {
	t.Helper()
	path, err := baselineBinary()
	if err != nil {
		t.Fatalf("baseline agent: %v", err)
	}
	return path
}

// stemcellScripts are the stemcell's programs that the baseline cannot boot without; each does
// what it does there, or nothing where that takes time of its own.
var stemcellScripts = map[string]string{
	"bosh-agent-rc":                   "exit 0",
	"restart_networking":              "exec systemctl restart systemd-networkd",
	"bosh-start-logging-and-auditing": "exit 0",
	"sync-time":                       "exit 0",
	"setup-logrotate.sh":              "exit 0",
	"bosh-blobstore-dav":              "exit 1", // signed URLs need no such program
	// parted itself announces partitions; partprobe looks for them under the kernel's names, and
	// takes those of a disk in use for changed.
	"partprobe": "exit 0",
	"iptables":  "case $1 in --version) echo 'iptables v1.8.9 (nf_tables)';; esac",
	"ip6tables": "case $1 in --version) echo 'ip6tables v1.8.9 (nf_tables)';; esac",
	// Not a stemcell's: what a virtual machine has and a container has not. The baseline finds NICs
	// in sysfs, which shows those of the host, and would grow a root disk that is not there. It wants a control group
	// for its connections, for which here a directory must do.
	"make-virtual": `mountpoint -q /run/sys && exit 0
set -e
rm -f /usr/bin/growpart
getent group syslog >/dev/null || groupadd --system syslog
mkdir -p /run/sys
mount -t sysfs sysfs /run/sys
mount --bind /run/sys/class/net /sys/class/net
mount --bind /run/sys/devices/virtual/net /sys/devices/virtual/net
mount -o remount,rw /sys/fs/cgroup
mkdir -p /sys/fs/cgroup/net_cls`,
}

// stemcellFiles make a machine that both agents can boot.
func stemcellFiles() (files []machine.File) {
	for name, body := range stemcellScripts {
		files = append(files, machine.File{Path: "/var/vcap/bosh/bin/" + name, Data: []byte("#!/bin/sh\n" + body + "\n"), Mode: 0o755})
	}
	dropIn := func(unit, text string) {
		files = append(files, machine.File{Path: "/etc/systemd/system/" + unit + ".service.d/lab.conf", Mode: 0o644, Data: []byte(text)})
	}
	dropIn("bosh-agent", "[Service]\nExecStartPre=/var/vcap/bosh/bin/make-virtual\n")
	// The baseline restarts them more often than systemd likes.
	for _, unit := range []string{"systemd-networkd", "systemd-resolved"} {
		dropIn(unit, "[Unit]\nStartLimitIntervalSec=0\n")
	}
	return files
}
