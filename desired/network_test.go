package desired_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"cambium/desired"
	"cambium/internal/advice"
	"cambium/platform/network"
	"cambium/platform/network/networkd"
	"cambium/settings"
)

const (
	mac0 = "52:54:00:00:00:01"
	mac1 = "52:54:00:00:00:02"
)

// machine returns the state of a machine with this many NICs, and a bridge, which is not a NIC.
func machine(nics int) network.State {
	s := network.State{Networkd: networkd.Status{Available: true, Version: 252}}
	for i := range nics {
		s.Links = append(s.Links, network.Link{Index: i + 2, Name: fmt.Sprintf("eth%d", i), NIC: true,
			MAC: network.MAC(fmt.Sprintf("52:54:00:00:00:%02x", i+1))})
	}
	s.Links = append(s.Links, network.Link{Index: nics + 2, Name: "br0", MAC: "02:00:00:00:00:99"})
	return s
}

func manual(ip, mac string) settings.Network {
	return settings.Network{Type: "manual", IP: ip, Netmask: "255.255.255.0", Gateway: "10.0.0.1", MAC: mac}
}

func with(n settings.Network, change func(*settings.Network)) settings.Network {
	change(&n)
	return n
}

func gatewayDefault(n *settings.Network) { n.Default = []string{"dns", "gateway"} }

// describe formats a plan for the tables of cases.
func describe(d network.Desired) string {
	var b strings.Builder
	if d.Preconfigured {
		b.WriteString("preconfigured;")
	}
	for _, l := range d.Links {
		fmt.Fprintf(&b, "%s:", l.Name)
		for _, a := range l.Addresses {
			fmt.Fprintf(&b, " %s", a.Prefix)
			if a.Label != "" {
				fmt.Fprintf(&b, "(%s)", a.Label)
			}
		}
		if l.DHCP {
			b.WriteString(" dhcp")
		}
		if l.NoDHCPGateway {
			b.WriteString(" no-gateway")
		}
		if l.AcceptRA {
			b.WriteString(" ra")
		}
		for _, r := range l.Routes {
			fmt.Fprintf(&b, " %s>%s", r.To, r.Gateway)
			if r.OnLink {
				b.WriteString("!")
			}
		}
		for _, s := range l.DNS {
			fmt.Fprintf(&b, " dns=%s", s)
		}
		b.WriteString(";")
	}
	return b.String()
}

