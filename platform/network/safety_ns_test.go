//go:build ns

package network_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"cambium/desired"
	"cambium/internal/eventually"
	"cambium/internal/nstest"
	"cambium/platform/network"
	"cambium/platform/network/confirm"
	"cambium/platform/network/neighbor"
	"cambium/platform/network/wait"
	"cambium/settings"
)

// stream sends over a connection all the time and counts the replies.
type stream struct {
	conn   *net.TCPConn
	echoed atomic.Int64
	done   chan error
}

func startStream(t *testing.T, address string) *stream {
	t.Helper()
	s := &stream{conn: reach(t, address).(*net.TCPConn), done: make(chan error, 1)}
	go func() {
		buffer := make([]byte, 1024)
		for {
			if _, err := s.conn.Write(buffer); err != nil {
				s.done <- err
				return
			}
			if _, err := io.ReadFull(s.conn, buffer); err != nil {
				s.done <- err
				return
			}
			s.echoed.Add(1)
		}
	}()
	s.flows(t)
	return s
}

// flows waits for more replies.
func (s *stream) flows(t *testing.T) {
	t.Helper()
	from := s.echoed.Load()
	eventually.True(t, "more from the stream", func() bool {
		select {
		case err := <-s.done:
			t.Fatalf("the stream broke: %v", err)
		default:
		}
		return s.echoed.Load() >= from+50
	})
}

// lost returns the number of packets that the kernel has retransmitted.
func (s *stream) lost(t *testing.T) uint32 {
	t.Helper()
	raw, err := s.conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var info *unix.TCPInfo
	var got error
	if err := raw.Control(func(fd uintptr) {
		info,
			got = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	}); err != nil || got != nil {
		t.Fatal(err, got)
	}
	return info.Total_retrans
}

// removals collects the addresses that the kernel reports as removed from now on.
func removals(t *testing.T) func() []string {
	t.Helper()
	updates, done := make(chan netlink.AddrUpdate, 1024), make(chan struct{})
	if err := netlink.AddrSubscribe(updates, done); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { close(done) })
	return func() (all []string) {
		// A last change of our own, after which everything before it has been told.
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			t.Fatal(err)
		}
		mark := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(127, 9, 9, 9).To4(), Mask: net.CIDRMask(32, 32)}}
		if err := netlink.AddrAdd(lo, mark); err != nil {
			t.Fatal(err)
		}
		for u := range updates {
			marked := u.LinkAddress.IP.Equal(mark.IP)
			if marked && u.NewAddr {
				break
			}
			if !marked && !u.NewAddr {
				all = append(all, u.LinkAddress.String())
			}
		}
		if err := netlink.AddrDel(lo, mark); err != nil {
			t.Fatal(err)
		}
		return all
	}
}

func TestNSStreamLosesNothing(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		listen(t, gateway(t), "192.0.2.1:80")
		k := newKernel(t)
		n := nets{"a": static("10.0.0.5")}
		apply(t, k, n)
		s := startStream(t, "192.0.2.1:80")
		removed := removals(t)
		for _, step := range []struct {
			name    string
			change  func()
			removed string
		}{
			{"unchanged", func() {}, ""},
			{"further address in the subnet", func() { n["b"] = extra("10.0.0.6") }, ""},
			{"further subnet", func() { n["c"] = extra("10.5.0.7") }, ""},
			{"IPv6", func() { n["six"] = settings.Network{IP: "fd00::5", Netmask: "ffff:ffff:ffff:ffff::", MAC: mac0} }, ""},
			{"routes", func() { n["a"] = withRoutes(n["a"]) }, ""},
			{"another address gone", func() { delete(n, "b") }, "10.0.0.6/24"},
			{"alias", func() { n["al"] = settings.Network{IP: "10.0.0.9", Netmask: "255.255.255.0", Alias: "eth0:9"} }, ""},
			{"longer prefix", func() { a := n["a"]; a.Netmask = "255.255.255.128"; n["a"] = a }, "10.0.0.5/24"},
		} {
			step.change()
			before := s.lost(t)
			apply(t, k, n)
			s.flows(t)
			if lost := s.lost(t) - before; lost != 0 {
				t.Errorf("%s: %d packets of a running stream were lost", step.name, lost)
			}
			if got := strings.Join(removed(), " "); got != step.removed {
				t.Errorf("%s: removed %q, want %q", step.name, got, step.removed)
			}
		}
	})
}

