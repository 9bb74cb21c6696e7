//go:build ns

package network_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"cambium/desired"
	"cambium/internal/nstest"
	"cambium/platform/network"
	"cambium/platform/network/neighbor"
	"cambium/platform/network/networkd"
	"cambium/platform/network/wait"
	"cambium/settings"
)

// The tests of this file cover known defects of cloudfoundry/bosh-agent.

func TestNSTwoStaticNetworksOnOneNIC(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		gateway(t)
		k := newKernel(t)
		want, _ := apply(t, k, nets{"b": static("10.0.0.5"), "a": extra("10.0.0.6"), "c": extra("10.5.0.7")})
		ready(t, k, want)
		expect(t, "addresses", addresses(t, "eth0"), "10.0.0.5/24", "10.5.0.7/24", "10.0.0.6/24")
		contains(t, file(t, k, "etc/systemd/network/10_eth0.network"), "Address=10.0.0.5/24", "Address=10.0.0.6/24",
			"Address=10.5.0.7/24")
	})
}

func TestNSStaticBesideDHCPOnOneNIC(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		gateway(t)
		fake := &network.Fake{Version: 252, OnReload: leases(map[string]string{"eth0": "10.7.0.9/24"})}
		k := fake.Use(t, newKernel(t))
		want, _ := apply(t, k, nets{"a": static("10.0.0.5"), "b": {Type: "dynamic", MAC: mac0}})
		ready(t, k, want)
		expect(t, "addresses", addresses(t, "eth0"), "10.0.0.5/24", "10.7.0.9/24")
		if got, err := wait.Resolve(t.Context(), k, want.Dynamic); err != nil || got["b"].IP != "10.7.0.9" {
			t.Errorf("resolved: got %v, %v; want the lease", got, err)
		}
		contains(t, file(t, k, "etc/systemd/network/10_eth0.network"), "Address=10.0.0.5/24", "DHCP=yes", "Gateway=10.0.0.1")
	})
}

func TestNSEveryNICIsChecked(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		gateway(t).NIC(t, "eth1", mac1)
		k := newKernel(t)
		second := extra("10.1.0.5")
		second.MAC = mac1
		want, _ := apply(t, k, nets{"a": static("10.0.0.5"), "b": second})
		link, err := netlink.LinkByName("eth1")
		if err != nil {
			t.Fatal(err)
		}
		address, err := netlink.ParseAddr("10.1.0.5/24")
		if err == nil {
			err = netlink.AddrDel(link, address)
		}
		if err != nil {
			t.Fatal(err)
		}
		_, err = wait.Ready(within(t, 50*time.Millisecond), k, want)
		if err == nil || !strings.Contains(err.Error(), `network "b": address 10.1.0.5/24 is not on eth1`) {
			t.Errorf("got %v, want it to name the second network", err)
		}
	})
}

func TestNSAnUnchangedConfigurationIsLeftAlone(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		gateway(t)
		fake := &network.Fake{Version: 252}
		k := fake.Use(t, newKernel(t))
		n := nets{"a": static("10.0.0.5"), "b": extra("10.0.0.6")}
		n["a"] = withRoutes(n["a"])
		apply(t, k, n)
		before, err := os.Stat(filepath.Join(k.Root, "etc/systemd/network/10_eth0.network"))
		if err != nil {
			t.Fatal(err)
		}
		for range 20 { // the map is read in another order each time
			_, changes := apply(t, k, nets{"b": n["b"], "a": n["a"]})
			if len(changes) > 0 {
				t.Fatalf("changes %v, want none", changes)
			}
		}
		after, err := os.Stat(filepath.Join(k.Root, "etc/systemd/network/10_eth0.network"))
		if err != nil || !os.SameFile(before, after) {
			t.Errorf("the file was written again (%v)", err)
		}
		if fake.Reloads != 1 {
			t.Errorf("networkd was reloaded %d times, want once", fake.Reloads)
		}
	})
}

func withRoutes(n settings.Network) settings.Network {
	n.Routes = []settings.Route{
		{Destination: "198.51.100.0", Netmask: "255.255.255.0", Gateway: "10.0.0.2"},
		{Destination: "203.0.113.0", Netmask: "255.255.255.0", Gateway: "10.0.0.3"},
	}
	return n
}