// Contract N.1.
func TestNetwork(t *testing.T) {
	six := settings.Network{Type: "manual", IP: "fd00::5", Netmask: "ffff:ffff:ffff:ffff:0000:0000:0000:0000",
		Gateway: "fd00::1", MAC: mac0}
	dynamic := settings.Network{Type: "dynamic", MAC: mac1}
	for _, tt := range []struct {
		name     string
		nics     int
		nets     map[string]settings.Network
		want     string
		warnings []string
		failed   []string
	}{
		{name: "no network at all counts as preconfigured", nics: 1, want: "preconfigured;"},
		{
			name: "vip alone counts as preconfigured", nics: 1,
			nets: map[string]settings.Network{"v": {Type: "vip", IP: "1.2.3.4"}},
			want: "preconfigured;",
		},
		{
			name: "preconfigured", nics: 1,
			nets: map[string]settings.Network{"a": with(manual("10.0.0.5", mac0),
				func(n *settings.Network) { n.Preconfigured = true })},
			want: "preconfigured;",
		},
		{
			name: "one network that is not preconfigured configures all", nics: 2,
			nets: map[string]settings.Network{"a": with(manual("10.0.0.5", mac0),
				func(n *settings.Network) { n.Preconfigured = true }), "b": dynamic},
			want: "eth0: 10.0.0.5/24;eth1: dhcp;",
		},
		{
			name: "one static network without an address and one NIC", nics: 1,
			nets: map[string]settings.Network{"a": with(manual("10.0.0.5", ""), gatewayDefault)},
			want: "eth0: 10.0.0.5/24 0.0.0.0/0>10.0.0.1;",
		},
		{
			name: "a vip network beside it does not matter", nics: 1,
			nets: map[string]settings.Network{"a": manual("10.0.0.5", ""), "v": {Type: "vip", IP: "1.2.3.4"}},
			want: "eth0: 10.0.0.5/24;",
		},
		{
			name: "no default gateway, no route", nics: 1,
			nets: map[string]settings.Network{"a": manual("10.0.0.5", mac0)},
			want: "eth0: 10.0.0.5/24;",
		},
		{
			name: "hardware address in another spelling", nics: 2,
			nets: map[string]settings.Network{"a": manual("10.0.0.5", "52-54-00-00-00-02")},
			want: "eth0: dhcp;eth1: 10.0.0.5/24;",
		},
		{
			name: "upper case", nics: 1,
			nets: map[string]settings.Network{"a": manual("10.0.0.5", "5254.0000.0001")},
			want: "eth0: 10.0.0.5/24;",
		},
		{
			name: "unknown hardware address", nics: 1,
			nets: map[string]settings.Network{"a": manual("10.0.0.5", "52:54:00:00:00:99")},
			want: "eth0: dhcp;",
			failed: []string{`network "a": no NIC has the hardware address 52:54:00:00:00:99: ` +
				`the machine has eth0 (52:54:00:00:00:01)`},
		},
		{
			name: "several networks on one NIC, dual stack", nics: 1,
			nets: map[string]settings.Network{
				"a": manual("10.0.0.5", mac0), "b": with(manual("10.0.0.6", mac0), gatewayDefault), "c": with(six, gatewayDefault),
			},
			want:     "eth0: 10.0.0.6/24 fd00::5/64 10.0.0.5/24 ra 0.0.0.0/0>10.0.0.1 ::/0>fd00::1;",
			warnings: []string{`network "c": network "b" is already the default for dns; these servers are not used`},
		},
		{
			name: "static and DHCP on one NIC", nics: 1,
			nets: map[string]settings.Network{"a": manual("10.0.0.5", mac0), "b": {Type: "dynamic", MAC: mac0}},
			want: "eth0: 10.0.0.5/24 dhcp;",
		},
		{
			name: "DHCP beside a default gateway elsewhere", nics: 2,
			nets: map[string]settings.Network{"a": with(manual("10.0.0.5", mac0), gatewayDefault), "b": dynamic},
			want: "eth0: 10.0.0.5/24 0.0.0.0/0>10.0.0.1;eth1: dhcp no-gateway;",
		},
		{
			name: "DHCP that is the default gateway", nics: 2,
			nets: map[string]settings.Network{"a": manual("10.0.0.5", mac0), "b": with(dynamic, gatewayDefault)},
			want: "eth0: 10.0.0.5/24;eth1: dhcp;",
		},
		{
			name: "use_dhcp, resolved, missing netmask", nics: 3,
			nets: map[string]settings.Network{
				"a": with(manual("10.0.0.5", mac0), func(n *settings.Network) { n.UseDHCP = true }),
				"b": with(manual("10.0.1.5", mac1), func(n *settings.Network) { n.Resolved = true }),
				"c": with(manual("10.0.2.5", "52:54:00:00:00:03"), func(n *settings.Network) { n.Netmask = "" }),
			},
			want: "eth0: dhcp;eth1: dhcp;eth2: dhcp;",
		},
		{
			name: "DHCP with an IPv6 address", nics: 1,
			nets: map[string]settings.Network{"a": {UseDHCP: true, IP: "fd00::9", Prefix: "128", MAC: mac0}},
			want: "eth0: dhcp ra;",
		},
		{
			name: "alias names its link", nics: 2,
			nets: map[string]settings.Network{"a": with(manual("10.0.0.5", ""), func(n *settings.Network) { n.Alias = "eth1" })},
			want: "eth0: dhcp;eth1: 10.0.0.5/24;",
		},
		{
			name: "alias of a link that is not a NIC", nics: 2,
			nets: map[string]settings.Network{"a": with(manual("10.0.0.5", ""), func(n *settings.Network) { n.Alias = "br0" })},
			want: "br0: 10.0.0.5/24;eth0: dhcp;eth1: dhcp;",
		},
		{
			name: "labeled alias beside a static address", nics: 1,
			nets: map[string]settings.Network{"z": manual("10.0.0.5", mac0),
				"a": with(manual("10.0.0.6", ""), func(n *settings.Network) { n.Alias = "eth0:0" })},
			want: "eth0: 10.0.0.5/24 10.0.0.6/24(eth0:0);",
		},
		{
			name: "labeled alias on a DHCP NIC is not lost", nics: 2,
			nets: map[string]settings.Network{"a": with(manual("10.0.0.6", ""),
				func(n *settings.Network) { n.Alias = "eth0:0" })},
			want: "eth0: 10.0.0.6/24(eth0:0) dhcp;eth1: dhcp;",
		},
		{
			name: "alias makes a dynamic network static", nics: 2,
			nets: map[string]settings.Network{"a": with(manual("10.0.0.6", mac0),
				func(n *settings.Network) { n.Alias, n.Type = "eth0", "dynamic" })},
			want: "eth0: 10.0.0.6/24;eth1: dhcp;",
		},
		{
			name: "alias with use_dhcp, and both families of a NIC", nics: 2,
			nets: map[string]settings.Network{
				"a": with(manual("10.0.0.6", ""), func(n *settings.Network) { n.Alias, n.UseDHCP = "eth1", true }),
				"b": {UseDHCP: true, IP: "fd00::9", Prefix: "128", Alias: "eth1"}},
			want: "eth0: dhcp;eth1: dhcp ra;",
		},
		{
			name: "bad aliases", nics: 2,
			nets: map[string]settings.Network{
				"a": with(manual("10.0.0.6", ""), func(n *settings.Network) { n.Alias = "../x" }),
				"b": with(manual("10.0.0.7", ""), func(n *settings.Network) { n.Alias = "eth9:1" }),
				"c": with(manual("10.0.0.8", ""), func(n *settings.Network) { n.Alias = "eth0:12345678901" }),
			},
			want: "eth0: dhcp;eth1: dhcp;",
			failed: []string{`network "a": alias "../x" is not a valid link name`, `network "b": there is no link eth9`,
				`network "c": alias "eth0:12345678901" is longer than 15 characters`},
		},
		{
			name: "neither address nor alias", nics: 2,
			nets:     map[string]settings.Network{"a": manual("10.0.0.5", "")},
			want:     "eth0: dhcp;eth1: dhcp;",
			warnings: []string{`network "a": has neither a hardware address nor an alias; it is not configured`},
		},
		{
			name: "several networks without an address on the only NIC", nics: 1,
			nets: map[string]settings.Network{"a": manual("10.0.0.5", ""),
				"six": with(six, func(n *settings.Network) { n.MAC = "" })},
			want: "eth0: 10.0.0.5/24 fd00::5/64 ra;",
		},
		{
			name: "two default gateways of one family", nics: 2,
			nets: map[string]settings.Network{
				"a": with(manual("10.0.0.5", mac0), func(n *settings.Network) { n.Default = []string{"gateway"} }),
				"b": with(manual("10.0.0.6", mac1), func(n *settings.Network) { n.Default = []string{"gateway"} }),
			},
			want: "eth0: 10.0.0.5/24 0.0.0.0/0>10.0.0.1;eth1: 10.0.0.6/24;",
			warnings: []string{
				`network "b": network "a" already has the default gateway; 10.0.0.1 is not used`,
				`network "b": subnet 10.0.0.0/24 on eth1 overlaps with that of network "a" on eth0`,
			},
		},
		{
			name: "gateway outside of the subnet", nics: 1,
			nets: map[string]settings.Network{"a": with(manual("10.0.5.5", mac0), gatewayDefault)},
			want: "eth0: 10.0.5.5/24 0.0.0.0/0>10.0.0.1!;",
			warnings: []string{`network "a": gateway 10.0.0.1 is outside subnet 10.0.5.0/24; it is expected on the link: ` +
				`unless that is so, correct networks.a.netmask in the settings ` +
				`(from networks[].subnets[].range of the cloud config)`},
		},
		{
			name: "subnet of a single address", nics: 1,
			nets: map[string]settings.Network{"a": with(manual("10.0.5.5", mac0),
				func(n *settings.Network) { n.Netmask = "255.255.255.255"; gatewayDefault(n) })},
			want: "eth0: 10.0.5.5/32 0.0.0.0/0>10.0.0.1!;",
		},
		{
			name: "default gateway that is invalid", nics: 1,
			nets: map[string]settings.Network{"a": with(manual("10.0.0.5", mac0),
				func(n *settings.Network) { n.Gateway = "x"; gatewayDefault(n) })},
			want: "eth0: 10.0.0.5/24;",
			warnings: []string{`network "a": gateway "x" is not an IP address; there is no default route: correct ` +
				`networks.a.gateway in the settings (from networks[].subnets[].gateway of the cloud config)`},
		},
		{
			name: "one address twice", nics: 2,
			nets:   map[string]settings.Network{"a": manual("10.0.0.5", mac0), "b": manual("10.0.0.5", mac1)},
			want:   "eth0: 10.0.0.5/24;eth1: dhcp;",
			failed: []string{`network "b": address 10.0.0.5 already belongs to network "a"`},
		},
		{
			name: "bad addresses and masks", nics: 4,
			nets: map[string]settings.Network{
				"a": with(manual("10.0.0.x", mac0), func(n *settings.Network) {}),
				"b": with(manual("10.0.0.5", mac1), func(n *settings.Network) { n.Netmask = "255.0.255.0" }),
				"c": with(manual("10.0.0.6", "52:54:00:00:00:03"), func(n *settings.Network) { n.Netmask = "ffff::" }),
				"d": with(manual("127.0.0.1", "52:54:00:00:00:04"), func(n *settings.Network) {}),
				"e": with(manual("10.0.0.8", "bogus"), func(n *settings.Network) {}),
			},
			want: "eth0: dhcp;eth1: dhcp;eth2: dhcp;eth3: dhcp;",
			failed: []string{
				`network "e": "bogus" is not a hardware address`, `network "a": "10.0.0.x" is not an IP address`,
				`network "b": netmask "255.0.255.0" is not contiguous`,
				`network "c": netmask "ffff::" does not match the address family`,
				`network "d": 127.0.0.1 is not usable as the address of a NIC`,
			},
		},
		{
			name: "routes", nics: 1,
			nets: map[string]settings.Network{
				"a": with(manual("10.0.0.5", mac0), func(n *settings.Network) {
					n.Routes = []settings.Route{
						{Destination: "10.9.0.0", Netmask: "255.255.0.0", Gateway: "10.1.0.1"}, // in b's subnet
						{Destination: "10.8.0.0", Netmask: "255.255.0.0", Gateway: "10.7.0.1"}, // in none
						{Destination: "fd01::", Netmask: "ffff::", Gateway: "fd00::1"},
						{Destination: "10.6.0.0", Netmask: "255.255.0.0", Gateway: "fd00::1"},
					}
				}),
				"b": with(manual("10.1.0.5", mac0), func(n *settings.Network) {
					n.Routes = []settings.Route{{Destination: "10.9.0.0", Netmask: "255.255.0.0", Gateway: "10.1.0.2"}}
				}),
			},
			want: "eth0: 10.0.0.5/24 10.1.0.5/24 10.9.0.0/16>10.1.0.1 10.8.0.0/16>10.7.0.1!;",
			warnings: []string{
				`network "a": route to fd01::/16 via fd00::1 ignored: eth0 has no address of that family`,
				`network "a": route ignored: gateway fd00::1 and destination 10.6.0.0/16 have different address families`,
				`network "b": route to 10.9.0.0/16 via 10.1.0.2 ignored: there already is one via 10.1.0.1`,
			},
		},
		{
			name: "name servers in order, on every NIC", nics: 2,
			nets: map[string]settings.Network{
				"a": with(manual("10.0.0.5", mac0), func(n *settings.Network) {
					n.Default, n.DNS = []string{"dns"}, []string{"9.9.9.9", "1.1.1.1", "bad", "::1"}
				}),
				"b": with(dynamic, func(n *settings.Network) { n.DNS = []string{"8.8.8.8"} }),
			},
			want:     "eth0: 10.0.0.5/24 dns=9.9.9.9 dns=1.1.1.1 dns=::1;eth1: dhcp dns=9.9.9.9 dns=1.1.1.1 dns=::1;",
			warnings: []string{`network "a": DNS server "bad" is not an IP address`},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d, warnings, err := desired.Network(tt.nets, machine(tt.nics))
			if got := describe(d); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			if !slices.Equal(warnings, tt.warnings) {
				t.Errorf("warnings: got %q, want %q", warnings, tt.warnings)
			}
			var failed []string
			if err != nil {
				failed = strings.Split(err.Error(), "\n")
			}
			if !slices.Equal(failed, tt.failed) {
				t.Errorf("error: got %q, want %q", failed, tt.failed)
			}
		})
	}
}