// TestNSRemovingTheFirstAddressKeepsTheOthers: when the first address of a subnet is removed, the kernel would remove
// all others, too.
func TestNSRemovingTheFirstAddressKeepsTheOthers(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		peer := gateway(t)
		listen(t, peer, "10.0.0.1:80")
		k := newKernel(t)
		if err := os.WriteFile("/proc/sys/net/ipv4/conf/eth0/promote_secondaries", []byte("0"), 0o644); err != nil {
			t.Fatal(err)
		}
		apply(t, k, nets{"a": static("10.0.0.5"), "b": extra("10.0.0.6")})
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP("10.0.0.6")}}
		conn, err := d.Dial("tcp", "10.0.0.1:80")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, changes := apply(t, k, nets{"b": extra("10.0.0.6")})
		expect(t, "addresses", addresses(t, "eth0"), "10.0.0.6/24")
		if !slices.ContainsFunc(changes, func(c network.Change) bool { return c.Op == network.OpPromote }) {
			t.Errorf("changes %v, want secondaries promoted", changes)
		}
		if _, err := conn.Write([]byte("x")); err != nil {
			t.Error(err)
		}
		if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
			t.Errorf("the connection of the address that stays: %v", err)
		}
	})
}

func TestNSAddressesOfReleasesStay(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		gateway(t)
		k := newKernel(t)
		apply(t, k, nets{"a": static("10.0.0.5")})
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			t.Fatal(err)
		}
		virtual, err := netlink.ParseAddr("10.0.0.100/32") // as keepalived sets it
		if err == nil {
			err = netlink.AddrAdd(link, virtual)
		}
		if err != nil {
			t.Fatal(err)
		}
		apply(t, k, nets{"a": static("10.0.0.5")})
		expect(t, "unchanged settings", addresses(t, "eth0"), "10.0.0.5/24", "10.0.0.100/32")
		apply(t, k, nets{"a": static("10.0.0.8")})
		expect(t, "another address", addresses(t, "eth0"), "10.0.0.100/32", "10.0.0.8/24")
	})
}

func TestNSFromLeaseToStatic(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		listen(t, gateway(t), "192.0.2.1:80")
		fake := &network.Fake{Version: 252, OnReload: leases(map[string]string{"eth0": "10.0.0.77/24 via 10.0.0.1"})}
		k := fake.Use(t, newKernel(t))
		if err := wait.DHCP(within(t, 5*time.Second), k); err != nil {
			t.Fatalf("DHCPAll: %v", err)
		}
		expect(t, "minimal", addresses(t, "eth0"), "10.0.0.77/24")
		contains(t, file(t, k, "run/systemd/network/10_eth0.network"), "DHCP=yes")
		if _, err := os.Lstat(filepath.Join(k.Root, "etc/systemd/network/10_eth0.network")); err == nil {
			t.Error("the minimal network would survive a reboot")
		}
		if err := wait.DHCP(within(t, 5*time.Second), k); err != nil || fake.Reloads != 1 {
			t.Errorf("second DHCPAll: %v, %d reloads, want one", err, fake.Reloads)
		}
		reach(t, "192.0.2.1:80")

		fake.OnReload = nil // a networkd that does not clean up behind itself
		apply(t, k, nets{"a": static("10.0.0.5")})
		expect(t, "static", addresses(t, "eth0"), "10.0.0.5/24")
		expect(t, "routes", routes(t), "0.0.0.0/0 via 10.0.0.1 dev eth0")
		if _, err := os.Lstat(filepath.Join(k.Root, "run/systemd/network/10_eth0.network")); err == nil {
			t.Error("the minimal network is still there")
		}
		reach(t, "192.0.2.1:80")
	})
}

