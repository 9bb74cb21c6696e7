//go:build ns

package fabric

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"cambium/internal/skiptest"
	"cambium/lab/netns"

	"github.com/vishvananda/netlink"
)

// TestNSLinkToTheHost: over the link the host reaches VMs and gets their answers; what they begin does not arrive, and
// no range takes a network from the host. The host is a namespace that this process is in.
func TestNSLinkToTheHost(t *testing.T) {
	const inside = "CAMBIUM_TEST_HOST"
	if os.Getenv(inside) == "" {
		if os.Geteuid() != 0 {
			skiptest.Skip(t, os.ErrPermission)
		}
		child := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestNSLinkToTheHost$", "-test.v")
		child.Env = append(os.Environ(), inside+"=1")
		child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
		if out, err := child.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "lan"}}
	lan, err := netlink.ParseAddr("198.51.100.1/24")
	if err == nil {
		err = netlink.LinkSetUp(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "lo", Index: 1}})
	}
	if err == nil {
		err = netlink.LinkAdd(bridge)
	}
	if err == nil {
		err = netlink.LinkSetUp(bridge)
	}
	if err == nil {
		err = netlink.AddrAdd(bridge, lan)
	}
	if err != nil {
		t.Fatal(err)
	}
	s := newSegments(t, "h")
	vm := s.plug("vm", "a", "10.88.58.5", "10.88.58.1", false)
	byGateway := netlink.Route{Gw: net.ParseIP("10.88.58.1")}
	if err := vm.Do(func() error { return netlink.RouteAdd(&byGateway) }); err != nil {
		t.Fatal(err)
	}
	for _, access := range []Access{HostOnly, NoAccess, HostOnly} {
		if err := s.LinkHost(access); err != nil {
			t.Fatal(err)
		}
	}
	near := hostLinkOf(s.name).near
	at := s.hostHears(vm, near)
	if at != "answer" {
		t.Errorf("the host hears %q first, want the answer to its own packet", at)
	}
	for ip, gateway := range map[string]string{"198.51.100.5": "198.51.100.129", "127.0.0.5": "127.0.0.7"} {
		err := s.plugError(ip, gateway, "255.255.255.128")
		if err == nil || !strings.Contains(err.Error(), "to which the host has a route") {
			t.Errorf("a VM with the gateway %s, which the host reaches: %v", gateway, err)
		}
	}
	err = s.plugError("200.0.0.5", "200.0.0.1", "128.0.0.0")
	if err == nil || !strings.Contains(err.Error(), "too large") {
		t.Errorf("half of all addresses: %v", err)
	}
	if err := s.LinkHost(NoAccess); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("nft", "list", "tables").CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("packet filter of the host: %v: %s", err, out)
	}
}

// hostHears sends a packet to a VM, which begins to send packets of its own to the host, and then answers. It returns
// what the host hears first.
func (s segments) hostHears(vm netns.Namespace, near netip.Addr) string {
	s.t.Helper()
	host, err := net.ListenUDP("udp", &net.UDPAddr{IP: near.AsSlice()})
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = host.Close() }()
	var asked, other *net.UDPConn
	err = vm.Do(func() error {
		if asked, err = net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP("10.88.58.5"), Port: 7000}); err != nil {
			return err
		}
		other, err = net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP("10.88.58.5")})
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, c := range []*net.UDPConn{host, asked} {
		_ = c.SetReadDeadline(time.Now().Add(2 * time.Minute))
	}
	buffer := make([]byte, 100)
	if _, err := host.WriteToUDP([]byte("question"), asked.LocalAddr().(*net.UDPAddr)); err != nil {
		s.t.Fatal(err)
	}
	_, from, err := asked.ReadFromUDP(buffer)
	if err != nil {
		s.t.Fatalf("the VM hears nothing from the host: %v", err)
	}
	if _, err := other.WriteToUDP([]byte("begun by the VM"), from); err != nil {
		s.t.Fatal(err)
	}
	if _, err := asked.WriteToUDP([]byte("answer"), from); err != nil {
		s.t.Fatal(err)
	}
	n, err := host.Read(buffer)
	if err != nil {
		s.t.Fatalf("the host hears nothing: %v", err)
	}
	return string(buffer[:n])
}

// plugError plugs in a VM on a segment of its own, and takes it away.
func (s segments) plugError(ip, gateway, netmask string) error {
	s.t.Helper()
	nets := s.networks(fmt.Sprintf(`{"a":{"type":"manual","ip":%q,"netmask":%q,"gateway":%q,`+
		`"cloud_properties":{"name":"other"}}}`, ip, netmask, gateway))
	filled, cards, err := Plan("other", nets)
	if err == nil {
		_, err = s.Plug("other", cards[0], filled, false)
	}
	if err := s.Unplug("other"); err != nil {
		s.t.Error(err)
	}
	return err
}
