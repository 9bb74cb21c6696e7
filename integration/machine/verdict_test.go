//go:build machine

package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/internal/status"
	"cambium/lab"
	"cambium/lab/director"
	"cambium/lab/machine"
)

// verdictCase is a machine whose boot fails.
type verdictCase struct {
	name   string
	ci     bool // part of TestMachineVerdict: the others differ from one of those only in what fails
	vm     lab.VM
	want   string                              // in the verdict
	bus    bool                                // the network is up, so the Director gets the reason
	waits  bool                                // it gives up only after a while
	late   bool                                // what is missing may be late: first the Director gets "restarting agent"
	before func(t *testing.T, i *lab.Instance) // the verdict
	then   func(t *testing.T, i *lab.Instance)
}

func verdictCases() []verdictCase {
	return []verdictCase{
		{name: "no ephemeral disk named", ci: true, want: "No ephemeral disk found", bus: true},
		{name: "bus certificate that is invalid", ci: true,
			vm: withSetting("env.bosh.mbus.cert.certificate", "nonsense"), want: "certificate"},
		{name: "bus that is invalid", vm: withSetting("env.bosh.mbus.urls", []string{"gopher://10.88.0.1"}), want: "bus"},
		{name: "spec that is invalid", vm: withFile("/var/vcap/bosh/spec.json", "{"), want: "job-directories", bus: true},
		{name: "file where a directory belongs", vm: withFile("/var/vcap/instance", "mine"), want: "/var/vcap/instance",
			bus: true},
		{name: "supervisor that does not start", want: "monit", bus: true, vm: lab.VM{Ephemeral: lab.GiB,
			Files: []machine.File{dropIn("monit", "ExecStartPre=/bin/false")}}},
		{name: "kernel without IPv6", want: "without IPv6", bus: true, vm: lab.VM{Ephemeral: lab.GiB,
			Edit:  func(d lab.Document) { d.Set("env.bosh.ipv6.enable", true) },
			Files: []machine.File{dropIn("bosh-agent", "ExecStartPre=/bin/mount -t tmpfs tmpfs /proc/sys/net/ipv6")}}},
		{name: "start configuration that is invalid", ci: true, vm: lab.VM{Ephemeral: lab.GiB, AgentJSON: []byte("{")},
			want: "agent.json", then: healsWithConfiguration},
		{name: "settings that are not JSON", waits: true, vm: lab.VM{Source: lab.HTTP,
			Settings: []byte(`{"agent_id": "a-b-c", `)}, want: "not valid JSON"},
		{name: "settings without an agent id", waits: true, want: "agent_id",
			vm: lab.VM{Source: lab.HTTP, Edit: func(d lab.Document) { delete(d, "agent_id") }}},
		{name: "settings with a wrong type", waits: true, want: "disks.persistent",
			vm: lab.VM{Source: lab.HTTP, Edit: func(d lab.Document) { d.Set("disks.persistent", "none") }}},
		{name: "no source", ci: true, waits: true, want: "/nowhere/settings.json",
			vm:     lab.VM{Ephemeral: lab.GiB, AgentJSON: fileSource("/nowhere/settings.json")},
			before: wantWaiting, then: healsWithSettings},
		{name: "unknown hardware address", ci: true, waits: true, vm: lab.VM{Ephemeral: lab.GiB, Edit: func(d lab.Document) {
			d.Set("networks.other", map[string]any{"type": "manual", "ip": "10.89.0.7", "netmask": "255.255.255.0",
				"mac": "02:00:00:00:be:ef"})
		}}, want: "other", bus: true},
		{name: "missing raw ephemeral disk on vSphere", ci: true, waits: true, want: "raw ephemeral disks", late: true,
			vm: lab.VM{Ephemeral: lab.GiB, Source: lab.GuestInfo, Edit: func(d lab.Document) {
				d.Set("disks.raw_ephemeral", []any{map[string]any{"path": "/dev/nowhere"}})
			}}, then: wantGuestInfo},
		{name: "missing ephemeral disk", ci: true, waits: true, want: "No ephemeral disk found", bus: true, late: true,
			vm:     lab.VM{Edit: func(d lab.Document) { d.Set("disks.ephemeral", "/dev/nowhere") }},
			before: wantHeldPings},
	}
}

// withSetting returns a machine whose settings have value at path.
func withSetting(path string, value any) lab.VM {
	return lab.VM{Ephemeral: lab.GiB, Edit: func(d lab.Document) { d.Set(path, value) }}
}