func TestNSMinimalNetworkIsNotMadeWhereThereIsOne(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		gateway(t).NIC(t, "eth1", mac1)
		fake := &network.Fake{Version: 252}
		k := fake.Use(t, newKernel(t))
		if err := lend("eth1", "10.1.0.5/24", false); err != nil {
			t.Fatal(err)
		}
		if err := wait.DHCP(within(t, time.Second), k); err != nil || fake.Reloads != 0 {
			t.Errorf("got %v and %d reloads, want nothing done", err, fake.Reloads)
		}
		if _, err := os.Lstat(filepath.Join(k.Root, "run/systemd/network")); err == nil {
			t.Error("files were written")
		}
	})
}

// TestNSFromLeaseToTheSameStaticAddress: a leased address that becomes static stays, without its lifetime.
func TestNSFromLeaseToTheSameStaticAddress(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		listen(t, gateway(t), "192.0.2.1:80")
		fake := &network.Fake{Version: 252, OnReload: leases(map[string]string{"eth0": "10.0.0.5/24 via 10.0.0.1"})}
		k := fake.Use(t, newKernel(t))
		want, _ := apply(t, k, nets{"a": {Type: "dynamic", MAC: mac0}})
		ready(t, k, want)
		s := startStream(t, "192.0.2.1:80")
		fake.OnReload = nil
		before, removed := s.lost(t), removals(t)
		apply(t, k, nets{"a": static("10.0.0.5")})
		s.flows(t)
		expect(t, "removed", removed())
		if lost := s.lost(t) - before; lost != 0 {
			t.Errorf("%d packets of a running stream were lost", lost)
		}
		have, err := k.Observe(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		link, _ := have.Link("eth0")
		for _, a := range link.Addresses {
			if a.Global() && a.Dynamic {
				t.Errorf("%s still has a lifetime", a.Prefix)
			}
		}
	})
}

// TestNSKilledHalfWay stops after each number of changes, and lets a new run finish.
func TestNSKilledHalfWay(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		peer := gateway(t)
		peer.NIC(t, "eth1", mac1)
		before := nets{"a": withRoutes(static("10.0.0.5")), "b": extra("10.0.0.6"),
			"six": {IP: "fd00::5", Netmask: "ffff:ffff:ffff:ffff::", Gateway: "fd00::1", MAC: mac0,
				Default: []string{"gateway"}}}
		second := static("10.0.0.8")
		second.Netmask, second.Gateway = "255.255.0.0", "10.0.0.3"
		after := nets{"a": second, "b": extra("10.0.0.6"), "d": {Type: "dynamic", MAC: mac1},
			"six": {IP: "fd00::5", Netmask: "ffff:ffff:ffff::", Gateway: "fd00::2", MAC: mac0, Default: []string{"gateway"}}}

		picture := func(k *network.Kernel) string {
			return fmt.Sprint(addressSet(t, "eth0"), addressSet(t, "eth1"), routes(t),
				file(t, k, "etc/systemd/network/10_eth0.network"), file(t, k, "etc/systemd/network/10_eth1.network"))
		}
		want := ""
		var known map[string]string // what networkd has read
		fake := &network.Fake{Version: 252, OnReload: func(files map[string]string) error { known = files; return nil }}
		k := fake.Use(t, newKernel(t))
		for stop := 0; ; stop++ {
			apply(t, k, before)
			changes := changesFor(t, k, after)
			if stop > len(changes) {
				break
			}
			if err := applySome(t.Context(), k, changes, stop); err != nil {
				t.Fatalf("after %d changes: %v", stop, err)
			}
			apply(t, k, after)
			got := picture(k)
			if want == "" {
				want = got
			}
			if got != want {
				t.Fatalf("killed after %v:\ngot  %s\nwant %s", changes[:stop], got, want)
			}
			for _, link := range []string{"eth0", "eth1"} {
				if known[link] != file(t, k, "etc/systemd/network/10_"+link+".network") {
					t.Fatalf("killed after %v: networkd was not told of %s", changes[:stop], link)
				}
			}
		}
	})
}

func addressSet(t *testing.T, link string) []string {
	t.Helper()
	all := addresses(t, link)
	slices.Sort(all)
	return all
}

