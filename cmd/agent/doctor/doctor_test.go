package doctor

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"cambium/cmd/agent/doctor/observe"
	"cambium/internal/status"
	"cambium/mbus/natsbus"
	"cambium/platform/network"
)

var now = time.Date(2026, 11, 16, 12, 0, 0, 0, time.UTC)

// healthy is a machine of which there is nothing to say.
func healthy() observe.Machine {
	year := func(years int) time.Time { return now.AddDate(years, 0, 0) }
	return observe.Machine{
		Time: now, Superuser: true,
		Config: observe.Config{Path: "/var/vcap/bosh/agent.json"},
		Agent: observe.Agent{Running: true, Unit: "active (running)", Status: &status.Document{PID: 17, State: status.Ready, Started: now.Add(-time.Hour),
			Steps: []status.Step{{Name: "settings", Outcome: status.Done}}}},
		Settings: observe.Settings{AgentID: "a-1", From: "HTTP http://169.254.169.254", Addresses: []string{"10.0.0.7"}, DNS: []string{"10.0.0.2"},
			Files: []observe.SettingsFile{{Path: "/var/vcap/bosh/settings.json", Modified: now.Add(-time.Hour)}}},
		Identity: observe.Identity{Needed: true, Certificates: []observe.Certificate{
			{Role: observe.RoleClient, Name: "a-1.agent.bosh-internal", NotBefore: year(-1), NotAfter: year(1)},
			{Role: observe.RoleAuthority, Name: "default.nats-ca.bosh-internal", NotBefore: year(-1), NotAfter: year(5)}}},
		Bus: observe.Bus{URLs: []string{"nats://10.0.0.6:4222"}, Servers: []observe.Server{{Address: "10.0.0.6:4222", Addresses: []string{"10.0.0.6"},
			Name: "default.nats.bosh-internal", NotBefore: year(-1), NotAfter: year(1)}}},
		Clock: observe.Clock{Synchronized: true, Samples: []observe.Sample{{From: "http://10.0.0.6:25250", Offset: time.Second}}},
		Network: observe.Network{State: network.State{Links: []network.Link{{Name: "eth0", NIC: true, Up: true, MTU: 1500,
			Addresses: []network.Address{{Prefix: netip.MustParsePrefix("10.0.0.7/24")}}}}}, Gateways: []observe.Gateway{{Link: "eth0", IP: "10.0.0.1", Answers: true}}},
		FileSystems: []observe.FileSystem{{Path: "/", Size: 3 << 30, Free: 1 << 30, Inodes: 1000, FreeInodes: 900}, {Path: "/run", Size: 100 << 20, Free: 99 << 20, Inodes: 1000, FreeInodes: 900}},
		Disk:        observe.Disk{CID: "disk-1", Mounted: "/dev/sdc1"},
		Supervisor:  observe.Supervisor{Expected: true, Services: []observe.Service{{Name: "web", State: "running", Monitored: true}, {Name: "old", State: "unknown"}}},
	}
}

func TestHealthyMachine(t *testing.T) {
	findings := Diagnose(healthy())
	for _, f := range findings {
		if f.Severity != OK {
			t.Errorf("%s: %s: %s", f.Severity, f.Check, f.Found)
		}
	}
	if len(findings) != len(checks) || exitCode(findings) != 0 {
		t.Errorf("%d findings of %d checks, exit code %d", len(findings), len(checks), exitCode(findings))
	}
}

