package doctor

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"
	"time"

	"cambium/cmd/agent/doctor/observe"
	"cambium/internal/golden"
	"cambium/internal/status"
	"cambium/mbus/natsbus"
	"cambium/platform/network"
)

var now = time.Date(2026, 11, 16, 12, 0, 0, 0, time.UTC)

// healthy is a machine without findings.
func healthy() observe.Facts {
	year := func(years int) time.Time { return now.AddDate(years, 0, 0) }
	return observe.Facts{
		Time: now, Superuser: true,
		Config: observe.Config{Path: "/var/vcap/bosh/agent.json"},
		Agent: observe.Agent{Running: true, Unit: "active (running)",
			Status: &status.Document{PID: 17, State: status.Ready, Started: now.Add(-time.Hour),
				Steps: []status.Step{{Name: "settings", Outcome: status.Done}}}},
		Settings: observe.Settings{AgentID: "a-1", From: "HTTP http://169.254.169.254",
			Addresses: []observe.OfNetwork{{Network: "default", IP: "10.0.0.7"}},
			DNS:       []observe.OfNetwork{{Network: "default", IP: "10.0.0.2"}},
			Files:     []observe.SettingsFile{{Path: "/var/vcap/bosh/settings.json", Modified: now.Add(-time.Hour)}}},
		Identity: observe.Identity{Needed: true, Certificates: []observe.Certificate{
			{Role: observe.RoleClient, Name: "a-1.agent.bosh-internal", NotBefore: year(-1), NotAfter: year(1)},
			{Role: observe.RoleAuthority, Name: "default.nats-ca.bosh-internal", NotBefore: year(-1), NotAfter: year(5)}}},
		Bus: observe.Bus{URLs: []string{"nats://10.0.0.6:4222"},
			Servers: []observe.Server{{Address: "10.0.0.6:4222", Addresses: []string{"10.0.0.6"},
				Name: "default.nats.bosh-internal", NotBefore: year(-1), NotAfter: year(1)}}},
		Clock: observe.Clock{Synchronized: true,
			Samples: []observe.Sample{{From: "http://10.0.0.6:25250", Offset: time.Second}}},
		Network: observe.Network{State: network.State{Links: []network.Link{{Name: "eth0", NIC: true, Up: true, MTU: 1500,
			Addresses: []network.Address{{Prefix: netip.MustParsePrefix("10.0.0.7/24")}}}}},
			Gateways: []observe.Gateway{{Link: "eth0", IP: "10.0.0.1", Answers: true}}},
		FileSystems: []observe.FileSystem{{Path: "/", Journal: true, Size: 3 << 30, Free: 1 << 30, Inodes: 1000,
			FreeInodes: 900}, {Path: "/run", Size: 100 << 20, Free: 99 << 20, Inodes: 1000, FreeInodes: 900}},
		Disk: observe.Disk{CID: "disk-1", Mounted: "/dev/sdc1"},
		Supervisor: observe.Supervisor{Expected: true,
			Services: []observe.Service{{Name: "web", State: "running", Monitored: true}, {Name: "old", State: "unknown"}}},
	}
}

func nameServersOf(ips ...string) (found []observe.NameServer) {
	for _, ip := range ips {
		found = append(found, observe.NameServer{OfNetwork: observe.OfNetwork{Network: "default", IP: ip}})
	}
	return found
}

// keptBy is a machine with a time daemon and a time server, an hour after the start of its agent.
func keptBy(m *observe.Facts, t observe.TimeDaemon) {
	t.Servers = []string{"10.0.0.9"}
	m.Clock.Time, m.Agent.Status.Steps[0].End = &t, int64(time.Hour)
}

func readOnlyStore(m *observe.Facts) {
	m.FileSystems[0].Path, m.FileSystems[0].ReadOnly = "/var/vcap/store", true
}