// TestNSAnyConfigurationFromAnyOther applies random documents to one machine. Each result is that of a machine that
// never had another configuration.
func TestNSAnyConfigurationFromAnyOther(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		peer := nstest.NewPeer(t)
		for i := range 3 {
			peer.NIC(t, fmt.Sprintf("eth%d", i), fmt.Sprintf("52:54:00:00:00:%02x", i+1))
		}
		random := rand.New(rand.NewPCG(3, 4))
		fake := &network.Fake{Version: 252}
		k := fake.Use(t, newKernel(t))
		for range 60 {
			n := randomNets(random)
			// A second reading of the same document has another order, and is the same.
			have, err := k.Observe(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			want, _, _ := desired.Network(n, have)
			changes, err := network.Diff(have, want)
			if err != nil {
				t.Fatalf("Diff of %+v: %v", n, err)
			}
			if _, err := k.Apply(t.Context(), changes); err != nil {
				t.Fatalf("Apply of %+v: %v", n, err)
			}
			if second := diffOf(t, k, maps.Clone(n)); len(second) > 0 {
				t.Fatalf("of %+v: a second run wants %v", n, second)
			}
			if want.Preconfigured {
				continue
			}
			for _, l := range want.Links {
				var wanted []string
				for _, a := range l.Addresses {
					wanted = append(wanted, a.Prefix.String())
				}
				slices.Sort(wanted)
				expect(t, l.Name, addressSet(t, l.Name), wanted...)
			}
			var wanted []string
			for _, l := range want.Links {
				for _, r := range l.Routes {
					if !l.DHCP || r.OnLink || slices.ContainsFunc(l.Addresses,
						func(a network.WantAddress) bool { return a.Prefix.Contains(r.Gateway) }) {
						wanted = append(wanted, fmt.Sprintf("%s via %s dev %s", r.To, r.Gateway, l.Name))
					}
				}
			}
			slices.Sort(wanted)
			expect(t, "routes", routes(t), wanted...)
			if t.Failed() {
				t.Fatalf("of %+v after %v", n, changes)
			}
		}
	})
}

func diffOf(t *testing.T, k *network.Kernel, n nets) []network.Change {
	t.Helper()
	have, err := k.Observe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want, _, _ := desired.Network(n, have) // some of these documents have mistakes; the rest counts
	changes, err := network.Diff(have, want)
	if err != nil {
		t.Fatal(err)
	}
	return changes
}

func randomNets(random *rand.Rand) nets {
	pick := func(of ...string) string { return of[random.IntN(len(of))] }
	all := nets{}
	for i := range 1 + random.IntN(5) {
		n := settings.Network{Type: pick("manual", "manual", "manual", "dynamic", "vip"),
			MAC: "52:54:00:00:00:0" + pick("1", "2", "3")}
		subnet := random.IntN(3)
		n.IP, n.Netmask, n.Gateway = fmt.Sprintf("10.0.%d.%d", subnet, 2+random.IntN(5)),
			pick("255.255.255.0", "255.255.0.0"), fmt.Sprintf("10.0.%d.1", subnet)
		if random.IntN(4) == 0 {
			n.IP, n.Netmask, n.Gateway = fmt.Sprintf("fd00::%x", 2+random.IntN(5)),
				pick("ffff:ffff:ffff:ffff::", "ffff:ffff:ffff::"), "fd00::1"
		}
		if random.IntN(3) == 0 {
			n.Default = []string{"gateway"}
		}
		if random.IntN(3) == 0 {
			n.Routes = []settings.Route{{Destination: "198.51.100.0", Netmask: "255.255.255.0",
				Gateway: fmt.Sprintf("10.0.%d.9", subnet)}}
		}
		if random.IntN(6) == 0 {
			n.MAC, n.Alias = "", "eth"+pick("0:1", "1", "2:7")
		}
		all[fmt.Sprintf("n%d", i)] = n
	}
	return all
}

