//go:build machine

package machine

import (
	"strings"
	"testing"

	"cambium/lab/iaas"
)

// All that create-env does, in containers, and in the end nothing is left.
func TestMachineBoshCreateEnv(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "e", iaas.Container)
	if out := e.run("create-env"); !strings.Contains(out, "Compiling package 'web/") {
		t.Errorf("the package was not compiled on the VM:\n%s", out)
	}
	e.answers()
	first := e.vm("").CID
	if out := e.run("create-env"); !strings.Contains(out, "Skipping deploy") || e.vm("").CID != first {
		t.Errorf("create-env without a change did something:\n%s", out)
	}
	e.run("stop-env")
	e.run("start-env")
	e.answers()
	if n := e.starts(); n != 2 {
		t.Errorf("pre-start ran %d times, want 2", n)
	}
	e.run("create-env", "--recreate")
	e.answers()
	second, n := e.vm("").CID, e.starts()
	if second == first || n != 3 {
		t.Errorf("after --recreate the VM is %s (was %s), and the disk knows of %d starts, want 3", second, first, n)
	}
	e.variables["disk_size"] = "2048"
	if out := e.run("create-env"); !strings.Contains(out, "Migrating disk content") {
		t.Errorf("the data did not move to the bigger disk:\n%s", out)
	}
	e.answers()
	if l, _, err := e.client().List(t.Context()); err != nil || len(l.Disks) != 1 || l.Disks[0].Size != 2048 ||
		e.starts() != 4 {
		t.Errorf("disks %+v (%v) with %d starts, want one of 2048 MiB with 4", l.Disks, err, e.starts())
	}
	e.run("delete-env")
	e.gone()
}
