//go:build machine

package machine

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"cambium/lab/netns"
)

// onSegment is order with the network on a segment of its own.
func onSegment(stemcell, ip, gateway, segment string) []any {
	o := order(stemcell, ip)
	n := o[3].(map[string]any)["default"].(map[string]any)
	n["gateway"], n["dns"], n["cloud_properties"] = gateway, []string{gateway}, map[string]any{"name": segment}
	return o
}

// bridges are the segments that the IaaS has in the kernel.
func (c *cloud) bridges() []string {
	c.t.Helper()
	found := []string{}
	err := netns.Open(c.runtime()).Do(func() error {
		out, err := exec.Command("ip", "-brief", "link", "show", "type", "bridge").Output()
		for line := range strings.Lines(string(out)) {
			found = append(found, strings.Fields(line)[0])
		}
		return err
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return found
}

// A Director with managed networks moves a range from one network to the next: the segment of the first goes with its
// last VM, and while it is there the range is refused on another.
// Contract C.8.
func TestMachineCPIRangeMovesToAnotherNetwork(t *testing.T) {
	t.Parallel()
	c := newCloud(t, fmt.Sprintf("m%d", os.Getpid()))
	sc := c.cid("create_stemcell", stemcellImage(t), map[string]any{})
	network := func() string {
		definition := map[string]any{"type": "manual", "range": "10.88.55.0/24", "gateway": "10.88.55.1"}
		list, ok := c.must("create_network", definition).([]any)
		if !ok || len(list) != 3 {
			t.Fatalf("create_network: got %v", list)
		}
		return list[0].(string)
	}
	first, second := network(), network()
	old := c.cid("create_vm", onSegment(sc, "10.88.55.5", "10.88.55.1", first)...)
	r := c.call("create_vm", onSegment(sc, "10.88.55.6", "10.88.55.1", second)...)
	if r.Error == nil || !strings.Contains(r.Error.Message, first) || !strings.Contains(r.Error.Message, old) {
		t.Errorf("the range on two segments: got %+v, want an error that names %s and %s", r, first, old)
	}
	c.must("delete_vm", old)
	if left := c.bridges(); len(left) > 0 {
		t.Errorf("without a VM there are the bridges %v", left)
	}
	c.must("delete_network", first)
	vm := c.cid("create_vm", onSegment(sc, "10.88.55.5", "10.88.55.1", second)...)
	c.pong("10.88.55.5", time.Minute)
	c.must("delete_vm", vm)
	c.must("delete_network", second)
	c.must("delete_stemcell", sc)
	c.gone()
}
