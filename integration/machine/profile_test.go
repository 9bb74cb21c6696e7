//go:build machine && nightly

package machine

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"cambium/internal/status"
	"cambium/lab"
	"cambium/lab/machine"
)

// dockerModule holds docker's default profile.
const dockerModule = "github.com/moby/profiles/seccomp@v0.1.0"

// gardenDenies lists the system calls that the agent, Go's runtime or the programs that it starts may make, but that
// garden's profile (guardiancmd/seccomp_linux.go of cloudfoundry/guardian) denies to unprivileged containers.
// Privileged ones, as a warden CPI makes, have no filter.
const gardenDenies = "mount umount2 setns unshare swapon swapoff pivot_root open_tree move_mount mount_setattr fsopen fsconfig fsmount fspick pidfd_open pidfd_send_signal " +
	"pidfd_getfd faccessat2 fchmodat2 close_range clone3 rseq membarrier epoll_pwait2 preadv2 pwritev2 io_uring_setup io_uring_enter name_to_handle_at sethostname setdomainname " +
	"settimeofday clock_settime adjtimex reboot bpf keyctl add_key request_key init_module finit_module delete_module quotactl"

// module downloads a module from the proxy, and returns where it is. It stays out of our go.mod.
func module(t *testing.T, name string) string {
	t.Helper()
	download := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", name)
	download.Dir, download.Env = t.TempDir(), append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
	out, err := download.Output()
	var found struct{ Dir, Version, Error string }
	if jsonErr := json.Unmarshal(out, &found); jsonErr != nil || found.Error != "" || found.Dir == "" {
		t.Fatalf("download %s: %v: %s", name, err, out)
	}
	t.Logf("%s is %s", name, found.Version)
	return found.Dir
}

// dockerProfile returns the calls that docker allows to containers with the given capabilities. Calls that it allows with some
// arguments only count as allowed.
func dockerProfile(t *testing.T, capabilities ...string) (allowed []string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(module(t, dockerModule), "default.json"))
	if err != nil {
		t.Fatal(err)
	}
	type condition struct{ Caps, Arches []string }
	var profile struct {
		Syscalls []struct {
			Names              []string
			Action             string
			Includes, Excludes condition
		}
	}
	if err := json.Unmarshal(data, &profile); err != nil {
		t.Fatal(err)
	}
	has := func(capability string) bool { return slices.Contains(capabilities, capability) }
	for _, rule := range profile.Syscalls {
		applies := len(rule.Includes.Arches) == 0 || slices.Contains(rule.Includes.Arches, "amd64")
		if rule.Action == "SCMP_ACT_ALLOW" && applies && !slices.ContainsFunc(rule.Excludes.Caps, has) &&
			(len(rule.Includes.Caps) == 0 || slices.ContainsFunc(rule.Includes.Caps, has)) {
			allowed = append(allowed, rule.Names...)
		}
	}
	return allowed
}

// TestNightlyContainerProfiles boots under the default profiles of docker and garden: with docker's list of allowed calls as it
// is published, and without the calls that garden denies. Where mounting is denied the verdict says so; otherwise the machine
// boots.
func TestNightlyContainerProfiles(t *testing.T) {
	mounting := []string{"CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_SYS_CHROOT", "CAP_SYS_BOOT", "CAP_SYS_NICE",
		"CAP_SYS_RESOURCE"}
	mayMount := dockerProfile(t, mounting...)
	l := newLab(t)
	for _, c := range []struct {
		name, filter string
		boots        bool
	}{
		{"docker", allowOnly(t, dockerProfile(t)), false},
		{"docker-with-mounts", allowOnly(t, mayMount), true},
		{"garden", "SystemCallFilter=~" + gardenDenies, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			i := start(t, l, lab.VM{Name: c.name, Ephemeral: lab.GiB,
				Files: []machine.File{{Path: "/etc/systemd/system/bosh-agent.service.d/deny.conf", Mode: 0o644,
					Data: []byte("[Service]\nSystemCallErrorNumber=EPERM\n" + c.filter + "\n")}}})
			if c.boots {
				ready(t, i)
			}
			d := settled(t, i, time.Minute)
			t.Logf("state %s, verdict %q, warnings %q", d.State, d.Verdict, d.Warnings)
			if got := run(t, i, "sh", "-c", "grep Seccomp: /proc/$(systemctl show -P MainPID bosh-agent)/status"); !strings.Contains(got, "2") {
				t.Fatalf("the agent has no filter: %s", got)
			}
			if c.boots {
				if d.State != status.Ready {
					t.Errorf("the machine is %s, want ready", d.State)
				}
				return
			}
			if d.State != status.Failed || !strings.Contains(d.Verdict, "mount") ||
				!strings.Contains(d.Verdict, "operation not permitted: if this is a container") {
				t.Errorf("the machine is %s, %q; want a verdict that mounting is not permitted, and what to do", d.State, d.Verdict)
			}
			if !slices.ContainsFunc(d.Warnings, func(w string) bool {
				return strings.Contains(w, "open_tree") && strings.Contains(w, "pidfd_open") == (c.name == "garden")
			}) {
				t.Errorf("the status warns %q, want the calls that are denied", d.Warnings)
			}
		})
	}
}

// allowOnly makes a filter of a list of allowed calls.
func allowOnly(t *testing.T, calls []string) string {
	t.Helper()
	if len(calls) < 250 {
		t.Fatalf("the profile allows %d calls", len(calls))
	}
	return "SystemCallFilter=" + strings.Join(calls, "\nSystemCallFilter=")
}
