package metrics

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"cambium/cmd/agent/doctor/observe"
	"cambium/internal/status"
)

var line = regexp.MustCompile(`^([a-z_]+)(\{([a-z_]+="([^"\\]|\\.)*",?)+\})? [-+0-9.e]+$`)

func TestWrite(t *testing.T) {
	m := observe.Facts{Superuser: true, Agent: observe.Agent{Running: true, Status: &status.Document{Agent: `1.2 "x"`,
		State: status.Ready, ReadyNS: int64(1500 * time.Millisecond),
		Steps: []status.Step{{Name: "network", Outcome: status.Done, Start: 1, End: 1 + int64(time.Second)}, {Name: "dns", Outcome: status.Running, Start: 1}},
		Marks: []status.Mark{{Name: status.MarkBus, At: int64(time.Second)}}}},
		FileSystems: []observe.FileSystem{{Path: "/", Size: 3 << 30, Free: 1 << 30}},
		Disk:        observe.Disk{CID: "disk-1"},
		Supervisor:  observe.Supervisor{Expected: true, Services: []observe.Service{{Name: "web", State: "running", Monitored: true}}},
		Identity:    observe.Identity{Certificates: []observe.Certificate{{Role: observe.RoleClient, Name: "a", NotAfter: time.Unix(2e9, 0)}}}}
	var out bytes.Buffer
	write(&out, m)
	for _, want := range []string{`cambium_agent_state{cambium_agent_state="ready"} 1`, `cambium_boot_ready_seconds 1.5`, `cambium_boot_step_seconds{step="network",outcome="done"} 1`,
		`cambium_agent_info{version="1.2 \"x\"",agent_id=""} 1`, `cambium_persistent_disk_mounted{cid="disk-1"} 0`, `cambium_job_process_running{name="web",monitored="true"} 1`,
		`cambium_certificate_expiry_timestamp_seconds{role="bus client",name="a"} 2e+09`, `cambium_filesystem_free_bytes{path="/"} 1.073741824e+09`} {
		if !strings.Contains(out.String(), want+"\n") {
			t.Errorf("%s is not in\n%s", want, out.String())
		}
	}
	if !strings.HasSuffix(out.String(), "\n# EOF\n") {
		t.Error("the text has no end")
	}
	family := ""
	for _, l := range strings.Split(strings.TrimSuffix(out.String(), "# EOF\n"), "\n") {
		switch {
		case strings.HasPrefix(l, "# TYPE "):
			family = strings.Fields(l)[2]
		case l != "" && !strings.HasPrefix(l, "# HELP ") && (!line.MatchString(l) || !strings.HasPrefix(l, family)):
			t.Errorf("%q is no sample of %s", l, family)
		}
	}
}

func TestTextfile(t *testing.T) {
	dir := t.TempDir()
	target := filepath.Join(dir, "cambium.prom")
	var out bytes.Buffer
	for range 2 {
		if code := Run(t.Context(), []string{"-b", dir, "--file", filepath.Join(dir, "none"), "--textfile", target}, &out, &out); code != 0 || out.Len() > 0 {
			t.Fatalf("exit code %d: %s", code, out.String())
		}
	}
	if data, err := os.ReadFile(target); err != nil || !strings.Contains(string(data), "cambium_agent_running 0\n") {
		t.Errorf("got %s, %v", data, err)
	}
}

// TestNothingIsMadeUpWithoutRoot: what only root may read has no sample.
func TestNothingIsMadeUpWithoutRoot(t *testing.T) {
	m := observe.Facts{Agent: observe.Agent{Running: true, Status: &status.Document{State: status.Ready, AgentID: "a-1"}},
		Supervisor: observe.Supervisor{Expected: true, Err: "open monit.user: permission denied"}}
	var out bytes.Buffer
	write(&out, m)
	for _, none := range []string{"cambium_supervisor_up ", "cambium_tasks{", "cambium_persistent_disk_mounted{", "cambium_certificate_"} {
		if strings.Contains(out.String(), "\n"+none) {
			t.Errorf("there is a sample %s in\n%s", none, out.String())
		}
	}
	if !strings.Contains(out.String(), `agent_id="a-1"`) {
		t.Error("the agent id is in the status, which everyone may read")
	}
}