// withFile returns a machine on which the file exists before the first boot.
func withFile(path, content string) lab.VM {
	return lab.VM{Ephemeral: lab.GiB, Files: []machine.File{{Path: path, Data: []byte(content), Mode: 0o600}}}
}

// fileSource returns an agent.json whose only settings source is the file at path.
func fileSource(path string) []byte {
	return fmt.Appendf(nil, `{"Infrastructure":{"Settings":{"Sources":[{"Type":"File","SettingsPath":%q}]}}}`, path)
}

// TestMachineVerdict makes fatal steps fail and looks for the reason wherever an operator may; TestNightlyVerdicts has
// more of them.
func TestMachineVerdict(t *testing.T) {
	t.Parallel()
	verdicts(t, func(c verdictCase) bool { return c.ci })
}

// verdicts runs the chosen cases. The machines that wait for something are started first and looked at last, the others
// one by one meanwhile: not more than a few run at a time, since the kernel counts what all of them watch.
func verdicts(t *testing.T, chosen func(verdictCase) bool) {
	l := newLab(t)
	begin := time.Now()
	var cases []verdictCase
	for _, c := range verdictCases() {
		if chosen(c) {
			cases = append(cases, c)
		}
	}
	instances := map[string]*lab.Instance{}
	for _, c := range cases {
		if c.waits {
			instances[c.name] = start(t, l, c.vm)
		}
		if c.before != nil {
			t.Run("before the verdict: "+c.name, func(t *testing.T) { c.before(t, instances[c.name]) })
		}
	}
	for _, c := range cases {
		if c.late { // for lateDiskGrace
			t.Run("restarting: "+c.name, func(t *testing.T) { wantRestarting(t, l, instances[c.name], c.want) })
		}
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			i := instances[c.name]
			if i == nil {
				i = start(t, l, c.vm)
			}
			if c.bus {
				wantVerdictOnBus(t, l, i, begin, c.want)
			}
			wantVerdict(t, i, c.want)
			if c.then != nil {
				c.then(t, i)
			}
			if err := i.Delete(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// dropIn adds a line to a service of the machine.
func dropIn(service, line string) machine.File {
	return machine.File{Path: "/etc/systemd/system/" + service + ".service.d/test.conf",
		Data: []byte("[Service]\n" + line + "\n"), Mode: 0o644}
}

// wantWaiting: before there is a verdict, a machine without settings says what it waits for.
func wantWaiting(t *testing.T, i *lab.Instance) {
	t.Helper()
	const want = "/nowhere/settings.json"
	eventually.True(t, "the console to say what is waited for", func() bool {
		console, _ := os.ReadFile(i.Console())
		return containsLine(string(console), "bosh-agent: waiting: ", want)
	})
	eventually.True(t, "systemd to say what is waited for", func() bool {
		text := run(t, i, "systemctl", "show", "-P", "StatusText", "bosh-agent")
		return strings.HasPrefix(text, "settings: waiting for settings: ") && strings.Contains(text, want)
	})
	if d := agentStatus(t, i); d.State != status.Starting || !strings.Contains(fmt.Sprint(d.Steps), want) {
		t.Errorf("status: %s, steps %v; want it to be starting and to name %s", d.State, d.Steps, want)
	}
}

// healsWithSettings: the sources are asked on after the verdict.
func healsWithSettings(t *testing.T, i *lab.Instance) {
	t.Helper()
	run(t, i, "sh", "-c", "mkdir /nowhere && cp /var/vcap/bosh/agent-bootstrap-env.json /nowhere/settings.json")
	ready(t, i)
	if d := agentStatus(t, i); d.State != status.Ready || d.Verdict != "" {
		t.Errorf("with settings the machine is %s %q, want ready", d.State, d.Verdict)
	}
}

// healsWithConfiguration: an agent that cannot start does not end before there is a reason to, and then starts at once.
func healsWithConfiguration(t *testing.T, i *lab.Instance) {
	t.Helper()
	// One that exits at once is started ten times a second; this one waits for half a minute.
	got := strings.TrimSpace(run(t, i, "systemctl", "show", "-P", "NRestarts", "bosh-agent"))
	if n, err := strconv.Atoi(got); err != nil || n > 4 {
		t.Errorf("an agent that cannot start was started again %s times, want it to wait", got)
	}
	source := fileSource("/var/vcap/bosh/agent-bootstrap-env.json")
	run(t, i, "sh", "-c", "printf '"+string(source)+"' > /var/vcap/bosh/agent.json")
	ready(t, i)
}

// wantVerdictOnBus looks at what a Director and its Health Monitor hear: the Director's own wait
// must end with the cause, as its task output will show it.
func wantVerdictOnBus(t *testing.T, l *lab.Lab, i *lab.Instance, since time.Time, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	err := i.Ready(ctx)
	var exception *director.Exception
	if !errors.As(err, &exception) || !strings.Contains(exception.Message, want) ||
		strings.HasPrefix(exception.Message, "restarting agent") {
		t.Errorf("the Director's wait ends with %v, want an exception with %q", err, want)
	}
	if _, err := l.Monitor.Wait(ctx, since, func(e director.Event) bool {
		return e.Kind == "alert" && e.Agent == i.AgentID && strings.Contains(string(e.Body), want)
	}); err != nil {
		t.Errorf("no alert with the reason: %v", err)
	}
	wantNoHeartbeat(t, l, i, since)
}

// wantRestarting checks that pings are answered with "restarting agent" and the name of the missing disk as long as the
// disk may still come. A Director deletes the VM once it gets a verdict.
func wantRestarting(t *testing.T, l *lab.Lab, i *lab.Instance, want string) {
	t.Helper()
	asking := *i.Agent
	asking.Timeout = 2 * time.Second
	eventually.True(t, "a ping that is answered with restarting agent and "+want, func() bool {
		_, err := asking.Call(t.Context(), "ping")
		var exception *director.Exception
		if !errors.As(err, &exception) {
			return false
		}
		if !strings.HasPrefix(exception.Message, "restarting agent: ") {
			t.Fatalf("a ping is answered with %q, want restarting agent", exception.Message)
		}
		return strings.Contains(exception.Message, want)
	})
	for _, e := range l.Monitor.Events() {
		if e.Kind == "alert" && e.Agent == i.AgentID {
			t.Errorf("an alert before the verdict: %s", e.Body)
		}
	}
}

func wantNoHeartbeat(t *testing.T, l *lab.Lab, i *lab.Instance, since time.Time) {
	t.Helper()
	for _, e := range l.Monitor.Events() {
		if e.Kind == "heartbeat" && e.Agent == i.AgentID && e.Time.After(since) {
			t.Error("an agent that is not ready sent a heartbeat")
		}
	}
}

// wantVerdict looks into every channel of the machine itself.
func wantVerdict(t *testing.T, i *lab.Instance, want string) {
	t.Helper()
	d := settled(t, i, 3*time.Minute)
	if d.State != status.Failed || !strings.Contains(d.Verdict, want) || !d.First {
		t.Errorf("status: %s, first %v, %q; want failed with %q", d.State, d.First, d.Verdict, want)
	}
	// The status is written first; the other channels follow.
	eventually.True(t, "an ERROR line with App setup in the journal", func() bool {
		journal, err := i.Journal(t.Context())
		return err == nil && containsLine(journal, "ERROR", "App setup", want)
	})
	eventually.True(t, "the verdict on the console", func() bool {
		console, _ := os.ReadFile(i.Console())
		return containsLine(string(console), "bosh-agent: not ready", want)
	})
	eventually.True(t, "the verdict in systemd's status", func() bool {
		return strings.Contains(run(t, i, "systemctl", "show", "-p", "StatusText", "bosh-agent"), want)
	})
	// While the boot is retried, it is another status.
	eventually.True(t, "agent status with the verdict and status 1", func() bool {
		out := run(t, i, "sh", "-c", "agent status; echo status $?")
		return strings.Contains(strings.Join(strings.Fields(out), " "), want) && strings.Contains(out, "status 1")
	})
}

func containsLine(text string, words ...string) bool {
lines:
	for _, line := range strings.Split(text, "\n") {
		for _, w := range words {
			if !strings.Contains(line, w) {
				continue lines
			}
		}
		return true
	}
	return false
}

// wantHeldPings: until the boot is judged a ping is held and answered so that a
// Director asks again, and nothing else is answered.
func wantHeldPings(t *testing.T, i *lab.Instance) {
	t.Helper()
	asking := *i.Agent
	asking.Timeout = 950 * time.Millisecond
	var exception *director.Exception
	var held time.Duration
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for exception == nil && ctx.Err() == nil { // the first ones are lost
		begun := time.Now()
		_, err := asking.Call(ctx, "ping")
		held = time.Since(begun)
		errors.As(err, &exception)
	}
	if exception == nil {
		t.Fatal("no answer to a ping")
	}
	if !strings.HasPrefix(exception.Message, "restarting agent: ") ||
		!strings.Contains(exception.Message, "ephemeral-disk") || !strings.Contains(exception.Message, "/dev/nowhere") ||
		strings.Contains(exception.Message, "x509: ") {
		t.Errorf("got %q, want it to begin with restarting agent and to name the step", exception.Message)
	}
	if held < 800*time.Millisecond {
		t.Errorf("a ping was held for %v, want about 0.9s", held)
	}
	if value, err := asking.Call(ctx, "get_state"); !errors.Is(err, director.ErrTimeout) {
		t.Errorf("get_state before ready: got %s, %v; want no answer", value, err)
	}
	if d := agentStatus(t, i); d.State != status.Starting {
		t.Errorf("the boot was judged meanwhile: %s", d.State)
	}
}

// TestMachineLaterBootsAreSilent: a machine that has been ready once and fails later says so to
// its operator, sends one alert, and is silent on the bus, which is all a resurrector recognizes.
func TestMachineLaterBootsAreSilent(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	i := start(t, l, lab.VM{Ephemeral: lab.GiB})
	ready(t, i)
	if err := i.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := i.Detach(t.Context(), "ephemeral"); err != nil {
		t.Fatal(err)
	}
	since := time.Now()
	if err := i.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	d := settled(t, i, 3*time.Minute)
	if d.State != status.Failed || d.First || !strings.Contains(d.Verdict, "No ephemeral disk found") {
		t.Errorf("status: %s, first %v, %q", d.State, d.First, d.Verdict)
	}
	wantSilence(t, i)
	eventually.True(t, "another try", func() bool {
		journal, err := i.Journal(t.Context())
		return err == nil && strings.Contains(journal, "retrying the boot")
	})
	wantSilence(t, i) // a retry is not announced
	if d := agentStatus(t, i); d.State != status.Starting {
		t.Errorf("the try has ended meanwhile: %s", d.State)
	}
	alerts := 0
	for _, e := range l.Monitor.Events() {
		if e.Kind == "alert" && e.Agent == i.AgentID && e.Time.After(since) {
			alerts++
		}
	}
	if alerts != 1 {
		t.Errorf("got %d alerts, want one", alerts)
	}
	wantNoHeartbeat(t, l, i, since)
}

func wantSilence(t *testing.T, i *lab.Instance) {
	t.Helper()
	asking := *i.Agent
	asking.Timeout = 2 * time.Second
	for _, method := range []string{"ping", "get_state"} {
		if value, err := asking.Call(t.Context(), method); !errors.Is(err, director.ErrTimeout) {
			t.Errorf("%s: got %s, %v; want no answer", method, value, err)
		}
	}
}

// TestMachineBootsOnce: a machine that kept its secrets in memory refuses to start again before
// it touches anything, and is silent.
func TestMachineBootsOnce(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	i := start(t, l, lab.VM{Ephemeral: lab.GiB,
		Edit: func(d lab.Document) { d.Set("env.bosh.agent.settings.tmpfs", true) }})
	ready(t, i)
	run(t, i, "systemctl", "restart", "bosh-agent")
	ready(t, i) // a restart of the agent is not a reboot
	if err := i.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	since := time.Now()
	d := settled(t, i, time.Minute)
	if d.State != status.Failed || !strings.HasPrefix(d.Verdict, "boot-once: ") {
		t.Errorf("status: %s %q, want the refusal", d.State, d.Verdict)
	}
	wantSilence(t, i)
	wantNoHeartbeat(t, l, i, since)
	if out := run(t, i, "sh", "-c", "findmnt -n /var/vcap/data || true"); strings.TrimSpace(out) != "" {
		t.Errorf("a machine that refuses to boot has mounted %q", out)
	}
}

// TestMachineReadyWithoutBus: a Director that is down holds nothing up; the agent is there when it returns.
func TestMachineReadyWithoutBus(t *testing.T) {
	t.Parallel()
	i := start(t, newLab(t), lab.VM{Ephemeral: lab.GiB,
		Edit: func(d lab.Document) { d.Set("env.bosh.mbus.urls", []string{"nats://10.88.0.1:4999"}) }})
	awaitRoot(t, i, soon, "state: ready after ", "bus: connecting to 10.88.0.1:4999")
	// READY=1 does not wait for the bus.
	eventually.True(t, "an active unit", func() bool {
		return run(t, i, "systemctl", "show", "-P", "ActiveState", "bosh-agent") == "active\n"
	})
}

// wantGuestInfo: on vSphere the verdict is in the configuration of the VM.
func wantGuestInfo(t *testing.T, i *lab.Instance) {
	t.Helper()
	eventually.True(t, "the verdict in guestinfo", func() bool {
		return strings.Contains(run(t, i, "sh", "-c", "cat /var/lib/guestinfo/guestinfo.cambium.verdict || true"),
			"raw ephemeral disks")
	})
}
