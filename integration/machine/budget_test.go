//go:build machine

package machine

import (
	"context"
	"testing"
	"time"

	"cambium/lab"
	"cambium/lab/director"
)

// TestMachineResurrectionBudget: the Health Monitor has the Director recreate a VM whose heartbeats stay away for 60
// seconds, and the Director deletes a new one that does not answer within 600. Slow metadata cost neither: a machine
// that has booted before does not wait for them, and a new one becomes ready as soon as they come.
func TestMachineResurrectionBudget(t *testing.T) {
	t.Parallel() // it mostly waits
	l := newLab(t)
	known := start(t, l, lab.VM{Ephemeral: lab.GiB, Source: lab.HTTP})
	fresh := create(t, l, lab.VM{Ephemeral: lab.GiB, Source: lab.HTTP})
	l.Metadata.Delete(fresh.IP)
	if err := fresh.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	ready(t, known)
	l.Metadata.Delete(known.IP)
	rebooted := time.Now()
	if err := known.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	within, cancel := context.WithTimeout(t.Context(), director.MissedAfter)
	defer cancel()
	beat, err := l.Monitor.Wait(within, rebooted.Add(time.Second),
		func(e director.Event) bool { return e.Kind == "heartbeat" && e.Agent == known.AgentID })
	if err != nil {
		t.Fatalf("no heartbeat within %s of a reboot without metadata: the Health Monitor would have the VM recreated",
			director.MissedAfter)
	}
	t.Logf("heartbeat %s after a reboot without metadata", beat.Time.Sub(rebooted).Round(time.Millisecond))

	// The new one is not on the bus: the Health Monitor knows nothing of it, the Director's pings time out.
	if fresh.Listening() {
		t.Error("an agent without settings is on the bus")
	}
	for _, e := range l.Monitor.Events() {
		if e.Agent == fresh.AgentID {
			t.Errorf("the Health Monitor heard %s of a machine without settings", e.Kind)
		}
	}
	if err := fresh.Change(t.Context(), func(lab.Document) {}); err != nil {
		t.Fatal(err)
	}
	ready(t, fresh)
}