// wrongMAC is a machine whose settings name a network card that it does not have: nothing that comes after the network
// step can work.
func wrongMAC(m *observe.Facts) {
	const text = "no link has the MAC 02:00:00:00:be:ef"
	m.Agent.Status.State, m.Agent.Status.Verdict = status.Failed, "network: "+text
	m.Agent.Status.Steps = append(m.Agent.Status.Steps, status.Step{Name: "network", Outcome: status.Broken,
		Error: text},
		status.Step{Name: "supervisor", Outcome: status.Canceled})
	m.Network.State.Links[0].Addresses, m.Network.Gateways = nil, nil
	m.Settings.Gateways = []observe.OfNetwork{{Network: "default", IP: "10.0.0.1"}}
	m.Bus.Servers[0].Failed, m.Bus.Servers[0].Err = natsbus.ProbeTCP, "network is unreachable"
	m.Supervisor.Err = "connection refused"
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
	server := func(step natsbus.ProbeStep, err string, timeout bool) func(*observe.Facts) {
		return func(m *observe.Facts) {
			s := &m.Bus.Servers[0]
			s.Failed, s.Err, s.Timeout = step, err, timeout
		}
	}
	filtered := server(natsbus.ProbeTCP, "i/o timeout", true)
	for _, c := range []struct {
		name   string
		breaks func(*observe.Facts)
		check  string
		want   string // in what was found
		code   int
	}{
		{"wrong CA", func(m *observe.Facts) {
			server(natsbus.ProbeTLS,
				"the agent does not trust the server's certificate: x509: certificate signed by unknown authority",
				false)(m)
			m.Identity.ChainErr = "x509: certificate signed by unknown authority"
		}, "bus", "CA in the settings", 1},
		{"wrong password", func(m *observe.Facts) {
			server(natsbus.ProbeAuthorization, "the server does not admit this agent: authorization violation",
				false)(m)
			m.Bus.Servers[0].Password = true
		}, "bus", "does not accept the user and password of the bus URL", 1},
		{"wrong MAC", wrongMAC, "boot", "boot step network failed: no link has the MAC", 1},
		{"wrong MAC, next try", func(m *observe.Facts) {
			wrongMAC(m)
			d := m.Agent.Status
			d.State, d.Try, d.Tries = status.Starting, 2, []status.Try{{Verdict: d.Verdict, Steps: d.Steps}}
			d.Steps = []status.Step{{Name: "network", Outcome: status.Running, Waiting: "MAC 02:00:00:00:be:ef"},
				{Name: "supervisor", Outcome: status.Pending}}
		}, "boot", "no link has the MAC 02:00:00:00:be:ef", 1},
		{"wrong MAC, first try", func(m *observe.Facts) {
			wrongMAC(m)
			d := m.Agent.Status
			d.State, d.Verdict = status.Starting, ""
			d.Steps = []status.Step{{Name: "network", Outcome: status.Running, Waiting: "MAC 02:00:00:00:be:ef"},
				{Name: "supervisor", Outcome: status.Pending}}
		}, "boot", "is waiting for MAC 02:00:00:00:be:ef", 3},
		{"job stopped by a signal", func(m *observe.Facts) {
			m.Supervisor.Services[0].Stopped, m.Supervisor.Services[0].PID = true, 71
		}, "supervisor", "the process 71 of web is stopped by a signal", 1},
		{"two agents", func(m *observe.Facts) { m.Agent.MainPID, m.Agent.PIDs = 17, []int{17, 99} },
			"agent", "2 agents are running: process 17 is the unit's, and 99 is not", 1},
		{"duplicate address", func(m *observe.Facts) {
			filtered(m)
			m.Network.Duplicates = []string{"address 10.0.0.7 on eth0 " +
				"is also used by the machine with hardware address 02:00:00:00:00:07"}
		}, "duplicate address", "is also used by the machine with hardware address 02:00:00:00:00:07", 1},
		{"large packets are lost", server(natsbus.ProbeTLS, "no answer within 5s", true), "MTU",
			"small packets reach 10.0.0.6:4222, but the TLS handshake gets no answer", 1},
		{"large packets of the agent are lost", server(natsbus.ProbeAuthorization, "no answer within 5s", true), "MTU",
			"small packets reach 10.0.0.6:4222, but the TLS handshake gets no answer", 1},
		{"password changed", func(m *observe.Facts) {
			m.Drift.Changes = []string{"passwords: set password of vcap", "dns: b", "time: c", "hostname: d"}
		}, "drift", "a boot would make these changes: passwords: set password of vcap; dns: b; time: c; and 1 more", 3},
		{"route removed, the bus is on the link", func(m *observe.Facts) {
			m.Network.Gateways, m.Settings.Gateways = nil, []observe.OfNetwork{{Network: "default", IP: "10.0.0.1"}}
		}, "gateway", "there is no default route, although the settings name the gateway 10.0.0.1", 1},
		{"route removed", func(m *observe.Facts) {
			filtered(m)
			m.Network.Gateways, m.Settings.Gateways = nil, []observe.OfNetwork{{Network: "default", IP: "10.0.0.1"}}
		}, "gateway", "there is no default route, although the settings name the gateway 10.0.0.1", 1},
		{"expired certificate", func(m *observe.Facts) {
			server(natsbus.ProbeTLS, "the server does not accept the agent's certificate: remote error", false)(m)
			m.Identity.Certificates[0].NotAfter = now.Add(-time.Hour)
		}, "certificate", "expired on 2026-11-16 11:00 UTC", 1},
		{"certificate for another agent", func(m *observe.Facts) {
			server(natsbus.ProbeSubscription, "permissions violation", false)(m)
			m.Identity.Certificates[0].Name = "a-2.bootstrap.agent.bosh-internal"
		}, "certificate", "belongs to agent a-2, but this is agent a-1", 1},
		{"certificate that ends soon",
			func(m *observe.Facts) { m.Identity.Certificates[0].NotAfter = now.Add(73 * time.Hour) }, "certificate",
			"in 3 days", 3},
		{"agent that the Director does not know", server(natsbus.ProbeAuthorization, "authorization violation", false),
			"bus", "does not authorize the agent", 1},
		{"DNS gone", server(natsbus.ProbeDNS, "lookup director.internal: no such host", false),
			"bus", "cannot be resolved by DNS", 1},
		{"port filtered", filtered, "bus", "the port is filtered", 1},
		{"netmask too wide", func(m *observe.Facts) {
			filtered(m)
			m.Bus.Servers[0].Silent, m.Bus.Servers[0].SilentOn = "10.0.0.0/8", "eth0"
		}, "bus", "no answer from 10.0.0.6:4222 to ARP or neighbor discovery: " +
			"by the netmask it is in the subnet 10.0.0.0/8 of eth0", 1},
		{"netmask too narrow", func(m *observe.Facts) {
			filtered(m)
			m.Settings.Gateways = []observe.OfNetwork{{Network: "default", IP: "10.0.0.1"}}
			m.Network.State.Links[0].Addresses[0].Prefix = netip.MustParsePrefix("10.0.0.7/30")
			m.Network.Gateways[0].Answers = false
		}, "gateway", "gateway 10.0.0.1 does not answer on eth0; it is outside the subnets of that link", 1},
		{"blobstore down", func(m *observe.Facts) {
			m.Blobstore = observe.Blobstore{Provider: "dav", Asked: true, Err: "connection refused"}
		}, "blobstore", "the blobstore (dav) cannot be used: connection refused", 1},
		{"blobstore's password", func(m *observe.Facts) {
			m.Blobstore = observe.Blobstore{Provider: "dav", Asked: true, Refused: true,
				Err: "the server answered 401 Unauthorized"}
		}, "blobstore", "does not accept the user and password", 1},
		{"no DNS server answers", func(m *observe.Facts) { m.NameServers = nameServersOf("10.0.0.2", "10.0.0.3") },
			"DNS", "the DNS server 10.0.0.2 does not answer", 1},
		{"one DNS server of two does not answer", func(m *observe.Facts) {
			m.NameServers = nameServersOf("10.0.0.2", "10.0.0.3")
			m.NameServers[1].Answers = true
		}, "DNS", "the DNS server 10.0.0.2 does not answer", 3},
		{"store frozen", func(m *observe.Facts) { m.Disk.Frozen = true },
			"persistent disk", "the file system of /var/vcap/store is frozen", 1},
		{"store's device silent", func(m *observe.Facts) { m.Disk.Silent = true },
			"persistent disk", "does not answer a read", 1},
		{"store fails", func(m *observe.Facts) { m.Disk.Failing = "read /dev/sdc1: input/output error" },
			"persistent disk", "input/output error", 1},
		{"no time daemon", func(m *observe.Facts) { keptBy(m, observe.TimeDaemon{}) },
			"clock", "no time daemon runs, although the settings name time servers (10.0.0.9)", 3},
		{"time servers do not answer", func(m *observe.Facts) {
			keptBy(m, observe.TimeDaemon{Unit: "chrony.service", Sources: 1})
		}, "clock", "none of the time servers (10.0.0.9) answers chrony.service", 3},
		{"clock not synchronized", func(m *observe.Facts) {
			m.Clock.Synchronized = false
			keptBy(m, observe.TimeDaemon{Unit: "systemd-timesyncd.service", Sources: -1, Reachable: -1})
		}, "clock", "the clock is not synchronized, although systemd-timesyncd.service runs", 3},
		{"plain-text password", func(m *observe.Facts) { m.Settings.PlainPassword = true }, "settings",
			"env.bosh.password is not a hash of crypt(3)", 3},
		{"port filtered here",
			func(m *observe.Facts) { filtered(m); m.Drops = []string{"inet filter output (policy drop)"} }, "bus",
			"inet filter output", 1},
		{"server down", server(natsbus.ProbeTCP, "connection refused", false), "bus", "connection refused", 1},
		{"one server of two down", func(m *observe.Facts) {
			m.Bus.Servers = append(m.Bus.Servers, observe.Server{Address: "10.0.0.8:4222", Failed: natsbus.ProbeTCP,
				Err: "connection refused"})
		}, "bus", "10.0.0.8", 3},
		{"clock off by a day", func(m *observe.Facts) {
			server(natsbus.ProbeTLS, "x509: certificate has expired or is not yet valid", false)(m)
			m.Identity.Certificates[0].NotAfter = now.Add(-time.Hour)
			m.Clock.Samples[0].Offset = 24 * time.Hour
		}, "clock", "24 hours ahead", 1},
		{"clock set, and no other machine to ask", func(m *observe.Facts) {
			m.Clock.Samples, m.Clock.Synchronized, m.Clock.Moved = nil, false, -24*time.Hour
		}, "clock", "set 24 hours behind since the agent started", 3},
		{"clock behind, and no other machine to ask", func(m *observe.Facts) {
			m.Clock.Samples = nil
			m.Bus.Servers[0].NotBefore = now.Add(time.Hour)
		}, "clock", "the clock is behind", 1},
		{"clock a year ahead, and no other machine to ask", func(m *observe.Facts) {
			server(natsbus.ProbeTLS,
				"the agent does not trust the server's certificate: x509: certificate has expired", false)(m)
			m.Clock = observe.Clock{}
			m.Bus.Servers[0].NotAfter, m.Identity.Certificates[0].NotAfter =
				now.AddDate(0, -1, 0), now.AddDate(0, -1, 0)
		}, "clock", "the clock (not synchronized) shows 2026-11-16 12:00 UTC, but the certificate of 10.0.0.6:4222 expired",
			1},
		{"expired server, clock kept", func(m *observe.Facts) {
			server(natsbus.ProbeTLS,
				"the agent does not trust the server's certificate: x509: certificate has expired", false)(m)
			m.Clock.Samples, m.Bus.Servers[0].NotAfter = nil, now.AddDate(0, -1, 0)
		}, "bus", "certificate has expired", 1},
		{"disk full", func(m *observe.Facts) {
			m.FileSystems[0].Free = 0
			m.Settings.Files[0].Damage = "file is empty"
			m.Agent.Running = false
		}, "disk space", "no space left on /:", 1},
		{"inodes full", func(m *observe.Facts) { m.FileSystems[1].FreeInodes = 0 }, "disk space",
			"no inodes left on /run", 1},
		{"read-only root", func(m *observe.Facts) { m.FileSystems[0].ReadOnly = true }, "disk space", "read-only", 1},
		{"read-only store", readOnlyStore, "disk space", "read-only", 1},
		{"gateway dead", func(m *observe.Facts) { filtered(m); m.Network.Gateways[0].Answers = false }, "gateway",
			"10.0.0.1 does not answer", 1},
		{"gateway dead that the bus does not need", func(m *observe.Facts) { m.Network.Gateways[0].Answers = false },
			"gateway", "10.0.0.1 does not answer", 3},
		{"no default route", func(m *observe.Facts) { filtered(m); m.Network.Gateways = nil }, "gateway",
			"no default route", 1},
		{"agent killed", func(m *observe.Facts) { m.Agent.Running, m.Agent.Unit = false, "failed (failed)" },
			"agent", "the agent is not running", 1},
		{"agent stopped by a signal", func(m *observe.Facts) {
			m.Agent.Running, m.Agent.Status.State, m.Agent.Status.Halted = false, status.NotRunning, true
		}, "agent", "process 17 is stopped by a signal", 1},
		{"agent killed by the watchdog", func(m *observe.Facts) {
			m.Agent.Status.Ended, m.Agent.Restarts = &status.End{How: "watchdog, killed by ABRT", At: now}, 1
		}, "agent", "watchdog, killed by ABRT; systemd has restarted the agent once", 0},
		{"agent that never ran", func(m *observe.Facts) { m.Agent = observe.Agent{StatusErr: "no status"} }, "agent",
			"is not running", 1},
		{"settings corrupt", func(m *observe.Facts) {
			m.Settings = observe.Settings{Err: "no source has settings",
				Files: []observe.SettingsFile{{Path: "/var/vcap/bosh/settings.json", Damage: "not valid JSON"}}}
			m.Bus, m.Identity = observe.Bus{}, observe.Identity{}
		}, "settings files", "settings.json is damaged", 1},
		{"cached copy corrupt", func(m *observe.Facts) { m.Settings.Files[0].Damage = "not valid JSON" },
			"settings files", "settings.json is damaged", 3},
		{"settings set aside", func(m *observe.Facts) {
			m.Settings.Files = append(m.Settings.Files,
				observe.SettingsFile{Path: "/var/vcap/bosh/settings.json.corrupt", Aside: true, Modified: now})
		}, "settings files", "was damaged and set aside as /var/vcap/bosh/settings.json.corrupt at 2026-11-16", 0},
		{"settings set aside, and none since", func(m *observe.Facts) {
			m.Settings = observe.Settings{Err: "no source has settings", Files: []observe.SettingsFile{
				{Path: "/var/vcap/bosh/settings.json.corrupt", Aside: true, Modified: now}}}
			m.Bus, m.Identity = observe.Bus{}, observe.Identity{}
		}, "settings files", "was damaged", 1},
		{"sources gone", func(m *observe.Facts) { m.Settings.SourcesErr = "no route to host" }, "settings",
			"the settings sources failed; using", 3},
		{"no settings", func(m *observe.Facts) {
			m.Settings, m.Bus, m.Identity = observe.Settings{Err: "nothing"}, observe.Bus{}, observe.Identity{}
		}, "settings", "there are no settings", 1},
		{"agent.json broken", func(m *observe.Facts) { m.Config.Err = "agent.json: not valid JSON" }, "agent.json",
			"not valid JSON", 1},
		{"address missing", func(m *observe.Facts) { filtered(m); m.Network.State.Links[0].Addresses = nil },
			"addresses", "10.0.0.7", 1},
		{"persistent disk gone", func(m *observe.Facts) {
			m.Disk.Mounted = ""
			m.Agent.Status.State, m.Agent.Status.Verdict = status.Failed, "persistent-disk: disk-1 not found"
			m.Agent.Status.Steps[0] = status.Step{Name: "persistent-disk", Outcome: status.Broken, Error: "disk-1 not found"}
		}, "boot", "boot step persistent-disk failed: disk-1 not found", 1},
		{"persistent disk unplugged", func(m *observe.Facts) { m.Disk.Gone = true }, "persistent disk",
			"lost its device", 1},
		{"boot step failed", func(m *observe.Facts) {
			m.Agent.Status.State = status.Failed
			m.Agent.Status.Steps[0] = status.Step{Name: "ephemeral-disk", Outcome: status.Broken, Error: "no disk",
				Advice: "attach it"}
		}, "boot", "boot step ephemeral-disk failed: no disk", 1},
		{"boot step waits", func(m *observe.Facts) {
			m.Agent.Status.Steps[0] = status.Step{Name: "settings", Outcome: status.Running, Advice: "attach it",
				Waiting: "http://169.254.169.254"}
		}, "boot", "is waiting for http", 3},
		{"jobs withheld", func(m *observe.Facts) {
			m.Agent.Status.State, m.Agent.Status.Warnings = status.Degraded,
				[]string{status.JobsWithheld + ": persistent disk disk-1 is being checked"}
			m.Disk.Mounted, m.Supervisor.Err = "", "connection refused"
		}, "persistent disk", "no job is started: persistent disk disk-1 is being checked", 1},
		{"jobs withheld, something else on the store", func(m *observe.Facts) {
			m.Agent.Status.State = status.Degraded
			m.Agent.Status.Warnings = []string{status.JobsWithheld + ": tmpfs is there"}
			m.Disk.Mounted, m.Supervisor.Err = "tmpfs", "connection refused"
		}, "persistent disk", "no job is started: tmpfs is there", 1},
		{"supervisor down", func(m *observe.Facts) { m.Supervisor.Err = "connection refused" }, "supervisor",
			"monit does not answer", 1},
		{"monit's port taken", func(m *observe.Facts) {
			m.Supervisor.Err, m.Supervisor.PortTaken = `process 7 ("perl") of user 0 has its port 127.0.0.1:2822`, true
		}, "supervisor", `process 7 ("perl") of user 0 has its port`, 1},
		{"job failing", func(m *observe.Facts) {
			m.Supervisor.Services[0].State, m.Supervisor.Services[0].Logs = "failing",
				[]string{"/var/vcap/sys/log/web/web.stderr.log"}
		}, "supervisor", "web failing", 3},
		{"MTU too small", func(m *observe.Facts) { m.Network.State.Links[0].MTU = 576 }, "MTU", "576", 3},
		{"large packets lost", server(natsbus.ProbeTLS, "i/o timeout", true), "MTU", "large packets are lost", 1},
		{"unit failed", func(m *observe.Facts) { m.Units.Failed = []string{"systemd-networkd.service"} }, "units",
			"systemd-networkd", 3},
		{"agent.json broken, not as root", func(m *observe.Facts) {
			m.Superuser, m.Config.Err = false, "agent.json: not valid JSON"
		}, "agent.json", "not valid JSON", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := healthy()
			c.breaks(&m)
			findings := Diagnose(m)
			first := findings[0]
			if first.Check != c.check || !strings.Contains(first.Found, c.want) || exitCode(findings) != c.code {
				t.Errorf("first finding is %s: %s: %s, exit code %d; want %s with %q and %d", first.Severity, first.Check,
					first.Found, exitCode(findings), c.check, c.want, c.code)
			}
			if c.name == "job failing" && !strings.Contains(first.Do, "/var/vcap/sys/log/web/web.stderr.log") {
				t.Errorf("the advice does not name the logs: %s", first.Do)
			}
			if strings.HasPrefix(c.name, "boot step") && !strings.HasPrefix(first.Do, "attach it; ") {
				t.Errorf("the advice is not the step's: %s", first.Do)
			}
			if first.Checked == "" || first.Do == "" {
				t.Errorf("the finding does not say what was checked and what to do: %+v", first)
			}
			m.Runit = true
			for _, f := range Diagnose(m) {
				if f.Check != "units" && (strings.Contains(f.Do, "systemctl") ||
					strings.Contains(strings.ReplaceAll(f.Do, "journalctl --vacuum", ""), "journalctl")) {
					t.Errorf("advice for systemd where runit runs: %s", f.Do)
				}
			}
			for _, f := range findings { // of a boot that fails, systemctl would wait for as long as it does
				if strings.Contains(f.Do, "start the agent") || strings.Contains(f.Do, "start bosh-agent") {
					if !strings.Contains(f.Do, "--no-block bosh-agent") || !strings.Contains(f.Do,
						"'agent status --wait 5m'") {
						t.Errorf("the hint waits without a word: %s", f.Do)
					}
				}
			}
			var out bytes.Buffer
			Print(&out, findings, true)
			for _, line := range strings.Split(out.String(), "\n") {
				if len([]rune(line)) > 80 {
					t.Errorf("wider than 80 columns: %q", line)
				}
			}
		})
	}
}