func TestNSNeighborsAreForgotten(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		listen(t, gateway(t), "10.0.0.1:80")
		k := newKernel(t)
		apply(t, k, nets{"a": static("10.0.0.5")})
		reach(t, "10.0.0.1:80")
		known := func() (all []string) {
			entries, err := netlink.NeighList(0, netlink.FAMILY_V4)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				if e.State&unix.NUD_NOARP == 0 {
					all = append(all, e.IP.String())
				}
			}
			return all
		}
		expect(t, "before", known(), "10.0.0.1")
		if err := neighbor.Flush(t.Context(), []netip.Addr{netip.MustParseAddr("10.0.0.9"),
			netip.MustParseAddr("fd00::1")}); err != nil {
			t.Fatal(err)
		}
		expect(t, "others forgotten", known(), "10.0.0.1")
		if err := neighbor.Flush(t.Context(), []netip.Addr{netip.MustParseAddr("10.0.0.1")}); err != nil {
			t.Fatal(err)
		}
		expect(t, "forgotten", known())
		reach(t, "10.0.0.1:80")
	})
}

// TestNSAnotherPrefixLengthOfIPv6: an IPv6 address has only one prefix length, so it has to be removed and added. It is
// usable again at once.
func TestNSAnotherPrefixLengthOfIPv6(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		gateway(t)
		k := newKernel(t)
		six := settings.Network{IP: "fd00::5", Netmask: "ffff:ffff:ffff:ffff::", MAC: mac0}
		want, _ := apply(t, k, nets{"six": six})
		want.AwaitIPv6 = true
		ready(t, k, want)
		six.Netmask = "ffff:ffff:ffff::"
		apply(t, k, nets{"six": six})
		have, err := k.Observe(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		link, _ := have.Link("eth0")
		if !slices.ContainsFunc(link.Addresses, func(a network.Address) bool {
			return a.Prefix.String() == "fd00::5/48" &&
				a.Usable()
		}) {
			t.Errorf("got %+v, want fd00::5/48 usable", link.Addresses)
		}
	})
}

// TestNSFailureOfOneNetwork: an error on one link has no effect on another, and removes nothing on its own.
func TestNSFailureOfOneNetwork(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		gateway(t).NIC(t, "eth1", mac1)
		k := newKernel(t)
		second := extra("10.1.0.5")
		second.MAC = mac1
		n := nets{"a": static("10.0.0.5"), "b": second}
		apply(t, k, n)
		other := extra("10.1.0.6")
		other.MAC = mac1
		n["a"], n["b"] = static("10.0.0.6"), other
		changes := changesFor(t, k, n)
		// A route that the kernel refuses: its gateway is in no subnet.
		bad := network.Route{Link: "eth0", To: netip.MustParsePrefix("198.51.100.0/24"),
			Gateway: netip.MustParseAddr("172.16.0.1"), Origin: network.OriginStatic}
		changes = slices.Insert(changes, 0, network.Change{Op: network.OpAddRoute, Link: "eth0", Network: "a", Route: &bad})
		_, err := k.Apply(t.Context(), changes)
		if err == nil || !strings.Contains(err.Error(),
			`eth0: add route 198.51.100.0/24 via 172.16.0.1 dev eth0 (network "a")`) {
			t.Errorf("got %v, want the route and its network named", err)
		}
		expect(t, "eth0 has the new one and keeps the old", addressSet(t, "eth0"), "10.0.0.5/24", "10.0.0.6/24")
		expect(t, "eth1", addresses(t, "eth1"), "10.1.0.6/24")
		contains(t, file(t, k, "etc/systemd/network/10_eth0.network"), "Address=10.0.0.5/24")
		apply(t, k, n)
		expect(t, "eth0 after the next run", addresses(t, "eth0"), "10.0.0.6/24")
	})
}

