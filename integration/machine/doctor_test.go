//go:build machine

package machine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/internal/testca"
	"cambium/lab"
	"cambium/lab/machine"
)

// diagnosis is what `agent doctor --json` prints.
type diagnosis struct {
	Findings []struct{ Severity, Check, Checked, Found, Do string }
}

// examine runs the doctor in a machine.
func examine(t *testing.T, i *lab.Instance) diagnosis {
	t.Helper()
	var out, complaints bytes.Buffer
	err := i.Run(t.Context(), machine.Command{Args: []string{"/var/vcap/bosh/bin/bosh-agent", "doctor", "--json", "--timeout", "2s"}, Stdout: &out, Stderr: &complaints})
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

// wantStatus waits for what `agent status` shows root: the cause in its words, and no line wider than 80 columns.
func wantStatus(t *testing.T, i *lab.Instance, code int, text string) {
	t.Helper()
	screen := ""
	eventually.Nil(t, "the cause in the status", func() error {
		screen = screenOf(t, i, "root", "status")
		if lacks := missing(screen, code, []string{text}); lacks != "" {
			return fmt.Errorf("it lacks %q:\n%s", lacks, screen)
		}
		return nil
	})
	for line := range strings.Lines(screen) {
		if len([]rune(strings.TrimSpace(line))) > 80 {
			t.Errorf("wider than 80 columns: %s", line)
		}
	}
}

// TestMachineDoctor breaks a machine in thirteen ways, one after the other, and expects the doctor to name the cause first,
// and the status to name it, too. The fourteenth, the clock, needs a kernel of its own: integration/vm.
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
	// The record of the boot goes from init to the first heartbeat.
	eventually.True(t, "the first heartbeat on the timeline", func() bool {
		text := run(t, i, "/var/vcap/bosh/bin/bosh-agent", "timeline", "--width", "120")
		return !slices.ContainsFunc([]string{"init until", "settings", "File /", "persistent-disk", "ready", "bus connected", "first heartbeat"}, func(row string) bool { return !strings.Contains(text, row) })
	})
	startMetricsTimer(t, i)
	t.Run("documented commands", func(t *testing.T) { documentedCommands(t, i) })
	t.Run("hints", func(t *testing.T) { runHints(t, i) })
	sh := func(line string) func() { return func() { t.Helper(); run(t, i, "sh", "-ec", line) } }
	// The document as it is delivered; each change is taken back.
	change := func(path string, value any) func() {
		return func() {
			t.Helper()
			if err := i.Change(t.Context(), func(d lab.Document) { d.Set(path, value) }); err != nil {
				t.Fatal(err)
			}
		}
	}
	var document map[string]any
	if err := i.Change(t.Context(), func(d lab.Document) {
		if err := json.Unmarshal(d.JSON(), &document); err != nil {
			t.Fatal(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	identity := document["env"].(map[string]any)["bosh"].(map[string]any)["mbus"].(map[string]any)["cert"].(map[string]any)
	with := func(member string, value []byte) map[string]any {
		changed := map[string]any{}
		for k, v := range identity {
			changed[k] = v
		}
		changed[member] = string(value)
		return changed
	}
	issued := func(r testca.Request) map[string]any {
		pair, err := l.CA.Issue(r)
		if err != nil {
			t.Fatal(err)
		}
		changed := with("certificate", pair.Certificate)
		changed["private_key"] = string(pair.PrivateKey)
		return changed
	}
	foreign, err := testca.New("another Director's CA")
	if err != nil {
		t.Fatal(err)
	}
	const cert, urls, restart = "env.bosh.mbus.cert", "env.bosh.mbus.urls", "systemctl restart bosh-agent"
	// The agent takes changed settings when it starts.
	restarted := func(breaks func()) func() { return func() { t.Helper(); breaks(); run(t, i, "sh", "-c", restart) } }
	for _, c := range []struct {
		name         string
		breaks, heal func()
		check, want  string // the doctor's first finding
		code         int    // of the status, or soon
		text         string // in the status
		wait         int    // exit code of status --wait: of an agent without its bus 3 or, before it is overdue, 4 (soon)
		metric       string // begins a line of the metrics
	}{
		{"wrong CA", restarted(change(cert, with("ca", foreign.PEM))), change(cert, identity), "bus",
			"CA in the settings", soon, "the agent does not trust the server's certificate", soon, "cambium_bus_connected 0"},
		{"expired certificate", restarted(change(cert, issued(testca.Request{CommonName: testca.BootstrapName(i.AgentID), NotBefore: time.Now().AddDate(0, 0, -9), NotAfter: time.Now().AddDate(0, 0, -2)}))),
			change(cert, identity), "certificate", "expired", soon, "expired", soon, "cambium_bus_connected 0"},
		{"certificate for another agent", restarted(change(cert,
			issued(testca.Request{CommonName: testca.AgentName("another")}))), change(cert, identity), "certificate",
			"belongs to the agent another", soon, "the server does not admit this agent", soon, "cambium_bus_connected 0"},
		{"DNS gone", restarted(change(urls, []string{"nats://director.invalid:4222"})), change(urls,
			[]string{i.MbusURL}), "bus", "director.invalid cannot be resolved by DNS", soon, "lookup director.invalid", soon, "cambium_bus_connected 0"},
		{"port filtered", sh("nft add table inet test; nft 'add chain inet test out { type filter hook output priority 0; }'; nft add rule inet test out tcp dport 4222 drop; " + restart),
			sh("nft delete table inet test; " + restart), "bus", "filtered", soon, "i/o timeout", soon, "cambium_bus_connected 0"},
		{"disk full", sh("fallocate -l 2G /var/vcap/data/full 2>/dev/null || dd if=/dev/zero of=/var/vcap/data/full bs=1M 2>/dev/null || true"), sh("rm /var/vcap/data/full"), "disk space", "no space left on /var/vcap/data", 3, "problem: no space left on /var/vcap/data", 0,
			`cambium_filesystem_free_bytes{path="/var/vcap/data"} 0`},
		{"inodes full", sh("mount -t tmpfs -o nr_inodes=70 tmpfs /tmp; cd /tmp; touch $(seq 60)"), sh("umount /tmp"), "disk space", "no inodes left on /tmp", 3, "problem: no inodes left on /tmp", 0,
			`cambium_filesystem_free_inodes{path="/tmp"} `},
		{"gateway dead", sh("ip route replace default via 10.88.0.254 dev eth0 onlink"), sh("ip route replace default via " + lab.Gateway + " dev eth0"), "gateway", "10.88.0.254 does not answer", 0, "warning: gateway 10.88.0.254 does not answer", 0,
			"cambium_agent_running 1"},
		{"MTU too small", sh("ip link set eth0 mtu 576"), sh("ip link set eth0 mtu 1500"), "MTU", "576", 0, "warning: eth0 has an MTU of 576 bytes", 0,
			"cambium_agent_running 1"},
		{"supervisor down", sh("systemctl stop monit"), sh("systemctl start monit"), "supervisor", "monit does not answer", 3, "problem: the supervisor monit does not answer", 0,
			"cambium_supervisor_up 0"},
		{"persistent disk gone", sh("echo -n disk-9 >/var/vcap/bosh/managed_disk_settings.json"), sh("rm /var/vcap/bosh/managed_disk_settings.json"), "persistent disk", "disk-9", 3, "problem: the persistent disk disk-9 is recorded as mounted and is not", 0,
			`cambium_persistent_disk_mounted{cid="disk-9"} 0`},
		{"agent killed", sh("systemctl kill -s KILL bosh-agent; systemctl stop bosh-agent; cd /root; /var/vcap/bosh/bin/bosh-agent support s.tgz; tar -tzf s.tgz >s.txt; grep -q journal/this-boot.txt s.txt; grep -q timeline.svg s.txt; if tar -xzOf s.tgz | grep 'BEGIN PRIVATE KEY'; then exit 1; fi; /var/vcap/bosh/bin/bosh-agent metrics | grep -q '^cambium_certificate_expiry'"), sh("" + restart), "agent", "not running", 1, "not running since", 1,
			"cambium_agent_running 0"},
		{"settings corrupt", sh("cd /var/vcap/bosh; rm -f settings.json.prev*; echo '{' >settings.json; cp agent-bootstrap-env.json kept; echo '{' >agent-bootstrap-env.json"),
			sh("cd /var/vcap/bosh; cp kept agent-bootstrap-env.json"), "settings files", "settings.json is damaged", 0, "warning: /var/vcap/bosh/settings.json is damaged", 0, "cambium_agent_running 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			begin := time.Now()
			c.breaks()
			defer c.heal()
			d := examine(t, i)
			if first := d.Findings[0]; first.Check != c.check || !strings.Contains(first.Found, c.want) || first.Do == "" {
				t.Errorf("the first finding is %+v, want %s with %q", first, c.check, c.want)
				for _, f := range d.Findings[1:] {
					if f.Severity != "ok" {
						t.Logf("%+v", f)
					}
				}
			}
			wantStatus(t, i, c.code, c.text)
			wantOthers(t, i, c.wait, c.metric)
			t.Logf("%.1f s", time.Since(begin).Seconds())
		})
	}
	wantMetricsFile(t, i)
}

// wantOthers: what waits for an agent and what collects metrics see the fault, too.
func wantOthers(t *testing.T, i *lab.Instance, wait int, metric string) {
	t.Helper()
	if out := "\n" + run(t, i, "agent", "metrics"); !strings.Contains(out, "\n"+metric) {
		t.Errorf("the metrics lack %s:\n%s", metric, out)
	}
	code := strings.TrimSpace(run(t, i, "sh", "-c", "agent status --wait 1s >/dev/null 2>&1; echo $?"))
	if want := fmt.Sprint(wait); code != want && !(wait == soon && (code == "3" || code == "4")) {
		t.Errorf("status --wait ends with %s, want %s", code, want)
	}
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