// TestAdviceNamesKeys: what is to be corrected in the settings has its key, the document, and who writes it.
func TestAdviceNamesKeys(t *testing.T) {
	const (
		netmask = "networks.default.netmask in the settings (from networks[].subnets[].range of the cloud config)"
		gateway = "networks.default.gateway in the settings (from networks[].subnets[].gateway of the cloud config)"
	)
	named := []observe.OfNetwork{{Network: "default", IP: "10.0.0.1"}}
	for _, c := range []struct {
		check  string
		breaks func(*observe.Facts)
		want   string
	}{
		{"gateway", func(m *observe.Facts) { m.Settings.Gateways, m.Network.Gateways[0].Answers = named, false }, gateway},
		{"gateway", func(m *observe.Facts) {
			m.Settings.Gateways, m.Network.Gateways[0].Answers = named, false
			m.Network.State.Links[0].Addresses[0].Prefix = netip.MustParsePrefix("10.0.0.7/30")
		}, netmask},
		{"bus", func(m *observe.Facts) {
			m.Bus.Servers[0].Failed, m.Bus.Servers[0].Silent = natsbus.ProbeTCP, "10.0.0.0/8"
		}, netmask},
		{"addresses", func(m *observe.Facts) { m.Network.State.Links[0].Addresses = nil },
			"networks.default.ip in the settings"},
		{"bus", func(m *observe.Facts) { m.Bus.URLs = nil }, "env.bosh.mbus.urls in the settings (written by the Director"},
	} {
		m := healthy()
		c.breaks(&m)
		findings := Diagnose(m)
		if f := findings[0]; f.Check != c.check || !strings.Contains(f.Do, c.want) {
			t.Errorf("%s: %s: %s; want %s with %s", f.Check, f.Found, f.Do, c.check, c.want)
		}
	}
}