func TestNSForeignFilesStayUnlessInTheWay(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		gateway(t)
		k := newKernel(t)
		write := func(path, content string) {
			t.Helper()
			path = filepath.Join(k.Root, path)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		stay := map[string]string{
			"etc/systemd/network/00-x.link":                        "[Match]\nName=eth0\n",
			"etc/systemd/network/05-bridge.netdev":                 "[NetDev]\nName=br0\n",
			"etc/systemd/network/05-other.network":                 "[Match]\nName=docker*\n",
			"etc/systemd/network/05-all-unmanaged.network":         "[Match]\nName=*\n",
			"etc/systemd/network/05-veto.network":                  "[Match]\nName=!eth*\n",
			"etc/systemd/network/05-mac.network":                   "[Match]\nMACAddress=02:00:00:00:00:07\n",
			"etc/systemd/network/05-driver.network":                "[Match]\nName=*\nDriver=unknown\n",
			"etc/systemd/network/10_eth0.network.d/50-extra.conf":  "[Network]\nLLDP=yes\n",
			"etc/systemd/network/99-dhcp.network":                  "[Match]\nName=*\n[Network]\nDHCP=yes\n",
			"usr/lib/systemd/network/80-container-ve.network":      "[Match]\nName=ve-*\n",
			"run/systemd/network/10-netplan-eth0.network":          "[Match]\nName=eth0\n[Network]\nDHCP=yes\n",
			"usr/lib/systemd/network/05-hidden-by-foreign.network": "[Match]\nName=eth0\n",
			"etc/systemd/network/05-hidden-by-foreign.network":     "[Match]\nName=nothing\n",
		}
		for path, content := range stay {
			write(path, content)
		}
		write("etc/systemd/network/05-greedy.network", "[Match]\nName=en* eth*\n[Network]\nDHCP=yes\n")
		write("etc/systemd/network/05-exact.network", "[Match]\nMACAddress=52-54-00-00-00-01\n")
		write("etc/systemd/network/10_eth7.network", "# Generated by bosh-agent\n[Match]\nName=eth7\n")
		write("etc/systemd/network/09_old.network", "# Generated by bosh-agent\n[Match]\nName=eth0\n")

		n := nets{"a": static("10.0.0.5")}
		apply(t, k, n)
		for path, content := range stay {
			if got := file(t, k, path); got != content {
				t.Errorf("%s: got %q, want it untouched", path, got)
			}
		}
		for _, gone := range []string{"05-greedy.network", "05-exact.network", "10_eth7.network", "09_old.network"} {
			if _, err := os.Lstat(filepath.Join(k.Root, "etc/systemd/network", gone)); err == nil {
				t.Errorf("%s is still there", gone)
			}
		}
		if got := file(t, k, "etc/systemd/network/05-greedy.network.moved-by-bosh-agent"); !strings.Contains(got,
			"en* eth*") {
			t.Errorf("the foreign file was not kept: %q", got)
		}
		if got := file(t, k, "etc/systemd/network/10-netplan-eth0.network"); !strings.HasPrefix(got, networkd.Marker) ||
			strings.Contains(got, "[Match]") {
			t.Errorf("the file below /run is not hidden: %q", got)
		}
		// What is no longer in the way is no longer hidden.
		if err := os.Remove(filepath.Join(k.Root, "run/systemd/network/10-netplan-eth0.network")); err != nil {
			t.Fatal(err)
		}
		apply(t, k, n)
		if _, err := os.Lstat(filepath.Join(k.Root, "etc/systemd/network/10-netplan-eth0.network")); err == nil {
			t.Error("the hiding file outlived its reason")
		}
	})
}

