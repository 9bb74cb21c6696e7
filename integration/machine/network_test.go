//go:build machine

package machine

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/lab"
	"cambium/lab/labtest"
)

// addresses lists the global IPv4 addresses of eth0.
func addresses(t *testing.T, i *lab.Instance) []string {
	t.Helper()
	return strings.Fields(run(t, i, "sh", "-c", "ip -o -4 address show scope global dev eth0 | awk '{print $4}'"))
}

func wantAddresses(t *testing.T, i *lab.Instance, when string, want ...string) {
	t.Helper()
	if got := addresses(t, i); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: eth0 has %q, want %q", when, got, want)
	}
}

// restart starts the agent anew, as after an update of its settings, and waits for its pong.
func restart(t *testing.T, i *lab.Instance) {
	t.Helper()
	begin := time.Now()
	run(t, i, "systemctl", "restart", "bosh-agent.service")
	ready(t, i)
	t.Logf("agent is back after %v", time.Since(begin).Round(time.Millisecond))
}

// wantPlan checks what `agent plan` says of the network, once networkd has been told of the last
// change: a first boot leaves that until after its verdict.
func wantPlan(t *testing.T, i *lab.Instance, want ...string) {
	t.Helper()
	eventually.True(t, fmt.Sprintf("a plan of %q for the network", want), func() bool {
		out, err := i.Output(t.Context(), "/var/vcap/bosh/bin/bosh-agent", "plan", "-C", "/var/vcap/bosh/agent.json",
			"--json")
		var p labtest.PlannedBoot
		if jsonErr := json.Unmarshal([]byte(out), &p); jsonErr != nil {
			t.Fatalf("agent plan: %v, %v: %s", err, jsonErr, out)
		}
		return fmt.Sprint(p.Texts()["network"]) == fmt.Sprint(want)
	})
}

// TestMachineNetworkOfTheAgent follows one machine through changes of its settings: further
// addresses, DHCP and back, a reboot, and an agent that is killed at any moment.
func TestMachineNetworkOfTheAgent(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	i := start(t, l, lab.VM{Ephemeral: 4 * lab.GiB})
	ready(t, i)
	own := i.IP + "/24"
	wantAddresses(t, i, "first boot", own)
	wantPlan(t, i)

	second := func(d lab.Document) {
		d.Set("networks.second", map[string]any{"type": "manual", "ip": "10.88.0.200", "netmask": lab.Netmask,
			"mac": strings.ToUpper(strings.TrimSpace(run(t, i, "cat", "/sys/class/net/eth0/address")))})
	}
	if err := i.Change(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	restart(t, i)
	wantAddresses(t, i, "second network", own, "10.88.0.200/24")
	wantPlan(t, i)

	// The agent is killed while it goes back and forth between the two.
	for n := range 6 {
		if err := i.Change(t.Context(), func(d lab.Document) {
			if second(d); n%2 == 0 {
				delete(d["networks"].(map[string]any), "second")
			}
		}); err != nil {
			t.Fatal(err)
		}
		run(t, i, "systemctl", "restart", "--no-block", "bosh-agent.service")
		time.Sleep(time.Duration(n) * 15 * time.Millisecond) // another moment each time
		run(t, i, "systemctl", "kill", "--signal=SIGKILL", "bosh-agent.service")
	}
	run(t, i, "systemctl", "reset-failed", "bosh-agent.service")
	restart(t, i)
	wantAddresses(t, i, "killed", own, "10.88.0.200/24")

	if err := i.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	ready(t, i)
	wantAddresses(t, i, "reboot", own, "10.88.0.200/24")

	if err := i.Change(t.Context(), func(d lab.Document) {
		delete(d["networks"].(map[string]any),
			"second")
	}); err != nil {
		t.Fatal(err)
	}
	restart(t, i)
	wantAddresses(t, i, "second network gone", own)
	wantPlan(t, i)
}

// TestMachineNetworkByDHCP boots with a source that needs a network first, and a lease.
func TestMachineNetworkByDHCP(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	i := start(t, l, lab.VM{Source: lab.HTTP, Ephemeral: 4 * lab.GiB, Edit: func(d lab.Document) {
		d.Set("networks.default.type", "dynamic")
	}})
	ready(t, i)
	wantAddresses(t, i, "lease", i.IP+"/24")
	if file := run(t, i, "cat", "/etc/systemd/network/10_eth0.network"); !strings.Contains(file, "DHCP=yes") {
		t.Errorf("networkd's file:\n%s", file)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	state, err := i.Agent.Call(ctx, "get_state")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("state: %.200s", state)
}
