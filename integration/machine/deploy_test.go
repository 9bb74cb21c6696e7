//go:build machine

package machine

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"cambium/lab/labtest"
	"cambium/lab/release"
)

// TestMachineDeploy takes a manifest through the Director's sequences: a new machine, the same
// again with another template and another disk, to which the data moves.
func TestMachineDeploy(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	m := release.WebManifest()
	var steps []string
	report := func(_, step string, took time.Duration, err error) {
		steps = append(steps, step)
		t.Logf("%-26s %6.2f s %v", step, took.Seconds(), err)
	}
	if err := l.Deploy(t.Context(), m, report); err != nil {
		t.Fatal(err)
	}
	i := l.Machines()["web-0"]
	labtest.Explain(t, i)
	if !slices.Contains(steps, "mount_disk") || slices.Contains(steps, "prepare") {
		t.Errorf("steps of a new machine are %v, want mount_disk and not prepare among them", steps)
	}
	if got := l.Blobs.Requests(); got["GET signed"] == 0 {
		t.Errorf("the blobstore saw %v, want packages fetched under signed URLs", got)
	}
	started := run(t, i, "cat", "/var/vcap/store/web/started")

	steps = nil
	m.Groups[0].PersistentDisk *= 2
	m.Groups[0].Jobs[0].Files["config/color"] = "blue\n"
	if err := l.Deploy(t.Context(), m, report); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"prepare", "drain", "stop", "list_disk", "migrate_disk", "apply"} {
		if !slices.Contains(steps, want) {
			t.Errorf("steps of the update are %v, want %s among them", steps, want)
		}
	}
	if color := run(t, i, "cat", "/var/vcap/jobs/web/config/color"); color != "blue\n" {
		t.Errorf("the new template is %q, want blue", color)
	}
	if now := run(t, i, "cat", "/var/vcap/store/web/started"); !strings.HasPrefix(now, started) ||
		strings.Count(now, "\n") != 2 {
		t.Errorf("the new disk has %q, want the line of the old one and a second", now)
	}
	if disks := i.Disks(); len(disks) != 2 {
		t.Errorf("attached are %v, want the ephemeral and the new disk", disks)
	}
	within, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := i.Agent.WaitRunning(within, 0); err != nil {
		t.Error(err)
	}
	list, err := i.Agent.Do(t.Context(), "list_disk")
	var cids []string
	if err == nil {
		err = json.Unmarshal(list, &cids)
	}
	if err != nil || len(cids) != 1 {
		t.Fatalf("list_disk: %s, %v; want one disk", list, err)
	}
	cancelsDisks(t, i, cids[0])
}