// TestDiagnoseNearby: what status shows needs no other machine, and without root less is said rather than something
// wrong.
func TestDiagnoseNearby(t *testing.T) {
	near := func(superuser bool, breaks func(*observe.Facts)) observe.Facts {
		m := healthy()
		m.Superuser = superuser
		m.Config, m.Bus, m.Units, m.Clock.Samples = observe.Config{}, observe.Bus{}, observe.Units{}, nil
		breaks(&m)
		return m
	}
	for name, c := range map[string]struct {
		breaks     func(*observe.Facts)
		root, user string // the severity, if there is a finding
	}{
		"healthy":         {func(*observe.Facts) {}, "", ""},
		"disk full":       {func(m *observe.Facts) { m.FileSystems[0].Free = 0 }, "problem", "problem"},
		"store read-only": {readOnlyStore, "problem", "problem"},
		"store migrated": {func(m *observe.Facts) {
			readOnlyStore(m)
			m.Agent.Status.Progress = map[string]status.Progress{"migrate_disk": {Text: "copy: 1 files"}}
		}, "", ""},
		"MTU too small": {func(m *observe.Facts) { m.Network.State.Links[0].MTU = 576 }, "warning", "warning"},
		"clock set": {func(m *observe.Facts) { m.Clock = observe.Clock{Moved: 24 * time.Hour} }, "warning",
			"warning"},
		"clock set by daemon": {func(m *observe.Facts) {
			m.Clock = observe.Clock{Moved: 24 * time.Hour,
				Synchronized: true}
		}, "", ""},
		"gateway dead": {func(m *observe.Facts) { m.Network.Gateways[0].Answers = false }, "warning", ""},
		"supervisor down": {func(m *observe.Facts) {
			m.Supervisor = observe.Supervisor{Expected: true, Err: "refused", Unit: "inactive"}
		}, "problem", ""},
		"persistent disk gone": {func(m *observe.Facts) { m.Disk.Mounted = "" }, "problem", ""},
		"settings damaged": {func(m *observe.Facts) { m.Settings.Files[0].Damage = "not valid JSON" }, "warning",
			""},
		"bus unknown": {func(m *observe.Facts) { m.Agent = observe.Agent{StatusErr: "none"} }, "", ""},
	} {
		for superuser, want := range map[bool]string{true: c.root, false: c.user} {
			found := DiagnoseNearby(near(superuser, c.breaks))
			got := ""
			if len(found) > 0 {
				got = string(found[0].Severity)
			}
			if got != want || len(found) > 1 {
				t.Errorf("%s, root %v: %v, want one %s", name, superuser, found, want)
			}
		}
	}
}

