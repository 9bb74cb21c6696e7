// Package baseline provides the agent that this one is compared with and replaces: the released
// cloudfoundry/bosh-agent, and what it needs to boot in a machine of the lab.
package baseline

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"

	"cambium/lab/machine"
)

// Build returns the path of the baseline's binary: BASELINE if set, or else the released agent, which is built at the
// first call on this machine. root is the directory of the project.
func Build(ctx context.Context, root string) (string, error) {
	build := exec.CommandContext(ctx, filepath.Join(root, "scripts/baseline"))
	build.Stderr = os.Stderr
	out, err := build.Output()
	if err != nil {
		return "", fmt.Errorf("build the baseline agent: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

const programs = "/var/vcap/bosh/bin/"

// stemcell maps programs of a stemcell to scripts. Each does the same as on a stemcell, or nothing if that would take
// time.
var stemcell = map[string]string{
	"bosh-agent-rc":                   "exit 0",
	"restart_networking":              "exec systemctl restart systemd-networkd",
	"bosh-start-logging-and-auditing": "exit 0",
	"sync-time":                       "exit 0",
	"setup-logrotate.sh":              "exit 0",
	"iptables":                        "case $1 in --version) echo 'iptables v1.8.9 (nf_tables)';; esac",
	"ip6tables":                       "case $1 in --version) echo 'ip6tables v1.8.9 (nf_tables)';; esac",
	"bosh-blobstore-dav":              "exit 1", // signed URLs need no such program
	// Stemcells have a monit of their own there, which any agent runs.
	"monit":      "exec /usr/bin/monit \"$@\"",
	"make-group": "getent group syslog >/dev/null || groupadd --system syslog",
}

// container maps programs to scripts that replace what containers lack. The baseline finds NICs in sysfs, which shows
// the host's, and would grow a root disk that does not exist. It needs a control group for its connections, in place of
// which a directory must do. parted announces partitions itself; partprobe would search for them by the kernel's names,
// and consider those of a busy disk changed. The lab creates the node of a new partition later than devtmpfs would, and
// the baseline gives up if blkid does not find the partition.
var container = map[string]string{
	"partprobe": "exit 0",
	"blkid":     `[ "$1" = -p ] && for i in $(seq 100); do [ -e "$2" ] && break; sleep 0.1; done; exec /usr/sbin/blkid "$@"`,
	"make-virtual": `mountpoint -q /run/sys && exit 0
set -e
rm -f /usr/bin/growpart
mkdir -p /run/sys
mount -t sysfs sysfs /run/sys
mount --bind /run/sys/class/net /sys/class/net
mount --bind /run/sys/devices/virtual/net /sys/devices/virtual/net
mount -o remount,rw /sys/fs/cgroup
mkdir -p /sys/fs/cgroup/net_cls`,
}

// Files returns the files with which both agents boot in a virtual machine.
func Files() []machine.File {
	files := scripts(stemcell)
	files = append(files, dropIn("bosh-agent", "baseline", "[Service]\nExecStartPre="+programs+"make-group\nExecStart=\n"+
		"ExecStart="+programs+"bosh-agent -P ubuntu -C /var/vcap/bosh/agent.json\n"))
	// The baseline restarts them more often than systemd's start limit allows.
	for _, unit := range []string{"systemd-networkd", "systemd-resolved"} {
		files = append(files, dropIn(unit, "baseline", "[Unit]\nStartLimitIntervalSec=0\n"))
	}
	return files
}

// ContainerFiles returns the files with which both agents boot in a container.
func ContainerFiles() []machine.File {
	files := append(Files(), scripts(container)...)
	return append(files, dropIn("bosh-agent", "container", "[Service]\nExecStartPre="+programs+"make-virtual\n"))
}

func scripts(bodies map[string]string) (files []machine.File) {
	for name, body := range bodies {
		files = append(files, machine.File{Path: programs + name, Data: []byte("#!/bin/sh\n" + body + "\n"), Mode: 0o755})
	}
	sort.Slice(files, func(i, j int) bool { return files[i].Path < files[j].Path })
	return files
}

func dropIn(unit, name, text string) machine.File {
	return machine.File{Path: "/etc/systemd/system/" + unit + ".service.d/" + name + ".conf", Mode: 0o644,
		Data: []byte(text)}
}
