//go:build machine

package machine

import (
	"encoding/json"
	"strings"
	"testing"

	"cambium/internal/eventually"
	"cambium/lab"
	"cambium/lab/director"
)

// TestMachineDiskThatDidNotGrow makes a disk with a DOS partition table larger than 2 TiB: status, metrics, log and one
// alert say that its file system does not use it, and what to do, until it is unmounted.
func TestMachineDiskThatDidNotGrow(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	i := start(t, l, lab.VM{Ephemeral: lab.GiB,
		Edit: func(d lab.Document) { d.Set("env.persistent_disk_partitioner", "sfdisk") }})
	ready(t, i)
	mountNew(t, i)
	awaitRoot(t, i, 0, "state: ready")
	if err := i.Resize(t.Context(), "disk-1", 3<<40); err != nil {
		t.Fatal(err)
	}
	texts := []string{"/var/vcap/store is smaller than its disk:", "of 3072.0 GiB are used", "it would cross 2 TiB",
		"attach a new disk and migrate to it"}
	awaitRoot(t, i, 3, texts...) // the kernel's event is enough

	do(t, i, "{}", "mount_disk", "disk-1")
	if err := i.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	ready(t, i)
	awaitScreen(t, i, 3, texts...)
	const metric = `cambium_filesystem_smaller_than_disk{path="/var/vcap/store"} 1`
	if out := run(t, i, "agent", "metrics"); !strings.Contains(out, metric) {
		t.Errorf("the metrics lack %s", metric)
	}
	journal, err := i.Journal(t.Context())
	if err != nil || !strings.Contains(journal, "a file system is smaller than its disk") {
		t.Errorf("the log does not say that the file system is smaller than its disk (%v)", err)
	}
	ids := map[string]int{}
	eventually.True(t, "an alert before the reboot and one after it", func() bool {
		clear(ids)
		for _, e := range l.Monitor.Events() {
			if id, found := shortfallAlert(t, i, e); found {
				ids[id]++
			}
		}
		for _, n := range ids {
			if n > 1 {
				return true
			}
		}
		return false
	})
	if len(ids) != 1 {
		t.Errorf("the alerts have the ids %v, want the same one, so that the Health Monitor drops the second", ids)
	}

	do(t, i, `{"message":"Unmounted partition of disk-1"}`, "unmount_disk", "disk-1")
	awaitScreen(t, i, 0, "state: ready")
	if out := run(t, i, "agent", "metrics"); strings.Contains(out, "cambium_filesystem_smaller_than_disk{") {
		t.Error("the metrics still have a file system that is not mounted")
	}
}

// shortfallAlert returns the id of an alert about the store of a machine.
func shortfallAlert(t *testing.T, i *lab.Instance, e director.Event) (id string, found bool) {
	t.Helper()
	if e.Kind != "alert" || e.Agent != i.AgentID ||
		!strings.Contains(string(e.Body), "/var/vcap/store is smaller than its disk: ") {
		return "", false
	}
	var alert director.Alert
	err := json.Unmarshal(e.Body, &alert)
	if err == nil {
		err = alert.Valid()
	}
	if err != nil {
		t.Errorf("alert %s: %v", e.Body, err)
	}
	return alert.ID, true
}
