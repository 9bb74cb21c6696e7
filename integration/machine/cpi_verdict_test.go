//go:build machine

package machine

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/lab/iaas"
	"cambium/lab/machine"
)

// TestMachineVerdictOutlivesTheVM: a VM whose first boot fails is deleted, as a Director does; its verdict is in the log
// of that call, and stays in the lab.
func TestMachineVerdictOutlivesTheVM(t *testing.T) {
	t.Parallel()
	c := newCloud(t, fmt.Sprintf("v%d", os.Getpid()))
	sc := c.cid("create_stemcell", stemcellImage(t), map[string]any{})
	c.verdictOutlives(sc, iaas.Container, time.Minute)
}

// verdictOutlives deletes a VM whose boot fails, since its bus has an URL that no agent understands.
func (c *cloud) verdictOutlives(stemcell, engine string, within time.Duration) {
	c.t.Helper()
	const want = "not ready: bus: "
	o := order(stemcell, "10.245.0.9")
	o[2].(map[string]any)["engine"] = engine
	o[5] = map[string]any{"bosh": map[string]any{"mbus": map[string]any{"urls": []string{"gopher://10.245.0.1"}}}}
	vm := c.cid("create_vm", o...)
	c.must("set_vm_metadata", vm, map[string]any{"deployment": "dep", "name": "web/0"})
	dir := filepath.Dir(c.vm(vm).Console)
	eventually.Within(c.t, within, "a verdict on the port", func() error {
		said, err := machine.LastVerdict(dir)
		if err == nil && !strings.HasPrefix(said, want) {
			err = fmt.Errorf("it says %q", said)
		}
		return err
	})
	for range 2 { // a Director repeats a call
		if log := c.call("delete_vm", vm).Log; !strings.Contains(log, "\nlast verdict of the agent: "+want) {
			c.t.Errorf("the log of delete_vm lacks the verdict: %s", log)
		}
	}
	c.must("delete_stemcell", stemcell)
	c.gone()
	out, err := exec.Command(c.lab, "ls", "--deleted", "--json", "--dir", c.dir).Output()
	var listed struct{ Deleted []iaas.DeletedVM }
	if err == nil {
		err = json.Unmarshal(out, &listed)
	}
	if err != nil || len(listed.Deleted) != 1 || listed.Deleted[0].CID != vm ||
		listed.Deleted[0].AgentID != "agent-10.245.0.9" ||
		!strings.HasPrefix(listed.Deleted[0].Verdict, want) || len(listed.Deleted[0].Verdict) >= 1024 {
		c.t.Errorf("lab ls --deleted: %v: %s", err, out)
	}
	text, err := exec.Command(c.lab, "ls", "--deleted", "--dir", c.dir).Output()
	if err != nil || !strings.Contains(string(text), "dep web/0") || !strings.Contains(string(text), "\n  "+want) {
		c.t.Errorf("lab ls --deleted: %v: %s", err, text)
	}
}
