//go:build ns

package fabric

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cambium/internal/eventually"
	"cambium/internal/skiptest"
	"cambium/lab/machine"
	"cambium/lab/netns"

	"github.com/vishvananda/netlink"
)

// segments is a fabric with namespaces in place of VMs.
type segments struct {
	t *testing.T
	*Fabric
}

func newSegments(t *testing.T, name string) segments {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "dhcp")
	// What a holder that was killed has left is not a lease of the next one.
	if err := os.MkdirAll(filepath.Join(dir, "old"), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := Make(fmt.Sprintf("cambium-%s%d", name, os.Getpid()), dir)
	if err != nil {
		skiptest.Skip(t, fmt.Errorf("network namespaces: %w", err))
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	if left, err := os.ReadDir(dir); err == nil {
		t.Errorf("%v is left of a former fabric", left)
	}
	return segments{t, f}
}

// plug makes a VM with one card on a segment and returns its namespace.
func (s segments) plug(vm, segment, ip, gateway string, dhcp bool) netns.Namespace {
	s.t.Helper()
	space, _ := s.connect(vm, fmt.Sprintf(`{"a":{"type":"manual","ip":%q,"netmask":"255.255.255.0","gateway":%q,`+
		`"cloud_properties":{"name":%q}}}`, ip, gateway, segment), dhcp)
	return space
}

// connect makes a VM whose networks share a card and returns its namespace and the card.
func (s segments) connect(vm, networks string, dhcp bool) (netns.Namespace, Card) {
	s.t.Helper()
	filled, cards, err := Plan(vm, s.networks(networks))
	if err != nil {
		s.t.Fatal(err)
	}
	bridge, err := s.Plug(vm, cards[0], filled, dhcp)
	if err != nil {
		s.t.Fatal(err)
	}
	far, err := netns.Create(s.name + "." + vm)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = far.Delete() })
	wire := netns.Wire{Bridge: bridge, Near: machine.Port(cards[0].MAC), Far: "eth0", MAC: cards[0].MAC}
	err = s.Net.Connect(far, wire)
	if err == nil {
		err = far.Do(func() error {
			link, err := netlink.LinkByName("eth0")
			if err == nil {
				err = netlink.LinkSetUp(link)
			}
			return err
		})
	}
	for _, n := range filled {
		if bits, bitsErr := n.bits(); err == nil {
			err = errors.Join(bitsErr, far.AddAddress("eth0", fmt.Sprintf("%s/%d", n.IP, bits)))
		}
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return far, cards[0]
}

func (s segments) networks(text string) (nets Networks) {
	s.t.Helper()
	if err := json.Unmarshal([]byte(text), &nets); err != nil {
		s.t.Fatal(err)
	}
	return nets
}

// kernel returns the IPv4 addresses of the bridges in the fabric's namespace.
func (s segments) kernel() string {
	s.t.Helper()
	text := ""
	err := s.Net.Do(func() error {
		links, err := net.Interfaces()
		for _, l := range links {
			if strings.HasPrefix(l.Name, "br-") {
				addresses, _ := l.Addrs()
				for _, a := range addresses {
					if ip, _, err := net.ParseCIDR(a.String()); err == nil && ip.To4() != nil {
						text += a.String() + " "
					}
				}
			}
		}
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return strings.TrimSpace(text)
}

// servedWithoutRoot waits until the DHCP servers have given up root, which VMs can send packets to.
func (s segments) servedWithoutRoot() {
	s.t.Helper()
	servers := 0
	for _, b := range s.bridges {
		if b.server == nil {
			continue
		}
		servers++
		eventually.True(s.t, "the DHCP server is not root", func() bool {
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", b.server.Process.Pid))
			if err != nil || strings.Contains(string(status), "State:\tZ") {
				s.t.Fatalf("the DHCP server has ended: %v", err)
			}
			return !strings.Contains(string(status), "\nUid:\t0\t")
		})
	}
	if servers != 1 {
		s.t.Errorf("there are %d DHCP servers, want one", servers)
	}
}

// TestNSSegmentsGoWithTheirLastVM: a gateway exists while a VM needs it, and a range on a second segment is reached
// when the first has gone.
func TestNSSegmentsGoWithTheirLastVM(t *testing.T) {
	s := newSegments(t, "s")
	unplug := func(vm string, space netns.Namespace, want string) {
		t.Helper()
		if err := space.Delete(); err != nil {
			t.Fatal(err)
		}
		if err := s.Unplug(vm); err != nil {
			t.Fatal(err)
		}
		if got := s.kernel(); got != want {
			t.Errorf("without %s there are the gateways %q, want %q", vm, got, want)
		}
	}
	one := s.plug("one", "old", "10.88.55.5", "10.88.55.1", true)
	two := s.plug("two", "old", "10.88.55.6", "10.88.55.1", true)
	three := s.plug("three", "old", "10.88.56.6", "10.88.56.1", false)
	unplug("one", one, "10.88.55.1/24 10.88.56.1/24")
	s.servedWithoutRoot()
	unplug("two", two, "10.88.56.1/24")
	unplug("three", three, "")
	unplug("three", three, "")
	again := s.plug("one", "new", "10.88.55.5", "10.88.55.1", false)
	l, err := again.Listen("tcp", "10.88.55.5:80")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	conn, err := s.Net.Dial("tcp", "10.88.55.5:80")
	if err != nil {
		t.Fatalf("the range on another segment: %v", err)
	}
	_ = conn.Close()
	unplug("one", again, "")
}
