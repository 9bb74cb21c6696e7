//go:build ns

package nspawn

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"cambium/lab/machine"
)

// TestNSInotifyLimit starts a container where inotify instances are used up: in a user namespace, whose limit is its
// own. The reason names what to raise, and nothing was begun.
func TestNSInotifyLimit(t *testing.T) {
	const inside = "CAMBIUM_TEST_INOTIFY"
	if os.Getenv(inside) == "" {
		child := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestNSInotifyLimit$", "-test.v")
		child.Env = append(os.Environ(), inside+"=1")
		child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}}
		if out, err := child.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	limit := func(instances string) {
		t.Helper()
		if err := os.WriteFile("/proc/sys/user/max_inotify_instances", []byte(instances), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	limit("1000")
	if err := checkInotify(); err != nil {
		t.Errorf("with 1000 instances: %v", err)
	}
	limit("12")
	m := &Machine{}
	m.Begin(machine.Spec{Name: "limited", Dir: t.TempDir()})
	if err := m.Start(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "run 'sysctl fs.inotify.max_user_instances=1024'") {
		t.Errorf("with 12 instances: got %v, want what to raise", err)
	}
}
