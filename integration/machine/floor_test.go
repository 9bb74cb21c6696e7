//go:build machine

package machine

import (
	"strings"
	"testing"

	"cambium/integration/lab"
	"cambium/integration/lab/labtest"
	"cambium/integration/lab/machine"
)

// newCalls are the system calls that docs/platform-floor.md calls dispensable for a boot: kernels and the filters of
// container engines that are older than they are deny them.
const newCalls = "open_tree move_mount mount_setattr fsopen fsconfig fsmount fspick openat2 pidfd_open pidfd_send_signal faccessat2 close_range copy_file_range io_setup io_uring_setup clone3"

// TestMachineWithoutNewCalls boots where these calls fail, as an unknown one does and as a forbidden one does.
func TestMachineWithoutNewCalls(t *testing.T) {
	l := newLab(t)
	for _, errno := range []string{"ENOSYS", "EPERM"} {
		t.Run(errno, func(t *testing.T) {
			i := start(t, l, lab.VM{Name: strings.ToLower(errno), Ephemeral: lab.GiB, Files: []machine.File{{Path: "/etc/systemd/system/bosh-agent.service.d/deny.conf",
				Data: []byte("[Service]\nSystemCallFilter=~" + newCalls + "\nSystemCallErrorNumber=" + errno + "\n"), Mode: 0o644}}})
			labtest.Explain(t, i)
			ready(t, i)
			if got := run(t, i, "sh", "-c", "grep Seccomp: /proc/$(systemctl show -P MainPID bosh-agent)/status"); !strings.Contains(got, "2") {
				t.Fatalf("the agent has no filter: %s", got)
			}
			for path, want := range map[string]string{"/var/log": "nosuid,nodev,noexec", "/opt": "nodev", "/tmp": "nosuid,nodev,noexec", "/home": "nosuid,nodev"} {
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