// Contract N.2.
func TestTwoNICsWithOneHardwareAddress(t *testing.T) {
	s := machine(2)
	s.Links[1].MAC = s.Links[0].MAC
	d, warnings, err := desired.Network(map[string]settings.Network{"a": manual("10.0.0.5", mac0)}, s)
	if got, want := describe(d), "eth0: 10.0.0.5/24;eth1: dhcp;"; got != want || err != nil || len(warnings) != 1 {
		t.Errorf("got %s, %q, %v; want %s and one warning", got, warnings, err, want)
	}
}

func TestDynamicNetworks(t *testing.T) {
	nets := map[string]settings.Network{
		"delegated": {UseDHCP: true, IP: "fd01::", Prefix: "80", MAC: mac0},
		"four":      {Type: "dynamic", MAC: mac0},
		"nowhere":   {Type: "dynamic"},
		"six":       {UseDHCP: true, IP: "fd00::9", Prefix: "128", MAC: mac1},
		"static":    manual("10.0.0.5", mac0),
		"vip":       {Type: "vip"},
	}
	d, _, err := desired.Network(nets, machine(2))
	if err != nil {
		t.Fatal(err)
	}
	want := []network.Dynamic{{Network: "four", Link: "eth0"}, {Network: "nowhere"},
		{Network: "six", Link: "eth1", IPv6: true}}
	if !slices.Equal(d.Dynamic, want) {
		t.Errorf("dynamic: got %+v, want %+v", d.Dynamic, want)
	}
	all := desired.FillAddresses(nets, map[string]network.Resolved{"four": {IP: "10.0.0.9", Netmask: "255.255.255.0",
		Gateway: "10.0.0.1"}})
	if got := all["four"]; got.IP != "10.0.0.9" || got.Gateway != "10.0.0.1" || !got.Resolved || nets["four"].IP != "" ||
		all["static"].IP != "10.0.0.5" {
		t.Errorf("resolved: got %+v", all)
	}
}

