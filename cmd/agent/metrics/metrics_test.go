package metrics

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"cambium/cmd/agent/doctor/observe"
	"cambium/internal/status"
)

// parsed reads a text with node_exporter's parser and fails unless every metric is a gauge with a help text.
func parsed(t *testing.T, text []byte) map[string]*dto.MetricFamily {
	t.Helper()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	for name, f := range families {
		if f.GetType() != dto.MetricType_GAUGE || f.GetHelp() == "" {
			t.Errorf("%s is a %s with the help %q, want a gauge", name, f.GetType(), f.GetHelp())
		}
	}
	return families
}

// TestTheParserThatDropsFiles: node_exporter drops a file with a type that its parser does not know.
func TestTheParserThatDropsFiles(t *testing.T) {
	value := func(d status.Document, name string) float64 {
		t.Helper()
		var out bytes.Buffer
		write(&out, observe.Facts{Superuser: true, Agent: observe.Agent{Running: true, Status: &d, Restarts: 3}})
		f := parsed(t, out.Bytes())[name]
		if f == nil {
			t.Fatalf("there is no %s", name)
		}
		return f.Metric[0].GetGauge().GetValue()
	}
	// Steps are kept of a few tries only.
	again := status.Document{State: status.Starting, Try: 14, Verdict: "ephemeral-disk: absent",
		Tries: make([]status.Try, 6)}
	if got := value(again, "cambium_boot_tries"); got != 14 {
		t.Errorf("%v tries, want 14", got)
	}
	if got := value(again, "cambium_agent_restarts"); got != 3 {
		t.Errorf("%v restarts, want 3", got)
	}
	// An alert must not end with each new try.
	for name, c := range map[string]struct {
		d    status.Document
		want float64
	}{"failed": {status.Document{State: status.Failed, Verdict: "x"}, 1}, "tried again": {again, 1},
		"first try": {status.Document{State: status.Starting}, 0},
		"ready":     {status.Document{State: status.Ready}, 0}} {
		if got := value(c.d, "cambium_boot_failed"); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestWrite(t *testing.T) {
	m := observe.Facts{Superuser: true, Agent: observe.Agent{Running: true, Status: &status.Document{Agent: `1.2 "x"`,
		State: status.Ready, ReadyNS: int64(1500 * time.Millisecond),
		Steps: []status.Step{{Name: "network", Outcome: status.Done, Start: 1, End: 1 + int64(time.Second)},
			{Name: "dns", Outcome: status.Running, Start: 1}},
		Marks: []status.Mark{{Name: status.MarkBus, At: int64(time.Second)}}}},
		FileSystems: []observe.FileSystem{{Path: "/", Size: 3 << 30, Free: 1 << 30}},
		Disk:        observe.Disk{CID: "disk-1"},
		Supervisor: observe.Supervisor{Expected: true,
			Services: []observe.Service{{Name: "web", State: "running", Monitored: true}}},
		Identity: observe.Identity{Certificates: []observe.Certificate{{Role: observe.RoleClient, Name: "a",
			NotAfter: time.Unix(2e9, 0)}}}}
	var out bytes.Buffer
	write(&out, m)
	for _, want := range []string{`cambium_agent_state{state="ready"} 1`, `cambium_boot_ready_seconds 1.5`,
		`cambium_boot_step_seconds{step="network",outcome="done"} 1`,
		`cambium_agent_info{version="1.2 \"x\"",agent_id=""} 1`, `cambium_persistent_disk_mounted{cid="disk-1"} 0`,
		`cambium_job_process_running{name="web",monitored="true"} 1`,
		`cambium_certificate_expiry_timestamp_seconds{role="bus client",name="a"} 2e+09`,
		`cambium_filesystem_free_bytes{path="/"} 1.073741824e+09`} {
		if !strings.Contains(out.String(), want+"\n") {
			t.Errorf("%s is not in\n%s", want, out.String())
		}
	}
	parsed(t, out.Bytes())
}

func TestTextfile(t *testing.T) {
	dir := t.TempDir()
	target := filepath.Join(dir, "cambium.prom")
	var out bytes.Buffer
	for range 2 {
		if code := Run(t.Context(), []string{"-b", dir, "--file", filepath.Join(dir, "none"), "--textfile", target}, &out,
			&out); code != 0 || out.Len() > 0 {
			t.Fatalf("exit code %d: %s", code, out.String())
		}
	}
	if data, err := os.ReadFile(target); err != nil || !strings.Contains(string(data), "cambium_agent_running 0\n") {
		t.Errorf("got %s, %v", data, err)
	}
}

// TestNothingIsMadeUpWithoutRoot: what only root may read has no sample.
func TestNothingIsMadeUpWithoutRoot(t *testing.T) {
	m := observe.Facts{Agent: observe.Agent{Running: true, Status: &status.Document{State: status.Ready,
		AgentID: "a-1"}},
		Supervisor: observe.Supervisor{Expected: true, Err: "open monit.user: permission denied"}}
	var out bytes.Buffer
	write(&out, m)
	for _, none := range []string{"cambium_supervisor_up ", "cambium_tasks{", "cambium_persistent_disk_mounted{",
		"cambium_certificate_"} {
		if strings.Contains(out.String(), "\n"+none) {
			t.Errorf("there is a sample %s in\n%s", none, out.String())
		}
	}
	if !strings.Contains(out.String(), `agent_id="a-1"`) {
		t.Error("the agent id is in the status, which everyone may read")
	}
}

// everything is a machine that has a sample of each metric.
func everything() observe.Facts {
	return observe.Facts{Superuser: true, Agent: observe.Agent{Running: true,
		Status: &status.Document{State: status.Ready, ReadyNS: 1,
			Warnings: []string{"/var/vcap/store" + status.SmallerThanDisk + ": reason"},
			Bus:      &status.Bus{State: status.BusConnected},
			Steps:    []status.Step{{Name: "network", Outcome: status.Done, Start: 1, End: 2}},
			Marks:    []status.Mark{{Name: status.MarkBus, At: 1}},
			Progress: map[string]status.Progress{"migrate_disk": {Text: "copy", Done: 1}}}},
		FileSystems: []observe.FileSystem{{Path: "/", Size: 3 << 30, Free: 1 << 30, Inodes: 200, FreeInodes: 100}},
		Disk:        observe.Disk{CID: "disk-1", Mounted: "/dev/sdc1"},
		Supervisor: observe.Supervisor{Expected: true, Services: []observe.Service{{Name: "web", State: "running",
			Monitored: true}}},
		Identity: observe.Identity{Certificates: []observe.Certificate{{Role: observe.RoleClient, Name: "a",
			NotAfter: time.Now().AddDate(1, 0, 0)}}}}
}

// A file system without a fixed number of inodes has no sample, so that an alert can ask for less than some.
func TestInodesAreThoseOfAFixedNumber(t *testing.T) {
	m := everything()
	m.FileSystems = []observe.FileSystem{{Path: "/btrfs"}, {Path: "/full", Inodes: 70}}
	var out bytes.Buffer
	write(&out, m)
	if text := out.String(); strings.Contains(text, `free_inodes{path="/btrfs"}`) ||
		!strings.Contains(text, `cambium_filesystem_free_inodes{path="/full"} 0`) {
		t.Errorf("the samples of inodes are wrong:\n%s", text)
	}
}

// TestMonitoringNamesMetrics: alerts and dashboard ask for metrics that there are, and the dashboard shows them all.
func TestMonitoringNamesMetrics(t *testing.T) {
	var out bytes.Buffer
	write(&out, everything())
	families := parsed(t, out.Bytes())
	named := map[string]map[string]bool{}
	for _, file := range []string{"alerts.yml", "dashboard.json"} {
		data, err := os.ReadFile(filepath.Join("../../../docs/monitoring", file))
		if err != nil {
			t.Fatal(err)
		}
		named[file] = map[string]bool{}
		for _, name := range regexp.MustCompile(`cambium_[a-z_]+`).FindAllString(string(data), -1) {
			named[file][name] = true
			if families[name] == nil {
				t.Errorf("%s asks for %s, which does not exist", file, name)
			}
		}
	}
	for name := range families {
		if !named["dashboard.json"][name] {
			t.Errorf("the dashboard does not show %s", name)
		}
	}
}
