//go:build machine

package machine

import (
	"strings"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/lab"
	"cambium/lab/machine"
	"cambium/lab/release"
)

// TestMachineRebootExplainsItself reboots a machine on request, cuts its power, and leaves the record of a panic: status
// and one alert say why it was away, what came back and what did not. A restart of the agent is not a reboot.
func TestMachineRebootExplainsItself(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	m := manifest([]release.Job{forker()}, tool("one"))
	m.Groups[0].PersistentDisk = 64
	i := mustDeploy(t, l, m)
	run(t, i, "systemctl", "restart", "bosh-agent")
	ready(t, i)
	if screen := screenOf(t, i, "root", "status"); strings.Contains(screen, "reboot:") {
		t.Errorf("the status of a machine that was not rebooted:\n%s", screen)
	}

	const back = "processes: running forker"
	since := time.Now()
	begin := since
	if err := i.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	ready(t, i)
	wantAccount(t, l, i, since, "requested (reboot)", "last seen ", "disks: mounted ", back)
	run(t, i, "systemctl", "restart", "bosh-agent")
	ready(t, i)
	wantScreen(t, i, "vcap", soon, "reboot: ", "requested (reboot)", back) // the same line

	since = time.Now()
	cutPower(t, i)
	wantAccount(t, l, i, since, "nothing was written before it: the power was cut, or the machine was reset", back)

	run(t, i, "mkdir", "-p", "/var/lib/systemd/pstore/1")
	if err := i.WriteFile(machine.File{Path: "/var/lib/systemd/pstore/1/dmesg.txt", Mode: 0o600,
		Data: []byte("<0>[ 9.1] Kernel panic - not syncing: Fatal exception in interrupt\n")}); err != nil {
		t.Fatal(err)
	}
	since = time.Now()
	cutPower(t, i)
	wantAccount(t, l, i, since, "the kernel panicked: Fatal exception in interrupt", back)

	// What has not come back is named, too.
	var cids []string
	if err := i.Agent.Into(t.Context(), &cids, "list_disk"); err != nil || len(cids) != 1 {
		t.Fatalf("list_disk = %q, %v; want one disk", cids, err)
	}
	run(t, i, "sh", "-c", "echo tmpfs /var/vcap/store tmpfs size=50% >>/etc/fstab") // mounted before the agent starts
	since = time.Now()
	cutPower(t, i)
	wantAccount(t, l, i, since, "disks: not mounted "+cids[0], "jobs: withheld")
	if all := rebootAlerts(l, i, begin); len(all) != 4 {
		t.Errorf("%d alerts about four reboots and a restart of the agent: %q", len(all), all)
	}
}

func cutPower(t *testing.T, i *lab.Instance) {
	t.Helper()
	run(t, i, "sync")
	if err := i.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := i.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	ready(t, i)
}

// wantAccount waits for the one alert about a reboot, and compares it and the status with texts.
func wantAccount(t *testing.T, l *lab.Lab, i *lab.Instance, since time.Time, texts ...string) {
	t.Helper()
	var alerts []string
	eventually.True(t, "an alert about the reboot", func() bool {
		alerts = rebootAlerts(l, i, since)
		return len(alerts) > 0
	})
	for _, text := range texts {
		if len(alerts) != 1 || !strings.Contains(alerts[0], text) {
			t.Errorf("alerts %q, want one with %q", alerts, text)
		}
	}
	wantScreen(t, i, "vcap", soon, texts...)
}

// rebootAlerts returns the alerts about reboots.
func rebootAlerts(l *lab.Lab, i *lab.Instance, since time.Time) (alerts []string) {
	for _, e := range l.Monitor.Events() {
		if e.Kind == "alert" && e.Agent == i.AgentID && e.Time.After(since) &&
			strings.Contains(string(e.Body), "the machine was rebooted") {
			alerts = append(alerts, string(e.Body))
		}
	}
	return alerts
}