// Contract N.4.
func TestDNSOfPreconfiguredNetworks(t *testing.T) {
	for _, tt := range []struct {
		name string
		nets map[string]settings.Network
		want string
	}{
		{"the only one", map[string]settings.Network{"a": {Preconfigured: true, DNS: []string{"1.1.1.1"}}}, "[1.1.1.1]"},
		{"vip takes part", map[string]settings.Network{
			"a": {Preconfigured: true, DNS: []string{"1.1.1.1"}},
			"v": {Type: "vip", DNS: []string{"2.2.2.2"}, Default: []string{"dns"}},
		}, "[2.2.2.2]"},
		{"vip does not where networks are configured", map[string]settings.Network{
			"a": {DNS: []string{"1.1.1.1"}}, "v": {Type: "vip", DNS: []string{"2.2.2.2"}, Default: []string{"dns"}},
		}, "[1.1.1.1]"},
		{"no default network", map[string]settings.Network{
			"a": {DNS: []string{"1.1.1.1"}}, "b": {DNS: []string{"2.2.2.2"}},
		}, "[]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got, _ := desired.DNS(tt.nets); fmt.Sprint(got) != tt.want {
				t.Errorf("got %v, want %s", got, tt.want)
			}
		})
	}
}

func TestNoNIC(t *testing.T) {
	for name, c := range map[string]struct {
		net  settings.Network
		want bool
	}{
		"missing":                   {manual("10.0.0.5", mac1), true},
		"there, in other notation":  {manual("10.0.0.5", strings.ReplaceAll(mac0, ":", "-")), false},
		"not an address":            {manual("10.0.0.5", "nonsense"), false},
		"vip":                       {settings.Network{Type: "vip", MAC: mac1}, false},
		"alias of a link not there": {with(manual("10.0.0.5", ""), func(n *settings.Network) { n.Alias = "eth9" }), false},
	} {
		_, _, err := desired.Network(map[string]settings.Network{"a": manual("10.0.0.4", mac0), "n": c.net}, machine(1))
		if got := errors.Is(err, desired.ErrNoNIC); got != c.want {
			t.Errorf("%s: got %v, want that a NIC is missing: %v", name, err, c.want)
		}
	}
}