// TestOtherUsersAreToldThatTheySeeLess: what only root may look at is neither good nor bad, but not checked.
func TestOtherUsersAreToldThatTheySeeLess(t *testing.T) {
	m := healthy()
	m.Superuser = false
	m.Settings, m.Identity, m.Bus, m.Disk = observe.Settings{Err: "there is no cached copy"}, observe.Identity{},
		observe.Bus{}, observe.Disk{}
	m.Supervisor = observe.Supervisor{Expected: true, Err: "open /var/vcap/monit/monit.user: permission denied"}
	m.Network.Gateways[0].Answers = false
	findings := Diagnose(m)
	if exitCode(findings) != exitWarnings {
		t.Errorf("exit code %d, want %d: not everything is known", exitCode(findings), exitWarnings)
	}
	said := map[string]Severity{}
	for _, f := range findings {
		said[f.Check] = f.Severity
		if f.Severity == Problem || f.Severity == Warning {
			t.Errorf("%s: %s: %s", f.Severity, f.Check, f.Found)
		}
	}
	const forRoot = "settings files,settings,gateway,certificate,bus,firewall,persistent disk,supervisor,drift"
	for _, name := range strings.Split(forRoot, ",") {
		if said[name] != Unchecked {
			t.Errorf("%s is %q, want %q", name, said[name], Unchecked)
		}
	}
	var out bytes.Buffer
	Print(&out, findings, false)
	if text := strings.Join(strings.Fields(out.String()), " "); !strings.Contains(text,
		"not checked (run as root): duplicate address, settings files, settings, gateway, certificate, bus") ||
		strings.Contains(text, "systemctl start monit") || strings.Contains(text, "the bus does not need one") {
		t.Errorf("the screen is\n%s", out.String())
	}
}