func TestNSDynamicNetworksAreResolvedByNIC(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		gateway(t).NIC(t, "eth1", mac1)
		fake := &network.Fake{Version: 252, OnReload: leases(map[string]string{"eth0": "10.0.0.77/24 via 10.0.0.1",
			"eth1": "10.1.0.88/16"})}
		k := fake.Use(t, newKernel(t))
		want, _ := apply(t, k, nets{"a": {Type: "dynamic", MAC: mac0, Default: []string{"gateway"}},
			"b": {Type: "dynamic", MAC: mac1}, "c": {Type: "dynamic"}, "six": {Type: "dynamic", Prefix: "128", MAC: mac1}})
		if err := os.MkdirAll(filepath.Join(k.Root, "run/systemd/netif/leases"), 0o755); err != nil {
			t.Fatal(err)
		}
		link, err := netlink.LinkByName("eth1")
		if err != nil {
			t.Fatal(err)
		}
		lease := filepath.Join(k.Root, "run/systemd/netif/leases", strconv.Itoa(link.Attrs().Index))
		if err := os.WriteFile(lease, []byte("# private\nADDRESS=10.1.0.88\nROUTER=10.1.0.1 10.1.0.2\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		got, err := wait.Resolve(within(t, 5*time.Second), k, want.Dynamic)
		if err == nil || err.Error() != `network "six": eth1 has no IPv6 address` {
			t.Errorf("got %v, want an error for network six alone", err)
		}
		for name, w := range map[string]network.Resolved{
			"a": {IP: "10.0.0.77", Netmask: "255.255.255.0", Gateway: "10.0.0.1"},
			"b": {IP: "10.1.0.88", Netmask: "255.255.0.0", Gateway: "10.1.0.1"},
			"c": {IP: "10.0.0.77", Netmask: "255.255.255.0", Gateway: "10.0.0.1"},
		} {
			if got[name] != w {
				t.Errorf("%s: got %+v, want %+v", name, got[name], w)
			}
		}
	})
}

func TestNSLinkNamesWithCapitalsDotsAndDashes(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		peer := nstest.NewPeer(t)
		k := newKernel(t)
		all := nets{}
		for i, name := range []string{"enP1s1", "bond0.10", "br-x", "eth@0"} {
			mac := "52:54:00:00:01:0" + strconv.Itoa(i)
			peer.NIC(t, name, mac)
			all[name] = settings.Network{IP: "10." + strconv.Itoa(i) + ".0.5", Netmask: "255.255.255.0", MAC: mac}
		}
		first := all["bond0.10"]
		first.Gateway, first.Default = "10.1.0.1", []string{"gateway"}
		all["bond0.10"] = first
		want, _ := apply(t, k, all)
		ready(t, k, want)
		for i, name := range []string{"enP1s1", "bond0.10", "br-x", "eth@0"} {
			expect(t, name, addresses(t, name), "10."+strconv.Itoa(i)+".0.5/24")
			contains(t, file(t, k, "etc/systemd/network/10_"+name+".network"), "Name="+name)
		}
		got, err := wait.Resolve(t.Context(), k, []network.Dynamic{{Network: "x"}})
		if err != nil || got["x"].IP != "10.1.0.5" {
			t.Errorf("by default route: got %v, %v; want 10.1.0.5", got, err)
		}
	})
}

func TestNSHardwareAddressInAnySpelling(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		peer := nstest.NewPeer(t)
		peer.NIC(t, "eth0", "52:54:00:0a:bc:0d")
		k := newKernel(t)
		for _, mac := range []string{"52:54:00:0A:BC:0D", "52-54-00-0a-bc-0d", "5254.000a.bc0d", "5254000ABC0D",
			"52:54:0:a:bc:d"} {
			want, _ := apply(t, k, nets{"a": {IP: "10.0.0.5", Netmask: "255.255.255.0", MAC: mac}})
			ready(t, k, want)
			expect(t, mac, addresses(t, "eth0"), "10.0.0.5/24")
		}
	})
}

// TestNSVirtualFunctionIsNotANIC: an Azure virtual function has the MAC of its synthetic NIC and is marked by udev.
func TestNSVirtualFunctionIsNotANIC(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		peer := nstest.NewPeer(t)
		peer.NIC(t, "enP1s1", mac0)
		peer.NIC(t, "eth0", mac0)
		k := newKernel(t)
		link, err := netlink.LinkByName("enP1s1")
		if err != nil {
			t.Fatal(err)
		}
		udev := filepath.Join(k.Root, "run/udev/data")
		if err := os.MkdirAll(udev, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(udev, "n"+strconv.Itoa(link.Attrs().Index)),
			[]byte("I:1\nE:AZURE_UNMANAGED_SRIOV=1\nV:1\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		apply(t, k, nets{"a": static("10.0.0.5")})
		expect(t, "eth0", addresses(t, "eth0"), "10.0.0.5/24")
		expect(t, "enP1s1", addresses(t, "enP1s1"))
	})
}