// TestOrderOfAMapDoesNotMatter plans random networks, put into their maps in different orders, and applies each plan to
// the same simulated machine. Contract N.3.
func TestOrderOfAMapDoesNotMatter(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		nets := randomNetworks(random)
		have := machine(1 + random.IntN(4))
		var first []network.Change
		var firstText string
		for try := range 4 {
			shuffled := map[string]settings.Network{}
			names := slices.Collect(maps.Keys(nets))
			random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
			for _, name := range names {
				shuffled[name] = nets[name]
			}
			d, warnings, planErr := desired.Network(shuffled, have)
			changes, diffErr := network.Diff(have, d)
			text := fmt.Sprint(warnings, planErr, diffErr)
			if try == 0 {
				first, firstText = changes, text
				continue
			}
			if !reflect.DeepEqual(changes, first) {
				t.Fatalf("of %+v:\ngot  %v\nwant %v", nets, changes, first)
			}
			if text != firstText {
				t.Fatalf("of %+v: said\n%s\nand\n%s", nets, text, firstText)
			}
		}
	}
}

func randomNetworks(random *rand.Rand) map[string]settings.Network {
	pick := func(of ...string) string { return of[random.IntN(len(of))] }
	nets := map[string]settings.Network{}
	for i := range 1 + random.IntN(6) {
		n := settings.Network{
			Type: pick("manual", "manual", "dynamic", "vip", ""),
			IP: pick("", fmt.Sprintf("10.0.%d.%d", random.IntN(3), 2+random.IntN(20)),
				fmt.Sprintf("fd00::%x", 2+random.IntN(20)), "bad"),
			Netmask: pick("", "255.255.255.0", "255.255.255.255", "ffff:ffff:ffff:ffff::", "255.0.255.0"),
			Gateway: pick("", "10.0.0.1", "10.0.1.1", "fd00::1"),
			MAC:     pick("", mac0, mac1, "52:54:00:00:00:03", "52:54:00:00:00:04"),
			Alias:   pick("", "", "", "eth0", "eth0:1", "eth1:2"),
			DNS:     []string{pick("1.1.1.1", "8.8.8.8")},
			UseDHCP: random.IntN(5) == 0,
		}
		if random.IntN(2) == 0 {
			n.Default = []string{pick("dns", "gateway")}
		}
		for range random.IntN(3) {
			n.Routes = append(n.Routes, settings.Route{Destination: pick("10.8.0.0", "10.9.0.0", "fd08::"),
				Netmask: pick("255.255.0.0", "ffff::"), Gateway: n.Gateway})
		}
		nets[fmt.Sprintf("net%d", i)] = n
	}
	return nets
}

