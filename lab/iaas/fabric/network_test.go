package fabric

import (
	"encoding/json"
	"strings"
	"testing"
)

func manualNetwork(ip string) Network {
	return Network{Type: Manual, IP: ip, Netmask: "255.255.255.0", Gateway: "10.9.0.1"}
}

func TestPlanOfCards(t *testing.T) {
	grouped := func(ip, group string) Network {
		n := manualNetwork(ip)
		n.NICGroup = json.RawMessage(group)
		return n
	}
	withProperties := func(ip, properties string) Network {
		n := manualNetwork(ip)
		n.Properties = json.RawMessage(properties)
		return n
	}
	for name, c := range map[string]struct {
		given map[string]Network
		cards []string // networks of each, joined
		err   string
	}{
		"one":                  {map[string]Network{"a": manualNetwork("10.9.0.5")}, []string{"a"}, ""},
		"two":                  {map[string]Network{"b": manualNetwork("10.9.0.6"), "a": manualNetwork("10.9.0.5")}, []string{"a", "b"}, ""},
		"a vip has no card":    {map[string]Network{"a": manualNetwork("10.9.0.5"), "v": {Type: VIP, IP: "1.2.3.4"}}, []string{"a"}, ""},
		"a group shares one":   {map[string]Network{"a": grouped("10.9.0.5", "1"), "b": grouped("10.9.0.6", "1"), "c": grouped("10.9.0.7", "2")}, []string{"a b", "c"}, ""},
		"null is no group":     {map[string]Network{"a": grouped("10.9.0.5", "null"), "b": grouped("10.9.0.6", "null")}, []string{"a", "b"}, ""},
		"only a vip":           {map[string]Network{"v": {Type: VIP, IP: "1.2.3.4"}}, nil, "needs a manual or dynamic"},
		"none":                 {nil, nil, "needs a manual or dynamic"},
		"no address":           {map[string]Network{"a": {Type: Manual, Netmask: "255.0.0.0"}}, nil, "no address"},
		"no netmask":           {map[string]Network{"a": {Type: Manual, IP: "10.0.0.1"}}, nil, "netmask"},
		"broken netmask":       {map[string]Network{"a": {Type: Manual, IP: "10.0.0.1", Netmask: "255.0.255.0"}}, nil, "netmask"},
		"netmask of version 6": {map[string]Network{"a": {Type: Manual, IP: "10.0.0.1", Netmask: "ffff::"}}, nil, "netmask"},
		"the gateway's":        {map[string]Network{"a": manualNetwork("10.9.0.1")}, nil, "gateway's"},
		"unknown type":         {map[string]Network{"a": {Type: "warp"}}, nil, "warp"},
		"multicast card":       {map[string]Network{"a": withProperties("10.9.0.5", `{"mac":"01:00:00:00:00:01"}`)}, nil, "no address of a network card"},
		"broken properties":    {map[string]Network{"a": withProperties("10.9.0.5", `[]`)}, nil, "cloud_properties"},
		"group on two segments": {map[string]Network{"a": {Type: Manual, IP: "10.9.0.5", Netmask: "255.255.255.0", NICGroup: json.RawMessage("1"), Properties: json.RawMessage(`{"name":"x"}`)},
			"b": grouped("10.9.0.6", "1")}, nil, "shares a card"},
	} {
		t.Run(name, func(t *testing.T) {
			filled, cards, err := Plan("m", c.given)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("got error %v, want one with %q", err, c.err)
				}
				return
			}
			var got []string
			for _, card := range cards {
				got = append(got, strings.Join(card.Networks, " "))
				for _, name := range card.Networks {
					if filled[name].MAC != card.MAC.String() {
						t.Errorf("network %s has MAC %q, its card %s", name, filled[name].MAC, card.MAC)
					}
				}
			}
			if err != nil || strings.Join(got, ",") != strings.Join(c.cards, ",") {
				t.Errorf("got %v, %v; want %v", got, err, c.cards)
			}
		})
	}
}
