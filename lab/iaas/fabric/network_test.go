package fabric

import (
	"encoding/json"
	"strings"
	"testing"
)

// manual is a network in JSON, with more keys.
func manual(ip, more string) string {
	return `{"type":"manual","ip":"` + ip + `","netmask":"255.255.255.0","gateway":"10.9.0.1"` + more + `}`
}

func TestPlanOfCards(t *testing.T) {
	const vip = `{"type":"vip","ip":"1.2.3.4"}`
	one, two, three := manual("10.9.0.5", ""), manual("10.9.0.6", ""), manual("10.9.0.7", `,"nic_group":2`)
	pair := func(more, moreOfB string) string {
		return `"a":` + manual("10.9.0.5", more) + `,"b":` + manual("10.9.0.6", moreOfB)
	}
	group := pair(`,"nic_group":1`, `,"nic_group":1`)
	segments := pair(`,"nic_group":1,"cloud_properties":{"name":"x"}`, `,"nic_group":1`)
	with := func(properties string) string {
		return `{"a":` + manual("10.9.0.5", `,"cloud_properties":`+properties) + `}`
	}
	for name, c := range map[string]struct {
		given string   // JSON
		cards []string // networks of each, joined
		err   string
	}{
		"one":                  {`{"a":` + one + `}`, []string{"a"}, ""},
		"without a type":       {`{"a":{"ip":"10.0.0.5","netmask":"255.0.0.0"}}`, []string{"a"}, ""},
		"two":                  {`{"b":` + two + `,"a":` + one + `}`, []string{"a", "b"}, ""},
		"a vip has no card":    {`{"a":` + one + `,"v":` + vip + `}`, []string{"a"}, ""},
		"a group shares one":   {`{` + group + `,"c":` + three + `}`, []string{"a b", "c"}, ""},
		"a group with a name":  {`{` + pair(`,"nic_group":"x"`, `,"nic_group":"x"`) + `}`, []string{"a b"}, ""},
		"null is not a group":  {`{` + pair(`,"nic_group":null`, `,"nic_group":null`) + `}`, []string{"a", "b"}, ""},
		"only a vip":           {`{"v":` + vip + `}`, nil, "needs a manual or dynamic"},
		"none":                 {`null`, nil, "needs a manual or dynamic"},
		"no address":           {`{"a":{"type":"manual","netmask":"255.0.0.0"}}`, nil, "no ip"},
		"no netmask":           {`{"a":{"type":"manual","ip":"10.0.0.1"}}`, nil, "netmask"},
		"broken netmask":       {`{"a":{"type":"manual","ip":"10.0.0.1","netmask":"255.0.255.0"}}`, nil, "netmask"},
		"netmask of version 6": {`{"a":{"type":"manual","ip":"10.0.0.1","netmask":"ffff::"}}`, nil, "netmask"},
		"the gateway's":        {`{"a":` + manual("10.9.0.1", "") + `}`, nil, "is also the gateway"},
		"unknown type":         {`{"a":{"type":"warp"}}`, nil, "warp"},
		"address with a zone":  {`{"a":` + manual("fe80::1%/../x", "") + `}`, nil, "zone"},
		"multicast card":       {with(`{"mac":"01:00:00:00:00:01"}`), nil, "not an address of a network card"},
		"one card twice": {`{` + pair(`,"cloud_properties":{"mac":"02:00:00:00:00:01"}`,
			`,"cloud_properties":{"name":"x","mac":"02:00:00:00:00:01"}`) + `}`, nil, "another card"},
		"broken properties":     {with(`[]`), nil, "cannot unmarshal array"},
		"group on two segments": {`{` + segments + `}`, nil, "shares a card"},
	} {
		t.Run(name, func(t *testing.T) {
			var given, filled Networks
			var cards []Card
			err := json.Unmarshal([]byte(c.given), &given)
			if err == nil {
				filled, cards, err = Plan("m", given)
			}
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("got error %v, want one with %q", err, c.err)
				}
				return
			}
			var got []string
			for _, card := range cards {
				var names []string
				for _, name := range card.Networks {
					names = append(names, name.String())
					if filled[name].MAC.String() != card.MAC.String() {
						t.Errorf("network %s has MAC %q, its card %s", name, filled[name].MAC, card.MAC)
					}
				}
				got = append(got, strings.Join(names, " "))
			}
			if err != nil || strings.Join(got, ",") != strings.Join(c.cards, ",") {
				t.Errorf("got %v, %v; want %v", got, err, c.cards)
			}
		})
	}
}