// FuzzNetwork: whatever a CPI sends must result in a plan or an error.
func FuzzNetwork(f *testing.F) {
	f.Add("manual", "10.0.0.5", "255.255.255.0", "10.0.0.1", mac0, "eth0:1", "10.9.0.0", "255.255.0.0")
	f.Add("", "fd00::5%eth0", "ffff::", "fe80::1%x", "5254.0000.0001", "", "0.0.0.0", "0.0.0.0")
	f.Add("dynamic", "::ffff:10.0.0.5", "/24", "::", "-", ":", "::", "128")
	f.Fuzz(func(t *testing.T, kind, ip, mask, gateway, mac, alias, to, toMask string) {
		n := settings.Network{Type: kind, IP: ip, Netmask: mask, Gateway: gateway, MAC: mac, Alias: alias,
			Default: []string{"gateway", "dns"}, DNS: []string{ip},
			Routes: []settings.Route{{Destination: to, Netmask: toMask, Gateway: gateway}}}
		have := machine(2)
		d, _, _ := desired.Network(map[string]settings.Network{"a": n, "b": {MAC: mac, IP: ip, Netmask: mask}}, have)
		for _, l := range d.Links {
			for _, a := range l.Addresses {
				if !a.Prefix.IsValid() || a.Prefix.Addr().Zone() != "" || a.Prefix.Addr().Is4In6() {
					t.Errorf("planned address %v", a)
				}
			}
			for _, r := range l.Routes {
				if !r.To.IsValid() || r.Gateway.Zone() != "" || r.Gateway.Is4() != r.To.Addr().Is4() {
					t.Errorf("planned route %v", r)
				}
			}
		}
		if _, err := network.Diff(have, d); err != nil && !strings.Contains(err.Error(), "network") {
			t.Errorf("error without a network's name: %v", err)
		}
	})
}

