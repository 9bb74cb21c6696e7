package bootstrap

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"cambium/platform/network"
)

// TestTableIsSoundAndDocumented compares the table with the one in docs/operating.md, row by row.
func TestTableIsSoundAndDocumented(t *testing.T) {
	steps := Steps(&Machine{})
	page, err := os.ReadFile("../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## Boot\n")
	section, _, _ = strings.Cut(section, "\n### ")
	var documented []string
	for _, line := range strings.Split(section, "\n") {
		if strings.HasPrefix(line, "| `") && strings.Count(line, "|") == 5 {
			cells := strings.Split(line, "|")
			documented = append(documented, strings.Trim(cells[1], " `")+"|"+strings.TrimSpace(cells[2])+"|"+strings.TrimSpace(cells[3]))
		}
	}
	for i, s := range steps {
		kind := "fatal"
		switch {
		case s.Background:
			kind = "background"
		case s.Optional:
			kind = "warn"
		}
		want := fmt.Sprintf("%s|%s|%s", s.Name, strings.Join(s.Needs, ", "), kind)
		if i >= len(documented) || documented[i] != want {
			t.Errorf("row %d of docs/operating.md: want %q", i+1, want)
		}
		if s.Deadline == 0 && s.Name != "settings" {
			t.Errorf("%s has no deadline", s.Name)
		}
		if s.Wants == nil && s.Plan == nil && s.Name != "bus" {
			t.Errorf("%s does not say what it would change", s.Name)
		}
	}
	if len(documented) != len(steps) {
		t.Errorf("docs/operating.md has %d rows, the table %d", len(documented), len(steps))
	}
}

func TestWhatANetworkWaitsForIsNamed(t *testing.T) {
	leased := network.WantLink{Name: "eth0", Leases: []network.WantLease{{Network: "a"}}}
	for want, links := range map[string][]network.WantLink{
		"an address from DHCP on eth0":       {leased, {Name: "eth1"}},
		"addresses and routes on eth1, eth2": {{Name: "eth1"}, {Name: "eth2"}},
		"the network":                        nil,
	} {
		if got := awaitedOf(network.Desired{Links: links}); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
