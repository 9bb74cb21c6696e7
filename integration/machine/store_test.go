//go:build machine

package machine

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"cambium/integration/lab/release"
)

// TestMachineEmptyStore boots a machine whose store has lost its head: the machine serves, no job is started, and it says why, until
// the disk is repaired and mounted.
func TestMachineEmptyStore(t *testing.T) {
	l := newLab(t)
	m := manifest([]release.Job{forker()}, tool("one"))
	m.Groups[0].PersistentDisk = 256
	i := mustDeploy(t, l, m)
	run(t, i, "sh", "-c", "echo persistent >/var/vcap/store/kept; sync")
	answer, err := i.Agent.Do(t.Context(), "list_disk")
	var cids []string
	if err == nil {
		err = json.Unmarshal(answer, &cids)
	}
	if err != nil || len(cids) != 1 {
		t.Fatalf("list_disk = %s, %v", answer, err)
	}
	run(t, i, "sh", "-ec", `systemctl stop bosh-agent monit
kill -9 $(cat /var/vcap/sys/run/forker/forker.pid) || true
part=$(findmnt -no SOURCE /var/vcap/store); disk=${part%1}; disk=${disk%p}; echo $disk >/root/disk
umount /var/vcap/store
dd if=$disk of=/root/head bs=1M count=2; dd if=/dev/zero of=$disk bs=1M count=2 conv=fsync`)
	if err := i.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	ready(t, i)
	await(t, "the phase without jobs", time.Minute, func() bool { return stateOf(t, i).JobState == "failing" })
	if got, err := i.Agent.Do(t.Context(), "ping"); err != nil || string(got) != `"pong"` {
		t.Errorf("ping = %s, %v", got, err)
	}
	for _, method := range []string{"start", "run_errand"} {
		if got, err := i.Agent.Do(t.Context(), method); err == nil || !strings.Contains(err.Error(), "no job is started") || !strings.Contains(err.Error(), cids[0]) {
			t.Errorf("%s = %s, %v; want an exception with the reason", method, got, err)
		}
	}
	if d := agentStatus(t, i); !slices.ContainsFunc(d.Warnings, func(w string) bool { return strings.HasPrefix(w, "no job is started: ") }) {
		t.Errorf("warnings %q", d.Warnings)
	}
	if got := run(t, i, "sh", "-c", "systemctl is-active monit || true; findmnt /var/vcap/store || echo not mounted"); !strings.Contains(got, "inactive") || !strings.Contains(got, "not mounted") {
		t.Errorf("monit and the store: %s", got)
	}
	if got, err := i.Agent.Do(t.Context(), "mount_disk", cids[0]); err == nil || !strings.Contains(err.Error(), "is refused") {
		t.Errorf("mount_disk of the damaged disk = %s, %v", got, err)
	}
	run(t, i, "sh", "-ec", "dd if=/root/head of=$(cat /root/disk) conv=fsync")
	if _, err := i.Agent.Do(t.Context(), "mount_disk", cids[0]); err != nil {
		t.Fatal(err)
	}
	await(t, "running jobs", time.Minute, func() bool { return stateOf(t, i).JobState == "running" })
	if got := run(t, i, "cat", "/var/vcap/store/kept"); got != "persistent\n" {
		t.Errorf("the store holds %q", got)
	}
	if d := agentStatus(t, i); len(d.Warnings) > 0 {
		t.Errorf("after the repair: warnings %q", d.Warnings)
	}
}
