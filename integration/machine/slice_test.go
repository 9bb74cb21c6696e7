//go:build machine

package machine

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/internal/testdoc"
	"cambium/lab"
	"cambium/lab/director"
)

// TestMachineSlice is the thinnest way through everything: agent.json, one source, a static
// address, a blank ephemeral disk, NATS with mutual TLS, pong.
func TestMachineSlice(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	begin := time.Now()
	i := start(t, l, lab.VM{Ephemeral: 10 * lab.GiB})
	ready(t, i)
	t.Logf("from power-on to pong: %v", time.Since(begin).Round(time.Millisecond))

	var links []struct {
		Address  string `json:"address"`
		AddrInfo []struct {
			Local     string `json:"local"`
			PrefixLen int    `json:"prefixlen"`
		} `json:"addr_info"`
	}
	if err := json.Unmarshal([]byte(run(t, i, "ip", "-json", "-4", "address", "show", "dev", "eth0")),
		&links); err != nil {
		t.Fatal(err)
	}
	if len(links) != 1 || len(links[0].AddrInfo) != 1 || links[0].AddrInfo[0].Local != i.IP ||
		links[0].AddrInfo[0].PrefixLen != 24 {
		t.Errorf("eth0 has %+v, want %s/24 alone", links, i.IP)
	}
	if route := run(t, i, "ip", "-4", "route", "show", "default"); !strings.Contains(route,
		"via "+lab.Gateway+" dev eth0") {
		t.Errorf("default route is %q, want via %s dev eth0", route, lab.Gateway)
	}
	mount := strings.Fields(run(t, i, "findmnt", "-n", "-o", "SOURCE,FSTYPE", "/var/vcap/data"))
	device := i.Disks()[0].Path
	if len(mount) != 2 || !strings.HasPrefix(mount[0], device+"p") || mount[1] != "ext4" {
		t.Errorf("/var/vcap/data is %v, want ext4 on a partition of %s", mount, device)
	}
	if _, err := l.Monitor.Wait(t.Context(), begin, func(e director.Event) bool {
		return e.Kind == "heartbeat" && e.Agent == i.AgentID
	}); err != nil {
		t.Errorf("no heartbeat: %v", err)
	}
	// READY=1 follows the first pong.
	eventually.True(t, "active units agent and bosh-agent", func() bool {
		_, err := i.Output(t.Context(), "sh", "-ec",
			"systemctl is-active agent.service; systemctl is-active bosh-agent.service")
		return err == nil
	})
	t.Run("blocks of the pages", func(t *testing.T) { documentedBlocks(t, i) })
}

// documentedBlocks runs the commands of the pages that work in a machine.
func documentedBlocks(t *testing.T, i *lab.Instance) {
	blocks, err := testdoc.Blocks("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range blocks {
		if b.Kind != testdoc.Machine {
			continue
		}
		begin := time.Now()
		if out, err := i.Output(t.Context(), "bash", "-euo", "pipefail", "-c", b.Text); err != nil {
			t.Errorf("%s: %v\n%s", b.Place, err, out)
		}
		t.Logf("%s: %v", b.Place, time.Since(begin).Round(time.Millisecond))
	}
}