// TestAdvice: an error about a network names the key to correct and who writes it.
func TestAdvice(t *testing.T) {
	const ip, mask = "correct networks.a.ip in the settings (from instance_groups[].networks[].static_ips of the manifest",
		"correct networks.a.netmask in the settings (from networks[].subnets[].range of the cloud config)"
	for _, c := range []struct {
		name   string
		net    settings.Network
		advice string
	}{
		{"no such card", manual("10.0.0.2", mac1), "attach the network card with that address " +
			"('ip link' lists those here), or correct networks.a.mac in the settings (written by the CPI)"},
		{"invalid MAC", manual("10.0.0.2", "x"), "correct networks.a.mac in the settings (written by the CPI)"},
		{"invalid address", manual("10.0.0", mac0), ip},
		{"address of loopback", manual("127.0.0.2", mac0), ip},
		{"netmask with a gap", with(manual("10.0.0.2", mac0), func(n *settings.Network) { n.Netmask = "255.0.255.0" }), mask},
		{"netmask of the other family",
			with(manual("10.0.0.2", mac0), func(n *settings.Network) { n.Netmask = "ffff::" }), mask},
	} {
		_, _, err := desired.Network(map[string]settings.Network{"a": c.net}, machine(1))
		if got := advice.Of(err); err == nil || !strings.HasPrefix(got, c.advice) {
			t.Errorf("%s: %v: advice %q, want %q", c.name, err, got, c.advice)
		}
	}
}
