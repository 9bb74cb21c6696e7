//go:build machine

package machine

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"cambium/internal/eventually"
	"cambium/lab"
	"cambium/lab/machine"
)

// diagnosis is the output of `agent doctor --json`.
type diagnosis struct {
	Findings []struct{ Severity, Check, Checked, Found, Do string }
}

// examine runs the doctor in a machine.
func examine(t *testing.T, i *lab.Instance) diagnosis {
	t.Helper()
	var out, complaints bytes.Buffer
	err := i.Run(t.Context(), machine.Command{Args: []string{"/var/vcap/bosh/bin/bosh-agent", "doctor", "--json",
		"--timeout", "2s"}, Stdout: &out, Stderr: &complaints})
	var d diagnosis
	if decoded := json.Unmarshal(out.Bytes(), &d); decoded != nil || len(d.Findings) == 0 {
		t.Fatalf("doctor: %v: %s%s", errors.Join(err, decoded), out.String(), complaints.String())
	}
	if worst := d.Findings[0].Severity; (worst == "problem" || worst == "warning") != (err != nil) {
		t.Errorf("the worst finding is a %s, and the exit status says %v", worst, err)
	}
	return d
}

// soon is the exit code of a status that changes within the next minute: that of an agent without its bus.
const soon = -1

// TestMachineDoctor looks at a healthy machine: the doctor finds nothing, and documented commands and hints work. What
// it finds in others is in TestMachineFaults.
func TestMachineDoctor(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	i := start(t, l, lab.VM{Ephemeral: lab.GiB})
	ready(t, i)
	// monit begins to listen a moment after the agent is ready.
	eventually.True(t, "a doctor who finds nothing", func() bool {
		first := examine(t, i).Findings[0]
		healthy := first.Severity != "problem" && first.Severity != "warning"
		if !healthy {
			t.Logf("not yet healthy: %+v", first)
		}
		return healthy
	})
	// The record of the boot goes from init to the first heartbeat, and has what was made of the disk.
	rows := []string{"init until", "settings", "File /", "make-file-system /dev/", "persistent-disk", "ready",
		"bus connected", "first heartbeat"}
	eventually.True(t, "the first heartbeat on the timeline", func() bool {
		text := run(t, i, "/var/vcap/bosh/bin/bosh-agent", "timeline", "--width", "120")
		return !slices.ContainsFunc(rows, func(row string) bool { return !strings.Contains(text, row) })
	})
	startMetricsTimer(t, i)
	t.Run("documented commands", func(t *testing.T) { documentedCommands(t, i) })
	t.Run("hints", func(t *testing.T) { runHints(t, i) })
	t.Run("support", func(t *testing.T) { supportWithoutAgent(t, i) })
	wantMetricsFile(t, i)
}

// supportWithoutAgent: archive and metrics do not need a running agent.
func supportWithoutAgent(t *testing.T, i *lab.Instance) {
	t.Helper()
	run(t, i, "sh", "-ec", `systemctl stop bosh-agent; cd /root; agent support s.tgz; tar -tzf s.tgz >s.txt
grep -q journal/this-boot.txt s.txt; grep -q timeline.json s.txt
if tar -xzOf s.tgz | grep 'BEGIN PRIVATE KEY'; then exit 1; fi
agent metrics | grep -q '^cambium_certificate_expiry'; systemctl start bosh-agent`)
}

const metricsFile = "/var/lib/prometheus/node-exporter/cambium.prom"

// startMetricsTimer: the timer is there and off, until it is asked for.
func startMetricsTimer(t *testing.T, i *lab.Instance) {
	t.Helper()
	if out := run(t, i, "sh", "-c", "systemctl is-enabled cambium-metrics.timer; systemctl is-active cambium-metrics.timer; ls "+metricsFile+" 2>&1; true"); !strings.HasPrefix(out, "disabled\ninactive\n") || !strings.Contains(out, "No such file") {
		t.Errorf("the timer of the metrics is not off: %s", out)
	}
	run(t, i, "sh", "-ec", "mkdir -p /var/lib/prometheus/node-exporter; systemctl enable -q --now cambium-metrics.timer")
}

// wantMetricsFile: what the timer writes can be read by node_exporter, which is not root.
func wantMetricsFile(t *testing.T, i *lab.Instance) {
	t.Helper()
	eventually.True(t, "the metrics' file", func() bool {
		out, err := i.Output(t.Context(), "runuser", "-u", "nobody", "--", "cat", metricsFile)
		return err == nil && strings.Contains(out, "\ncambium_certificate_expiry")
	})
}