// TestOtherUsersAreToldWhatTheStatusTellsEverybody: of the bus and the store, at the top.
func TestOtherUsersAreToldWhatTheStatusTellsEverybody(t *testing.T) {
	for name, c := range map[string]struct {
		bus      status.Bus
		warnings []string
		want     string
		code     int
	}{
		"refused": {status.Bus{State: status.BusRefused, Server: "10.0.0.6:4222", Reason: "expired"}, nil,
			"problem: bus the agent's bus is not connected: refused, 10.0.0.6:4222", 1},
		"lost for long": {status.Bus{State: status.BusLost, Server: "10.0.0.6:4222", Overdue: true, Reason: "i/o timeout"},
			nil,
			"problem: bus the agent's bus is not connected: lost, 10.0.0.6:4222", 1},
		"lost just now": {status.Bus{State: status.BusLost, Server: "10.0.0.6:4222"}, nil,
			"warning: bus the agent's bus is not connected: lost", 3},
		"connected": {status.Bus{State: status.BusConnected}, nil, "unchecked: duplicate address not checked (run as root)",
			3},
		"duplicate": {status.Bus{State: status.BusConnected}, []string{status.DuplicateAddress + ": address 10.0.0.7"},
			"problem: duplicate address duplicate address: address 10.0.0.7", 1},
		"no store": {status.Bus{State: status.BusConnected}, []string{status.JobsWithheld + ": disk-1 is missing"},
			"problem: persistent disk no job is started: disk-1 is missing", 1},
	} {
		m := healthy()
		m.Superuser = false
		m.Agent.Status.Bus, m.Agent.Status.Warnings = &c.bus, c.warnings
		findings := Diagnose(m)
		first := findings[0]
		if got := string(first.Severity) + ": " + first.Check + " " + first.Found; !strings.HasPrefix(got, c.want) ||
			exitCode(findings) != c.code {
			t.Errorf("%s: %s, exit code %d; want %s, %d", name, got, exitCode(findings), c.want, c.code)
		}
		var out bytes.Buffer
		Print(&out, findings, false)
		if !strings.HasSuffix(out.String(), "\n'sudo agent doctor' does the rest\n") {
			t.Errorf("%s: the screen ends otherwise:\n%s", name, out.String())
		}
	}
	m := healthy()
	m.Agent.Status.Bus = &status.Bus{State: status.BusLost, Overdue: true}
	if f := Diagnose(m)[0]; f.Check != "bus" || f.Severity != Problem {
		t.Errorf("root, to whom the servers answer: %+v, want a problem of the bus", f)
	}
}