func TestNSOtherLinksAreNotTouched(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		peer := gateway(t)
		peer.Veth(t, "bosh-dns", "")
		if err := lend("bosh-dns", "169.254.1.1/32", false); err != nil {
			t.Fatal(err)
		}
		k := newKernel(t)
		_, changes := apply(t, k, nets{"a": static("10.0.0.5")})
		for _, c := range changes {
			if c.Link == "bosh-dns" {
				t.Errorf("touches a foreign link: %s", c)
			}
		}
		expect(t, "bosh-dns", addresses(t, "bosh-dns"), "169.254.1.1/32")
	})
}

func TestNSDuplicateAddressesAreReported(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		peer := gateway(t)
		peer.Address(t, "eth0", "10.0.0.5/24")
		peer.Address(t, "eth0", "fd00::5/64")
		k := newKernel(t)
		want, _ := apply(t, k, nets{"a": extra("10.0.0.5"), "b": extra("10.0.0.6"),
			"six": {IP: "fd00::5", Netmask: "ffff:ffff:ffff:ffff::", MAC: mac0}})
		ready(t, k, want) // without waiting for the verdict
		got, _ := neighbor.Probe(within(t, 10*time.Second), k, want)
		wanted := []string{
			`network "a": address 10.0.0.5 on eth0 is also used by the machine with hardware address ` + peer.MAC(t, "eth0"),
			`network "six": address fd00::5 on eth0 is also used by another machine`,
		}
		expect(t, "warnings", got, wanted...)
		have, err := k.ObserveLinks()
		if err != nil {
			t.Fatal(err)
		}
		// Who looks later has no settings, but the addresses of the links.
		expect(t, "duplicates", neighbor.Duplicates(within(t, 5*time.Second), have),
			`address 10.0.0.5 on eth0 is also used by the machine with hardware address `+peer.MAC(t, "eth0"),
			`address fd00::5 on eth0 is also used by another machine`)
		want.AwaitIPv6 = true
		if _, err := wait.Ready(within(t, 5*time.Second), k, want); err == nil ||
			!strings.Contains(err.Error(), `network "six": address fd00::5/64 on eth0 is used by another machine`) {
			t.Errorf("waiting for IPv6: got %v, want the duplicate named", err)
		}
	})
}

func TestNSSilentGatewayIsReported(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		gateway(t)
		k := newKernel(t)
		n := static("10.0.0.5")
		n.Gateway = "10.0.0.254"
		want, _ := apply(t, k, nets{"a": n})
		_, silent := neighbor.Probe(within(t, 5*time.Second), k, want)
		expect(t, "warnings", silent, `network "a": gateway 10.0.0.254 does not answer on eth0`)
	})
}

func TestNSAddressesAreAnnouncedOnTheWire(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		peer := gateway(t)
		k := (&network.Fake{Version: 252}).Use(t, newKernel(t))
		want, _ := apply(t, k, nets{"a": static("10.0.0.5"), "d": {Type: "dynamic", MAC: mac0},
			"six": {IP: "fd00::5", Netmask: "ffff:ffff:ffff:ffff::", MAC: mac0}})
		want.AwaitIPv6 = true
		if _, err := wait.Ready(within(t, 3*time.Second), k, want); err == nil {
			t.Fatal("ready without a lease")
		}
		capture := peer.Capture(t, "eth0")
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { neighbor.Announce(ctx, k, want); close(done) }()
		hardware, err := net.ParseMAC(mac0)
		if err != nil {
			t.Fatal(err)
		}
		gratuitous := func(operation byte, ip string) func([]byte) bool {
			address := netip.MustParseAddr(ip).AsSlice()
			return func(f []byte) bool {
				return len(f) >= 42 && f[12] == 8 && f[13] == 6 && f[21] == operation &&
					bytes.Equal(f[0:6], bytes.Repeat([]byte{0xff}, 6)) && bytes.Equal(f[6:12], hardware) &&
					bytes.Equal(f[22:28], hardware) &&
					bytes.Equal(f[28:32], address) && bytes.Equal(f[38:42], address)
			}
		}
		advertisement := func(f []byte) bool {
			return len(f) >= 86 && f[12] == 0x86 && f[13] == 0xdd && f[20] == 58 && f[21] == 255 && f[54] == 136 &&
				f[58] == 0x20 &&
				bytes.Equal(f[62:78], netip.MustParseAddr("fd00::5").AsSlice()) && f[78] == 2 && bytes.Equal(f[80:86], hardware)
		}
		for _, match := range []func([]byte) bool{gratuitous(1, "10.0.0.5"), gratuitous(2, "10.0.0.5"), advertisement} {
			if capture.Wait(t, 3*time.Second, match) == nil {
				t.Fatal("an announcement did not arrive")
			}
		}
		// A lease that comes later is announced too, and so are the others again.
		if err := lend("eth0", "10.0.0.77/24", false); err != nil {
			t.Fatal(err)
		}
		if capture.Wait(t, 5*time.Second, gratuitous(1, "10.0.0.77")) == nil {
			t.Error("a late lease is not announced")
		}
		stop()
		<-done
	})
}

