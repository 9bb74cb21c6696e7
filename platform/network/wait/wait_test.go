package wait

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"cambium/internal/retry"
	"cambium/platform/network"
)

func prefix(text string) netip.Prefix { return netip.MustParsePrefix(text) }
func addr(text string) netip.Addr     { return netip.MustParseAddr(text) }

func TestMissingAddresses(t *testing.T) {
	static := network.WantLink{Name: "eth0", Addresses: []network.WantAddress{{Prefix: prefix("fd00::5/64"),
		Network: "a"}}}
	for _, tt := range []struct {
		name  string
		have  []network.Address
		await bool
		want  string
		final bool
	}{
		{"absent", nil, false, "is not on eth0", false},
		{"usable", []network.Address{{Prefix: prefix("fd00::5/64")}}, true, "", false},
		{"other prefix length", []network.Address{{Prefix: prefix("fd00::5/48")}}, false, "is not on eth0", false},
		{"tentative, not needed", []network.Address{{Prefix: prefix("fd00::5/64"), Tentative: true}}, false, "", false},
		{"tentative", []network.Address{{Prefix: prefix("fd00::5/64"), Tentative: true}}, true, "still being checked for duplicates", false},
		{"duplicate", []network.Address{{Prefix: prefix("fd00::5/64"), DADFailed: true}}, true, "is used by another machine", true},
	} {
		err := errors.Join(missingAddresses(network.Link{Name: "eth0", Addresses: tt.have}, static, tt.await)...)
		_, final := retry.IsFinal(err)
		if (err != nil) != (tt.want != "") || err != nil && !strings.Contains(err.Error(), tt.want) ||
			final != tt.final {
			t.Errorf("%s: got %v, want %q, final %v", tt.name, err, tt.want, tt.final)
		}
	}
}

func TestMissingLeases(t *testing.T) {
	dynamic := network.Address{Prefix: prefix("10.0.0.9/24"), Dynamic: true}
	for _, tt := range []struct {
		name          string
		have          []network.Address
		want          network.WantLink
		missing, warn string
	}{
		{"none yet", nil, network.WantLink{Leases: []network.WantLease{{Network: "a"}}}, "no DHCP lease on eth0", ""},
		{"any address will do", []network.Address{dynamic}, network.WantLink{Leases: []network.WantLease{{Network: "a"}}}, "", ""},
		{"as asked for", []network.Address{dynamic}, network.WantLink{Leases: []network.WantLease{{Network: "a", IP: addr("10.0.0.9")}}}, "", ""},
		{"another one", []network.Address{dynamic}, network.WantLink{Leases: []network.WantLease{{Network: "a", IP: addr("10.0.0.8")}}}, "", "not 10.0.0.8"},
		{"link-local only", []network.Address{{Prefix: prefix("169.254.0.1/16")}}, network.WantLink{Leases: []network.WantLease{{Network: "a"}}}, "no DHCP lease on eth0", ""},
		{"a static address is not a lease", []network.Address{dynamic},
			network.WantLink{Addresses: []network.WantAddress{{Prefix: dynamic.Prefix}},
				Leases: []network.WantLease{{Network: "a"}}}, "no DHCP lease on eth0", ""},
	} {
		missing, warnings := missingLeases(network.Link{Name: "eth0", Addresses: tt.have}, tt.want, false)
		err, warned := errors.Join(missing...), strings.Join(warnings, "\n")
		if (err != nil) != (tt.missing != "") || err != nil && !strings.Contains(err.Error(), tt.missing) {
			t.Errorf("%s: got %v, want %q", tt.name, err, tt.missing)
		}
		if (warned != "") != (tt.warn != "") || !strings.Contains(warned, tt.warn) {
			t.Errorf("%s: warned %q, want %q", tt.name, warned, tt.warn)
		}
	}
}
