package bootstrap

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"cambium/settings"
	"cambium/settings/agentjson"
)

func TestMetadataAccess(t *testing.T) {
	for _, c := range []struct {
		name, stemcell, deployment string
		users                      []string
		want                       string
		unknown                    int
	}{
		{"by default", "all", "", nil, "open", 0},
		{"by the stemcell", "root", "", nil, "[192.0.2.1:80 192.0.2.2:80] []", 0},
		{"by the deployment", "all", "root", nil, "[192.0.2.1:80 192.0.2.2:80] []", 0},
		{"the deployment opens it", "root", "all", nil, "open", 0},
		{"users by name and number", "root", "", []string{"root", "1001"}, "[192.0.2.1:80 192.0.2.2:80] [0 1001]", 0},
		{"unknown users", "root", "", []string{"nobody-at-all", "4294967296", "1001"}, "[192.0.2.1:80 192.0.2.2:80] [1001]", 2},
	} {
		m := &Machine{Linux: agentjson.Linux{MetadataAccess: c.stemcell, MetadataUsers: c.users},
			MetadataServers: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:80")}}
		var e settings.Effective
		e.Settings.Env.Bosh.Agent.MetadataAccess = c.deployment
		m.Settings = fixed{e}
		for range 2 {
			m.AsksMetadata(netip.MustParseAddrPort("192.0.2.2:80"))
		}
		got, unknown := m.metadataAccess()
		text := "open"
		if !got.Open {
			text = fmt.Sprint(got.Servers, got.Users)
		}
		if text != c.want || len(unknown) != c.unknown {
			t.Errorf("%s: got %s, %q, want %s and %d unknown users", c.name, text, unknown, c.want, c.unknown)
		}
		if c.unknown > 0 && !slices.ContainsFunc(unknown,
			func(s string) bool { return strings.Contains(s, `"nobody-at-all"`) }) {
			t.Errorf("%s: %q does not name the user", c.name, unknown)
		}
	}
}