func TestNSAliasOnADHCPNICIsKept(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		gateway(t).NIC(t, "eth1", mac1)
		fake := &network.Fake{Version: 252, OnReload: leases(map[string]string{"eth0": "10.0.0.77/24 via 10.0.0.1"})}
		k := fake.Use(t, newKernel(t))
		want, _ := apply(t, k, nets{"d": {Type: "dynamic", MAC: mac0},
			"a": {IP: "10.5.0.6", Netmask: "255.255.255.0", Alias: "eth0:0"}})
		ready(t, k, want)
		expect(t, "addresses", addresses(t, "eth0"), "10.5.0.6/24", "10.0.0.77/24")
		contains(t, file(t, k, "etc/systemd/network/10_eth0.network"), "DHCP=yes", "Label=eth0:0", "Address=10.5.0.6/24")
	})
}

func TestNSWithoutNetworkd(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		gateway(t).NIC(t, "eth1", mac1)
		k := newKernel(t)
		have, err := k.Observe(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		want, _, err := desired.Network(nets{"a": static("10.0.0.5"), "b": {Type: "dynamic", MAC: mac1}}, have)
		if err != nil {
			t.Fatal(err)
		}
		changes, err := network.Diff(have, want)
		const refusal = `network "b": eth1 needs DHCP, but systemd-networkd, the DHCP client, is not available`
		if err == nil || err.Error() != refusal {
			t.Errorf("got %v, want a clear error for the dynamic network", err)
		}
		if _, err := k.Apply(t.Context(), changes); err != nil {
			t.Errorf("Apply of the static part: %v", err)
		}
		expect(t, "addresses", addresses(t, "eth0"), "10.0.0.5/24")
	})
}

func TestNSLateNIC(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		peer := gateway(t)
		k := newKernel(t)
		second := extra("10.1.0.5")
		second.MAC = mac1
		n := nets{"a": static("10.0.0.5"), "b": second}
		have, err := k.Observe(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := desired.Network(n, have); err == nil ||
			!strings.HasPrefix(err.Error(), `network "b": no NIC has the hardware address `+mac1+": the machine has ") {
			t.Errorf("before: got %v, want the network and its hardware address named", err)
		}
		missing := func(have network.State) error {
			_, _, err := desired.Network(n, have)
			return err
		}
		if err := wait.Until(within(t, 50*time.Millisecond), k, missing); !errors.Is(err, desired.ErrNoNIC) ||
			!strings.Contains(err.Error(), mac1) {
			t.Errorf("too late: got %v, want the hardware address named", err)
		}
		result := make(chan error, 1)
		go func() { result <- wait.Until(within(t, 5*time.Second), k, missing) }()
		peer.NIC(t, "eth1", mac1)
		if err := <-result; err != nil {
			t.Fatalf("Until: %v", err)
		}
		want, _ := apply(t, k, n)
		ready(t, k, want)
		expect(t, "eth1", addresses(t, "eth1"), "10.1.0.5/24")
		nic, err := netlink.LinkByName("eth1")
		if err != nil {
			t.Fatal(err)
		}
		for _, up := range []bool{true, false} {
			have, err := k.ObserveLinks()
			if err != nil {
				t.Fatal(err)
			}
			if link, _ := have.Link("eth1"); link.Carrier != up || link.Up != up {
				t.Errorf("up %v: got %+v", up, link)
			}
			if err := netlink.LinkSetDown(nic); err != nil {
				t.Fatal(err)
			}
		}
	})
}
