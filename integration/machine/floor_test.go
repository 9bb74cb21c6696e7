//go:build machine

package machine

import (
	"strings"
	"testing"

	"cambium/lab"
	"cambium/lab/labtest"
	"cambium/lab/machine"
)

// newCalls are the system calls that docs/stemcells.md calls dispensable for a boot: kernels and the filters of
// container engines that are older than they are deny them.
const newCalls = "open_tree move_mount mount_setattr fsopen fsconfig fsmount fspick openat2 pidfd_open pidfd_send_signal faccessat2 close_range copy_file_range io_setup io_uring_setup clone3"

// containerCalls lists the system calls that the default profiles of docker or of garden, the engine of warden, deny
// to every unprivileged container, even to one that may mount. TestNightlyContainerProfiles has the profiles
// themselves.
const containerCalls = "acct add_key bpf clock_adjtime clock_settime create_module delete_module finit_module get_mempolicy init_module io_uring_enter io_uring_register " +
	"io_uring_setup ioperm iopl kcmp kexec_file_load kexec_load keyctl lookup_dcookie mbind migrate_pages move_pages name_to_handle_at nfsservctl open_by_handle_at " +
	"perf_event_open pivot_root process_vm_readv process_vm_writev ptrace quotactl quotactl_fd request_key set_mempolicy settimeofday swapoff swapon sysfs userfaultfd vhangup"

// missingCalls are those of newCalls that the agent tells about.
var missingCalls = []string{"open_tree", "move_mount", "mount_setattr", "fspick", "fsopen", "fsmount", "pidfd_open"}

// denial is a set of system calls that fail.
type denial struct {
	name, errno, calls string
	missing            []string
}

// TestMachineWithoutNewCalls has one denial of them; TestNightlyWithoutNewCalls has the others.
func TestMachineWithoutNewCalls(t *testing.T) {
	t.Parallel()
	denyCalls(t, denial{"forbidden", "EPERM", newCalls, missingCalls})
}

// denyCalls boots where calls fail. What is missing is logged, and costs no more than the table says.
func denyCalls(t *testing.T, denials ...denial) {
	l := newLab(t)
	for _, c := range denials {
		t.Run(c.name, func(t *testing.T) {
			i := start(t, l, lab.VM{Name: c.name, Ephemeral: lab.GiB,
				Files: []machine.File{{Path: "/etc/systemd/system/bosh-agent.service.d/deny.conf",
					Data: []byte("[Service]\nSystemCallFilter=~" + c.calls + "\nSystemCallErrorNumber=" + c.errno + "\n"),
					Mode: 0o644}}})
			labtest.Explain(t, i)
			ready(t, i)
			wantMissing(t, i, c.missing)
			if got := run(t, i, "sh", "-c", "grep Seccomp: /proc/$(systemctl show -P MainPID bosh-agent)/status"); !strings.Contains(got, "2") {
				t.Fatalf("the agent has no filter: %s", got)
			}
			for path, want := range map[string]string{"/var/log": "nosuid,nodev,noexec", "/opt": "nodev",
				"/tmp": "nosuid,nodev,noexec", "/home": "nosuid,nodev"} {
				if got := run(t, i, "findmnt", "-n", "-o", "OPTIONS", path); !strings.Contains(got, want) {
					t.Errorf("%s is mounted %q, want %s", path, got, want)
				}
			}
			disk, err := i.AttachNew(t.Context(), "disk", lab.GiB)
			if err != nil {
				t.Fatal(err)
			}
			do(t, i, "{}", "add_persistent_disk", "disk", disk.Path)
			do(t, i, "{}", "mount_disk", "disk")
			do(t, i, `["disk"]`, "list_disk")
			run(t, i, "systemctl", "restart", "bosh-agent")
			ready(t, i)
		})
	}
}

// wantMissing checks the line of the log and the warning of the status.
func wantMissing(t *testing.T, i *lab.Instance, calls []string) {
	t.Helper()
	logged := run(t, i, "sh", "-c", "journalctl -u bosh-agent -o cat --grep 'lacks features' || true")
	warned := run(t, i, "sh", "-c", "/var/vcap/bosh/bin/bosh-agent status --json || true")
	for _, call := range calls {
		if !strings.Contains(logged, call) || !strings.Contains(warned, call) {
			t.Errorf("%s is denied; the log says %q, the status %q", call, logged, warned)
		}
	}
	// Containers have the control groups of their host: version 1 and 2 side by side, or version 2 alone.
	hierarchies := run(t, i, "sh", "-c", "stat -f -c %T /sys/fs/cgroup /sys/fs/cgroup/unified 2>/dev/null || true")
	t.Logf("control groups: %s", strings.Join(strings.Fields(hierarchies), ", "))
	if strings.Contains(warned, "cgroup v2") == strings.Contains(hierarchies, "cgroup2fs") {
		t.Errorf("control groups are %q, and the status says %q", hierarchies, warned)
	}
	if len(calls) == 0 && (strings.Contains(logged, "open_tree") || strings.Contains(warned, "open_tree")) {
		t.Errorf("nothing that is asked for is denied; the log says %q, the status %q", logged, warned)
	}
}
