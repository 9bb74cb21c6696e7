//go:build ns

package host

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"cambium/internal/nstest"
	"cambium/internal/vcap"

	"cambium/internal/skiptest"
	"cambium/platform/platformtest"
	"golang.org/x/sys/unix"
)

// TestNSHostsFileIsAMountPoint: in a container the hosts file is a mount point, which a rename cannot replace.
func TestNSHostsFileIsAMountPoint(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		h, _ := newHost(t, map[string]string{"/etc/hosts": "old",
			"/elsewhere": "of the container\nand longer than what comes\n" + strings.Repeat("x", 1000)})
		if err := unix.Mount(h.joinRoot("/elsewhere"), h.joinRoot("/etc/hosts"), "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(h.joinRoot("/etc/hosts"), 0); err != nil {
				t.Error(err)
			}
		})
		content, _, err := HostsFile("agent-1", nil)
		if err != nil {
			t.Fatal(err)
		}
		converge(t, h, Desired{Hosts: content})
		if got := get(t, h, "/elsewhere"); got != hostsOfAgent {
			t.Errorf("got %q, want the content behind the mount replaced", got)
		}
		if left, err := filepath.Glob(h.joinRoot("/etc/.hosts*")); err != nil || left != nil {
			t.Errorf("left behind: %q, %v", left, err)
		}
	})
}

func TestNSIPv6(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		has := func() bool {
			lo, err := net.InterfaceByName("lo")
			if err != nil {
				t.Fatal(err)
			}
			addresses, err := lo.Addrs()
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range addresses {
				if a.String() == "::1/128" {
					return true
				}
			}
			return false
		}
		for _, name := range []string{"all", "default"} {
			if err := os.WriteFile(ipv6Conf+"/"+name+"/disable_ipv6", []byte("1"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if has() {
			t.Fatal("loopback has an IPv6 address although that is off")
		}
		// Only what the network namespace holds may change on the machine of the test.
		h := &Host{Root: "/", Dirs: vcap.New(t.TempDir()), Log: platformtest.Quiet()}
		for _, change := range converge(t, h, Desired{IPv6: true}) {
			if !strings.HasPrefix(change, "set "+ipv6Conf) {
				t.Errorf("got %q", change)
			}
		}
		if !has() {
			t.Error("loopback has no IPv6 address")
		}
	})
}

func TestNSHostname(t *testing.T) {
	runtime.LockOSThread() // and never unlocked: the thread ends with its name space
	if err := unix.Unshare(unix.CLONE_NEWUTS); err != nil {
		skiptest.Skip(t, fmt.Errorf("no namespace for host names: %w", err))
	}
	h := &Host{Root: t.TempDir(), Dirs: vcap.New(""), Log: platformtest.Quiet()}
	converge(t, h, Desired{Hostname: "5b6c0f2e-agent"})
	if got, err := os.Hostname(); err != nil || got != "5b6c0f2e-agent" {
		t.Errorf("got %q, %v", got, err)
	}
}