// TestNSFirstConfigurationIsKept: the lease of the minimal network is not a configuration to roll back to.
func TestNSFirstConfigurationIsKept(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		gateway(t)
		fake := &network.Fake{Version: 252, OnReload: leases(map[string]string{"eth0": "10.0.0.5/24 via 10.0.0.1"})}
		k := fake.Use(t, newKernel(t))
		if err := wait.DHCP(within(t, 5*time.Second), k); err != nil {
			t.Fatal(err)
		}
		fake.OnReload = nil
		n := static("10.0.0.5")
		n.Gateway = "10.0.0.66"
		have, want := wanted(t, k, nets{"a": n})
		changes, err := network.Diff(have, want)
		if err != nil {
			t.Fatal(err)
		}
		o, err := confirm.Apply(t.Context(), k, have, want, changes,
			confirm.Options{SameAgent: true, Limit: 300 * time.Millisecond})
		if err != nil || o.RolledBack {
			t.Errorf("got %+v, %v; want the first configuration kept", o, err)
		}
		expect(t, "routes", routes(t), "0.0.0.0/0 via 10.0.0.66 dev eth0")
	})
}

func TestNSConfirmedChanges(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		peer := gateway(t)
		peer.Address(t, "eth0", "10.0.0.2/24")
		listen(t, peer, "192.0.2.1:80")
		k := newKernel(t)
		limit := confirm.Options{SameAgent: true, Limit: 700 * time.Millisecond}
		answers := confirm.Options{SameAgent: true, Limit: time.Minute}
		confirmed := func(n nets, c confirm.Options) confirm.Outcome {
			t.Helper()
			have, want := wanted(t, k, n)
			changes, err := network.Diff(have, want)
			if err != nil {
				t.Fatal(err)
			}
			o, err := confirm.Apply(t.Context(), k, have, want, changes, c)
			if err != nil {
				t.Fatal(err)
			}
			return o
		}
		via := func(ip, gw string) nets {
			n := static(ip)
			n.Gateway = gw
			return nets{"a": n}
		}

		if o := confirmed(via("10.0.0.5", "10.0.0.66"), limit); o.RolledBack {
			t.Errorf("the first configuration was taken back: %s", o.Reason)
		}
		if o := confirmed(via("10.0.0.5", "10.0.0.1"), answers); o.RolledBack {
			t.Errorf("from a gateway that never answered to one that does: %s", o.Reason)
		}
		before := file(t, k, "etc/systemd/network/10_eth0.network")
		if o := confirmed(via("10.0.0.5", "10.0.0.2"), answers); o.RolledBack {
			t.Errorf("a gateway that answers was not accepted: %s", o.Reason)
		}
		expect(t, "routes", routes(t), "0.0.0.0/0 via 10.0.0.2 dev eth0")
		confirmed(via("10.0.0.5", "10.0.0.1"), answers)

		s := startStream(t, "192.0.2.1:80")
		bad := via("10.0.0.5", "10.0.0.66")
		bad["b"] = extra("10.0.0.6")
		o := confirmed(bad, limit)
		if !o.RolledBack || !strings.Contains(o.Reason, `network "a": gateway 10.0.0.66 on eth0 did not answer`) {
			t.Errorf("a gateway that does not answer: got %+v, want it taken back with the reason", o)
		}
		expect(t, "routes", routes(t), "0.0.0.0/0 via 10.0.0.1 dev eth0")
		expect(t, "addresses", addresses(t, "eth0"), "10.0.0.5/24")
		if got := file(t, k, "etc/systemd/network/10_eth0.network"); got != before {
			t.Errorf("file after the change was taken back:\n%s\nwant\n%s", got, before)
		}
		s.flows(t)

		for name, c := range map[string]confirm.Options{"another agent": {Limit: limit.Limit}} {
			if o := confirmed(via("10.0.0.5", "10.0.0.66"), c); o.RolledBack {
				t.Errorf("%s: taken back", name)
			}
			confirmed(via("10.0.0.5", "10.0.0.1"), c)
		}
		if o := confirmed(via("10.0.0.7", "10.0.0.66"), limit); o.RolledBack {
			t.Error("went back to an address that the settings no longer name")
		}
		expect(t, "addresses", addresses(t, "eth0"), "10.0.0.7/24")
	})
}

// cutting returns a change that cuts off a machine with a working network: the new gateway does not exist.
func cutting(t *testing.T) (k *network.Kernel, have network.State, want network.Desired, changes []network.Change) {
	t.Helper()
	gateway(t)
	k = newKernel(t)
	apply(t, k, nets{"a": static("10.0.0.5")})
	n := static("10.0.0.5")
	n.Gateway = "10.0.0.66"
	have, want = wanted(t, k, nets{"a": n, "b": extra("10.0.0.6")})
	changes, err := network.Diff(have, want)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, "routes", routes(t), "0.0.0.0/0 via 10.0.0.1 dev eth0")
	return k, have, want, changes
}

