//go:build ns

package network_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"cambium/desired"
	"cambium/internal/nstest"
	"cambium/platform/network"
	"cambium/platform/network/wait"
	"cambium/settings"
)

// newKernel returns the kernel of the namespaces, with files in a directory of the test.
func newKernel(t *testing.T) *network.Kernel {
	t.Helper()
	log := logrus.New()
	log.SetOutput(logWriter{t})
	log.SetLevel(logrus.DebugLevel)
	return &network.Kernel{Root: t.TempDir(), Log: logrus.NewEntry(log)}
}

type logWriter struct{ t *testing.T }

func (w logWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", p)
	return len(p), nil
}

func within(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

// wanted returns the desired state for the machine in its present state.
func wanted(t *testing.T, k *network.Kernel, n nets) (network.State, network.Desired) {
	t.Helper()
	have, err := k.Observe(t.Context())
	if err != nil {
		t.Fatalf("Observe: %v", err)
	}
	want, warnings, err := desired.Network(n, have)
	if err != nil {
		t.Fatalf("plan: %v", err)
	}
	for _, w := range warnings {
		t.Logf("warning: %s", w)
	}
	return have, want
}

// apply configures the networks, and checks that the changes made are those planned and that a second run changes
// nothing.
func apply(t *testing.T, k *network.Kernel, n nets) (network.Desired, []network.Change) {
	t.Helper()
	have, want := wanted(t, k, n)
	changes, err := network.Diff(have, want)
	if err != nil {
		t.Fatalf("Diff: %v", err)
	}
	made, err := k.Apply(t.Context(), changes)
	if err != nil || fmt.Sprint(made) != fmt.Sprint(changes) {
		t.Fatalf("planned %v, made %v, %v", changes, made, err)
	}
	if second := changesFor(t, k, n); len(second) > 0 {
		t.Fatalf("a second run wants to change %v, want nothing", second)
	}
	return want, changes
}

func changesFor(t *testing.T, k *network.Kernel, n nets) []network.Change {
	t.Helper()
	have, want := wanted(t, k, n)
	changes, err := network.Diff(have, want)
	if err != nil {
		t.Fatalf("Diff: %v", err)
	}
	return changes
}

func ready(t *testing.T, k *network.Kernel, want network.Desired) []string {
	t.Helper()
	warnings, err := wait.Ready(within(t, 5*time.Second), k, want)
	if err != nil {
		t.Fatalf("WaitReady: %v", err)
	}
	return warnings
}

// addresses returns the global addresses of a link, read without the package.
func addresses(t *testing.T, link string) []string {
	t.Helper()
	l, err := netlink.LinkByName(link)
	if err != nil {
		t.Fatal(err)
	}
	all := []string{}
	found, err := netlink.AddrList(l, netlink.FAMILY_ALL)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range found {
		if a.Scope == unix.RT_SCOPE_UNIVERSE {
			all = append(all, a.IPNet.String())
		}
	}
	return all
}

// routes returns the routes with a gateway.
func routes(t *testing.T) []string {
	t.Helper()
	all := []string{}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		found, err := netlink.RouteList(nil, family)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range found {
			if r.Gw == nil {
				continue
			}
			link, err := netlink.LinkByIndex(r.LinkIndex)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, fmt.Sprintf("%s via %s dev %s", r.Dst, r.Gw, link.Attrs().Name))
		}
	}
	slices.Sort(all)
	return all
}

func expect(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, append([]string{}, want...)) {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

func file(t *testing.T, k *network.Kernel, path string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(k.Root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func contains(t *testing.T, content string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if !slices.Contains(strings.Split(content, "\n"), line) {
			t.Errorf("no line %q in\n%s", line, content)
		}
	}
}

// listen serves echo at an address of the peer.
func listen(t *testing.T, peer *nstest.Peer, address string) {
	t.Helper()
	peer.Do(t, func() error {
		l, err := net.Listen("tcp", address)
		if err != nil {
			return err
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer conn.Close()
					buffer := make([]byte, 4096)
					for {
						n, err := conn.Read(buffer)
						if err != nil {
							return
						}
						if _, err := conn.Write(buffer[:n]); err != nil {
							return
						}
					}
				}()
			}
		}()
		return nil
	})
}

func reach(t *testing.T, address string) net.Conn {
	t.Helper()
	d := net.Dialer{}
	conn, err := d.DialContext(within(t, 3*time.Second), "tcp", address)
	if err != nil {
		t.Fatalf("reach %s: %v", address, err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// gateway returns a peer at the other end of a NIC, with 10.0.0.1 and fd00::1, and 192.0.2.1 behind it.
func gateway(t *testing.T) *nstest.Peer {
	t.Helper()
	peer := nstest.NewPeer(t)
	peer.NIC(t, "eth0", mac0)
	peer.Address(t, "eth0", "10.0.0.1/24")
	peer.Address(t, "eth0", "fd00::1/64")
	peer.Address(t, "lo", "192.0.2.1/32")
	peer.Address(t, "lo", "2001:db8::1/128")
	return peer
}

func static(ip string) settings.Network {
	return settings.Network{Type: "manual", IP: ip, Netmask: "255.255.255.0", Gateway: "10.0.0.1", MAC: mac0,
		Default: []string{"dns", "gateway"}, DNS: []string{"10.0.0.1"}}
}

func extra(ip string) settings.Network {
	n := static(ip)
	n.Default = nil
	return n
}

// leases acts like networkd with a DHCP server: on reload, links with DHCP get their address with a lifetime, and a
// default route unless that is refused.
func leases(by map[string]string) func(map[string]string) error {
	return func(files map[string]string) error {
		for link, content := range files {
			lease, ok := by[link]
			if !ok || !strings.Contains(content, "DHCP=yes") {
				continue
			}
			if err := lend(link, lease, !strings.Contains(content, "UseGateway=no")); err != nil {
				return err
			}
		}
		return nil
	}
}

// lend adds "address/length via gateway" like a DHCP client.
func lend(link, lease string, withRoute bool) error {
	text, gw, _ := strings.Cut(lease, " via ")
	l, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return err
	}
	a, err := netlink.ParseAddr(text)
	if err != nil {
		return err
	}
	a.ValidLft, a.PreferedLft = 3600, 3600
	if err := netlink.AddrReplace(l, a); err != nil {
		return err
	}
	if gw == "" || !withRoute {
		return nil
	}
	return netlink.RouteReplace(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: net.ParseIP(gw),
		Protocol: unix.RTPROT_DHCP, Priority: 1024})
}