// TestOtherUsersOfAFailedBoot: what is not checked is not a note because its step has failed.
func TestOtherUsersOfAFailedBoot(t *testing.T) {
	m := healthy()
	wrongMAC(&m)
	m.Superuser = false
	for _, f := range Diagnose(m) {
		if f.Check == "bus" && f.Severity != Unchecked {
			t.Errorf("the bus is %q, want %q", f.Severity, Unchecked)
		}
	}
}

// TestSupervisorHasTimeToStart: monit listens a moment after the agent is ready.
func TestSupervisorHasTimeToStart(t *testing.T) {
	for unit, want := range map[string]Severity{"active": Note, "": Note, "inactive": Problem, "failed": Problem} {
		m := healthy()
		m.Supervisor = observe.Supervisor{Expected: true, Err: "refused", Unit: unit}
		m.Agent.Status.ReadyNS = 1 // Age is 0: it is not a process of this machine
		if got := supervisor(m)[0].Severity; got != want {
			t.Errorf("unit %q just after ready: %s, want %s", unit, got, want)
		}
	}
	m := healthy()
	m.Supervisor = observe.Supervisor{Expected: true, Err: "refused", Unit: "active"}
	if got := supervisor(m)[0].Severity; got != Problem { // ReadyNS is 0: not ready in this process
		t.Errorf("without a recent start: %s, want a problem", got)
	}
}