// restored checks that the network is as it was before cutting.
func restored(t *testing.T, k *network.Kernel, before string) {
	t.Helper()
	expect(t, "routes", routes(t), "0.0.0.0/0 via 10.0.0.1 dev eth0")
	expect(t, "addresses", addresses(t, "eth0"), "10.0.0.5/24")
	if got := file(t, k, "etc/systemd/network/10_eth0.network"); got != before {
		t.Errorf("file after the change was taken back:\n%s\nwant\n%s", got, before)
	}
}

// TestNSPartOfACuttingChangeFails: a change that cuts off the machine is rolled back even if a part of it failed, on
// any link: the next attempt would find nothing to change, and not ask. The reason names both.
func TestNSPartOfACuttingChangeFails(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		k, have, want, changes := cutting(t)
		before := file(t, k, "etc/systemd/network/10_eth0.network")
		refused := network.Route{Link: "lo", To: netip.MustParsePrefix("198.51.100.0/24"),
			Gateway: netip.MustParseAddr("172.16.0.1"), Origin: network.OriginStatic}
		changes = append([]network.Change{{Op: network.OpAddRoute, Link: "lo", Network: "c", Route: &refused}}, changes...)
		o, err := confirm.Apply(t.Context(), k, have, want, changes,
			confirm.Options{SameAgent: true, Limit: 700 * time.Millisecond})
		if err != nil || !o.RolledBack || !strings.Contains(o.Reason, "10.0.0.66 on eth0 did not answer") ||
			!strings.Contains(o.Reason, "lo: add route 198.51.100.0/24") {
			t.Errorf("got %+v, %v; want it taken back, with the gateway and the route that failed", o, err)
		}
		restored(t, k, before)
	})
}

// TestNSPartOfAGoodChangeFails: if a part fails but the gateway answers, it is an error, and nothing is rolled back.
func TestNSPartOfAGoodChangeFails(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		gateway(t)
		k := newKernel(t)
		apply(t, k, nets{"a": static("10.0.0.5")})
		have, want := wanted(t, k, nets{"a": static("10.0.0.5"), "b": extra("10.0.0.6")})
		changes, err := network.Diff(have, want)
		if err != nil {
			t.Fatal(err)
		}
		changes = append(changes, network.Change{Op: network.OpLinkUp, Link: "eth9"})
		o, err := confirm.Apply(t.Context(), k, have, want, changes, confirm.Options{SameAgent: true, Limit: time.Minute})
		if err == nil || o.RolledBack {
			t.Errorf("got %+v, %v; want an error, and the rest kept", o, err)
		}
		expect(t, "addresses", addresses(t, "eth0"), "10.0.0.5/24", "10.0.0.6/24")
	})
}

// TestNSStoppedBeforeTheConfirmation: a change that is not confirmed when the agent stops is rolled back, whether all
// of it was made or not.
func TestNSStoppedBeforeTheConfirmation(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		k, have, want, changes := cutting(t)
		before := file(t, k, "etc/systemd/network/10_eth0.network")
		stop := errors.New("the agent stops")
		ctx, cancel := context.WithCancelCause(t.Context())
		updates, done := make(chan netlink.RouteUpdate, 1024), make(chan struct{})
		if err := netlink.RouteSubscribe(updates, done); err != nil {
			t.Fatal(err)
		}
		defer close(done)
		go func() {
			for u := range updates { // the change is being made
				if u.Gw.Equal(net.IPv4(10, 0, 0, 66)) {
					cancel(stop)
				}
			}
		}()
		o, err := confirm.Apply(ctx, k, have, want, changes, confirm.Options{SameAgent: true, Limit: time.Hour})
		if !errors.Is(err, stop) || !o.RolledBack {
			t.Errorf("got %+v, %v; want it taken back because the agent stops", o, err)
		}
		restored(t, k, before)
	})
}