// TestFirstFinding breaks the machine in every way, with the consequences that the cause has, and expects the
// cause first.
func TestFirstFinding(t *testing.T) {
	server := func(step natsbus.ProbeStep, err string, timeout bool) func(*observe.Machine) {
		return func(m *observe.Machine) {
			s := &m.Bus.Servers[0]
			s.Failed, s.Err, s.Timeout = step, err, timeout
		}
	}
	filtered := server(natsbus.ProbeTCP, "i/o timeout", true)
	for _, c := range []struct {
		name   string
		breaks func(*observe.Machine)
		check  string
		want   string // in what was found
		code   int
	}{
		{"wrong CA", func(m *observe.Machine) {
			server(natsbus.ProbeTLS, "x509: certificate signed by unknown authority", false)(m)
			m.Identity.ChainErr = "x509: certificate signed by unknown authority"
		}, "bus", "CA in the settings", 1},
		{"expired certificate", func(m *observe.Machine) {
			server(natsbus.ProbeTLS, "the server refuses the agent's certificate: remote error", false)(m)
			m.Identity.Certificates[0].NotAfter = now.Add(-time.Hour)
		}, "certificate", "expired on 2026-11-16 11:00 UTC", 1},
		{"certificate for another agent", func(m *observe.Machine) {
			server(natsbus.ProbeSubscription, "permissions violation", false)(m)
			m.Identity.Certificates[0].Name = "a-2.bootstrap.agent.bosh-internal"
		}, "certificate", "belongs to the agent a-2, this one is a-1", 1},
		{"certificate that ends soon", func(m *observe.Machine) { m.Identity.Certificates[0].NotAfter = now.Add(73 * time.Hour) }, "certificate", "in 3 days", 3},
		{"agent that the Director does not know", server(natsbus.ProbeAuthorization, "authorization violation", false), "bus", "refuses", 1},
		{"DNS gone", server(natsbus.ProbeDNS, "lookup director.internal: no such host", false), "bus", "cannot be resolved by DNS", 1},
		{"port filtered", filtered, "bus", "the port is filtered", 1},
		{"port filtered here", func(m *observe.Machine) { filtered(m); m.Drops = []string{"inet filter output (policy drop)"} }, "bus", "inet filter output", 1},
		{"server down", server(natsbus.ProbeTCP, "connection refused", false), "bus", "connection refused", 1},
		{"one server of two down", func(m *observe.Machine) {
			m.Bus.Servers = append(m.Bus.Servers, observe.Server{Address: "10.0.0.8:4222", Failed: natsbus.ProbeTCP, Err: "connection refused"})
		}, "bus", "10.0.0.8", 3},
		{"clock off by a day", func(m *observe.Machine) {
			server(natsbus.ProbeTLS, "x509: certificate has expired or is not yet valid", false)(m)
			m.Identity.Certificates[0].NotAfter = now.Add(-time.Hour)
			m.Clock.Samples[0].Offset = 24 * time.Hour
		}, "clock", "24 hours ahead", 1},
		{"clock behind, and no other machine to ask", func(m *observe.Machine) {
			m.Clock.Samples = nil
			m.Bus.Servers[0].NotBefore = now.Add(time.Hour)
		}, "clock", "the clock is behind", 1},
		{"disk full", func(m *observe.Machine) {
			m.FileSystems[0].Free = 0
			m.Settings.Files[0].Damage = "file is empty"
			m.Agent.Running = false
		}, "disk space", "no space left on /:", 1},
		{"inodes full", func(m *observe.Machine) { m.FileSystems[1].FreeInodes = 0 }, "disk space", "no inodes left on /run", 1},
		{"read-only root", func(m *observe.Machine) { m.FileSystems[0].ReadOnly = true }, "disk space", "read-only", 1},
		{"gateway dead", func(m *observe.Machine) { filtered(m); m.Network.Gateways[0].Answers = false }, "gateway", "10.0.0.1 does not answer", 1},
		{"gateway dead that the bus does not need", func(m *observe.Machine) { m.Network.Gateways[0].Answers = false }, "gateway", "10.0.0.1 does not answer", 3},
		{"no default route", func(m *observe.Machine) { filtered(m); m.Network.Gateways = nil }, "gateway", "no default route", 1},
		{"agent killed", func(m *observe.Machine) { m.Agent.Running, m.Agent.Unit = false, "failed (failed)" }, "agent", "the agent is not running", 1},
		{"agent that never ran", func(m *observe.Machine) { m.Agent = observe.Agent{StatusErr: "no status"} }, "agent", "does not run", 1},
		{"settings corrupt", func(m *observe.Machine) {
			m.Settings = observe.Settings{Err: "no source has settings", Files: []observe.SettingsFile{{Path: "/var/vcap/bosh/settings.json", Damage: "not valid JSON"}}}
			m.Bus, m.Identity = observe.Bus{}, observe.Identity{}
		}, "settings", "settings.json is damaged", 1},
		{"cached copy corrupt", func(m *observe.Machine) { m.Settings.Files[0].Damage = "not valid JSON" }, "settings", "settings.json is damaged", 3},
		{"sources gone", func(m *observe.Machine) { m.Settings.SourcesErr = "no route to host" }, "settings", "the sources do not serve", 3},
		{"no settings", func(m *observe.Machine) {
			m.Settings, m.Bus, m.Identity = observe.Settings{Err: "nothing"}, observe.Bus{}, observe.Identity{}
		}, "settings", "there are no settings", 1},
		{"agent.json broken", func(m *observe.Machine) { m.Config.Err = "agent.json: not valid JSON" }, "agent.json", "not valid JSON", 1},
		{"address missing", func(m *observe.Machine) { filtered(m); m.Network.State.Links[0].Addresses = nil }, "addresses", "10.0.0.7", 1},
		{"persistent disk gone", func(m *observe.Machine) {
			m.Disk.Mounted = ""
			m.Agent.Status.State, m.Agent.Status.Verdict = status.Failed, "persistent-disk: disk-1 not found"
			m.Agent.Status.Steps[0] = status.Step{Name: "persistent-disk", Outcome: status.Broken, Error: "disk-1 not found"}
		}, "persistent disk", "disk-1", 1},
		{"persistent disk unplugged", func(m *observe.Machine) { m.Disk.Gone = true }, "persistent disk", "lost its device", 1},
		{"boot step failed", func(m *observe.Machine) {
			m.Agent.Status.State = status.Failed
			m.Agent.Status.Steps[0] = status.Step{Name: "ephemeral-disk", Outcome: status.Broken, Error: "no disk"}
		}, "boot", "boot step ephemeral-disk failed: no disk", 1},
		{"boot step waits", func(m *observe.Machine) {
			m.Agent.Status.Steps[0] = status.Step{Name: "settings", Outcome: status.Running, Waiting: "http://169.254.169.254"}
		}, "boot", "waits for http", 3},
		{"supervisor down", func(m *observe.Machine) { m.Supervisor.Err = "connection refused" }, "supervisor", "monit does not answer", 1},
		{"job failing", func(m *observe.Machine) { m.Supervisor.Services[0].State = "failing" }, "supervisor", "web failing", 3},
		{"MTU too small", func(m *observe.Machine) { m.Network.State.Links[0].MTU = 576 }, "MTU", "576", 3},
		{"large packets lost", server(natsbus.ProbeTLS, "i/o timeout", true), "MTU", "large packets are lost", 1},
		{"unit failed", func(m *observe.Machine) { m.Units.Failed = []string{"systemd-networkd.service"} }, "units", "systemd-networkd", 3},
		{"not root", func(m *observe.Machine) { m.Superuser = false }, "privileges", "it does not", 3},
		{"two agents", func(m *observe.Machine) { m.Leftovers = []string{"process 9 runs /var/vcap/bosh/bin/bosh-agent"} }, "leftovers", "process 9", 3},
		{"another tool", func(m *observe.Machine) { m.Leftovers = []string{"/etc/netplan/50-cloud-init.yaml"} }, "leftovers", "netplan", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := healthy()
			c.breaks(&m)
			findings := Diagnose(m)
			first := findings[0]
			if first.Check != c.check || !strings.Contains(first.Found, c.want) || exitCode(findings) != c.code {
				t.Errorf("first finding is %s: %s: %s, exit code %d; want %s with %q and %d", first.Severity, first.Check, first.Found, exitCode(findings), c.check, c.want, c.code)
			}
			if first.Checked == "" || first.Do == "" {
				t.Errorf("the finding does not say what was checked and what to do: %+v", first)
			}
			var out bytes.Buffer
			Print(&out, findings, true)
			for _, line := range strings.Split(out.String(), "\n") {
				if len([]rune(line)) > textWidth {
					t.Errorf("%q is longer than %d characters", line, textWidth)
				}
			}
		})
	}
}

func TestWrap(t *testing.T) {
	if got := wrap("one two  three", 7); !slices.Equal(got, []string{"one two", "three"}) {
		t.Errorf("got %q", got)
	}
	if got := wrap("averylongword is", 5); !slices.Equal(got, []string{"averylongword", "is"}) {
		t.Errorf("got %q", got)
	}
}