// TestTheAgentsOwnWorkIsNoProblem: what the agent does at the Director's request is told, and does not degrade the
// machine.
func TestTheAgentsOwnWorkIsNoProblem(t *testing.T) {
	m := healthy()
	m.Disk = observe.Disk{CID: "vol-1"}
	if got := persistentDisk(m)[0].Severity; got != Problem {
		t.Errorf("a disk that is not mounted: %s, want a problem", got)
	}
	m.Agent.Status.Unmounted = "vol-1"
	if got := persistentDisk(m)[0].Severity; got != Note {
		t.Errorf("a disk that unmount_disk took off: %s, want a note", got)
	}
	m.Agent.Running = false
	if got := persistentDisk(m)[0].Severity; got != Problem {
		t.Errorf("the same of an agent that has ended: %s, want a problem", got)
	}
	m = healthy()
	m.Supervisor = observe.Supervisor{Expected: true, Err: "refused", Unit: "inactive"}
	m.Tasks.Running = 1
	if got := supervisor(m)[0].Severity; got != Note {
		t.Errorf("monit during a task: %s, want a note", got)
	}
	m.Supervisor.Unit = "failed"
	if got := supervisor(m)[0].Severity; got != Problem {
		t.Errorf("a failed monit during a task: %s, want a problem", got)
	}
}

// TestScreens keeps what the doctor prints at 80 columns as files; -update writes them.
func TestScreens(t *testing.T) {
	t.Setenv("COLUMNS", "")
	broken := healthy()
	broken.FileSystems[0].Free = 0
	broken.Network.State.Links[0].MTU = 576
	broken.Bus.Servers[0].Failed, broken.Bus.Servers[0].Err, broken.Bus.Servers[0].Timeout = natsbus.ProbeTCP,
		"i/o timeout", true
	broken.Agent.Restarts, broken.Agent.Status.Ended = 1, &status.End{How: "oom-kill, killed by KILL", At: broken.Time}
	for name, c := range map[string]struct {
		machine observe.Facts
		verbose bool
	}{"healthy": {healthy(), false}, "healthy-verbose": {healthy(), true}, "broken": {broken, false}} {
		var out bytes.Buffer
		Print(&out, Diagnose(c.machine), c.verbose)
		golden.Check(t, "doctor-"+name+".txt", out.String())
	}
}
