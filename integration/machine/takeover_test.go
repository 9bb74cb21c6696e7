//go:build machine

package machine

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"cambium/integration/lab"
	"cambium/integration/lab/baseline"
	"cambium/integration/lab/labtest"
	"cambium/integration/lab/machine"
	"cambium/integration/lab/release"
)

// tokenProxy makes this program the go-between of agents and the machine's monit. The monit of
// stemcells (5.2.5) knows no tokens, and so does the baseline not; today's refuses without.
const tokenProxy = "CAMBIUM_MONIT_PROXY"

func init() {
	if os.Getenv(tokenProxy) == "" {
		return
	}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "127.0.0.1:2823"})
	err := http.ListenAndServe("127.0.0.1:2822", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && r.Header.Get("Cookie") == "" && r.ParseForm() == nil {
			r.Form.Set("securitytoken", "taken")
			body := r.Form.Encode()
			r.Header.Set("Cookie", "securitytoken=taken")
			r.Body, r.ContentLength = http.NoBody, int64(len(body))
			if request, err := http.NewRequestWithContext(r.Context(), r.Method, r.URL.Path, strings.NewReader(body)); err == nil {
				request.Header = r.Header
				request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
				r = request
			}
		}
		proxy.ServeHTTP(w, r)
	}))
	os.Stderr.WriteString(err.Error())
	os.Exit(1)
}

// oldStemcell makes a machine of a stemcell with the baseline agent, as there are many.
func oldStemcell(t *testing.T) func(*lab.VM) {
	t.Helper()
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	monitrc, err := os.ReadFile("../../stemcell-assets/etc/monitrc")
	if err != nil {
		t.Fatal(err)
	}
	files := append(baseline.ContainerFiles(),
		machine.File{Path: "/root/monit-proxy", Data: program, Mode: 0o755},
		machine.File{Path: "/etc/systemd/system/monit-proxy.service", Mode: 0o644,
			Data: []byte("[Unit]\nDefaultDependencies=no\n[Service]\nEnvironment=" + tokenProxy + "=1\nExecStart=/root/monit-proxy\n")},
		machine.File{Path: "/etc/systemd/system/bosh-agent.service.d/old.conf", Mode: 0o644,
			Data: []byte("[Unit]\nWants=monit-proxy.service\n[Service]\nType=simple\nWatchdogSec=0\n")},
		machine.File{Path: "/var/vcap/bosh/etc/monitrc", Mode: 0o600, Data: []byte(strings.Replace(string(monitrc), "port 2822", "port 2823", 1))})
	return func(vm *lab.VM) { vm.SCSI, vm.Files = true, append(vm.Files, files...) }
}

// condition is what a change of agents must leave alone.
type condition struct {
	Pids, Addresses, Mounts, Tables, Data string
	Disks                                 string
	State                                 map[string]any
}

func conditionOf(t *testing.T, i *lab.Instance) (c condition) {
	t.Helper()
	c.Pids = run(t, i, "sh", "-c", "for j in forker execer; do p=$(cat /var/vcap/sys/run/$j/$j.pid); echo $j $p $(cut -d' ' -f22 /proc/$p/stat); done")
	c.Addresses = run(t, i, "sh", "-c", "ip -o address show scope global | cut -d' ' -f2-8; ip route")
	// The number of a mount is new whenever it is mounted. /tmp is left out: that it is a tmpfs here
	// is the container's doing.
	c.Mounts = run(t, i, "sh", "-c", "for d in /var/vcap/data /var/vcap/store /var/log /var/tmp /opt /var/opt; do findmnt -rn -o ID,TARGET,SOURCE,FSTYPE $d; done")
	c.Tables = run(t, i, "sh", "-c", "sfdisk -d /dev/sdb; sfdisk -d /dev/sdc")
	c.Data = run(t, i, "sh", "-c", "cat /var/vcap/store/kept /var/vcap/data/kept; cat /var/vcap/jobs/forker/bin/ctl /var/vcap/packages/tool/bin/sleeper | sha256sum")
	disks, err := i.Agent.Do(t.Context(), "list_disk")
	if err != nil {
		t.Fatal(err)
	}
	c.Disks = string(disks)
	state, err := i.Agent.Do(t.Context(), "get_state")
	if err == nil {
		err = json.Unmarshal(state, &c.State)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// replaceAgent puts another program in the agent's place; the one that runs goes on.
func replaceAgent(t *testing.T, i *lab.Instance, binary string) {
	t.Helper()
	program, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	if err := i.WriteFile(machine.File{Path: "/var/vcap/bosh/bin/bosh-agent", Data: program, Mode: 0o755}); err != nil {
		t.Fatal(err)
	}
}

// wantNothingOfOurs looks for what this agent could leave behind in another's way.
func wantNothingOfOurs(t *testing.T, i *lab.Instance) {
	t.Helper()
	pid := strings.TrimSpace(run(t, i, "systemctl", "show", "-P", "MainPID", "bosh-agent"))
	if got := run(t, i, "ss", "-Hltnp", "sport = :2825"); strings.Count(got, "\n") != 1 || !strings.Contains(got, "pid="+pid+",") || strings.Count(got, "pid=") != 1 {
		t.Errorf("the port of monit's alerts is not with the agent, process %s, alone:\n%s", pid, got)
	}
	if got := run(t, i, "sh", "-c", "ls /var/vcap/instance | grep agent_ || true"); got != "" {
		t.Errorf("the instance still shows our version: %s", got)
	}
	if got := run(t, i, "sh", "-c", "systemctl list-units --all --no-legend 'bosh*' 'cambium*' | grep -v 'bosh-agent.service' || true"); got != "" {
		t.Errorf("units of ours are left:\n%s", got)
	}
}

// takeOver replaces the agent's binary, restarts the unit and waits for the new agent.
func takeOver(t *testing.T, i *lab.Instance, binary string) {
	t.Helper()
	replaceAgent(t, i, binary)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if _, err := i.Output(ctx, "systemctl", "restart", "bosh-agent"); err != nil {
		t.Fatal(err)
	}
	if err := i.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	if running := run(t, i, "sh", "-c", "cmp /proc/$(systemctl show -P MainPID bosh-agent)/exe /var/vcap/bosh/bin/bosh-agent && echo same"); running != "same\n" {
		t.Fatalf("another program runs: %s", running)
	}
}

// TestMachineTakeover has this agent take over a machine that the baseline has set up, with jobs,
// a persistent disk and an identity of its own on the bus, and give it back, without any effect on the bus or the jobs.
func TestMachineTakeover(t *testing.T) {
	old, ours := labtest.Baseline(t), labtest.Agent(t)
	l := newLab(t, func(o *lab.Options) { o.Agent, o.VM = old, oldStemcell(t) })
	m := manifest([]release.Job{forker(), execer()}, tool("one"))
	m.Groups[0].PersistentDisk = 1024
	i := mustDeploy(t, l, m)
	run(t, i, "sh", "-c", "echo persistent >/var/vcap/store/kept; echo ephemeral >/var/vcap/data/kept; sync")
	before := conditionOf(t, i)
	if before.State["job_state"] != "running" {
		t.Fatalf("the baseline's machine is not running: %v", before.State["job_state"])
	}
	for _, change := range []struct{ name, binary string }{{"taken over", ours}, {"given back", old}, {"taken over again", ours}} {
		takeOver(t, i, change.binary)
		await(t, "running jobs", time.Minute, func() bool { return stateOf(t, i).JobState == "running" })
		wantSameCondition(t, change.name, conditionOf(t, i), before)
		if change.binary == old {
			wantNothingOfOurs(t, i)
		}
	}
	if d := agentStatus(t, i); len(d.Warnings) > 0 {
		t.Errorf("the new agent warns: %q", d.Warnings)
	}
	// The Director goes on where it was: an update with another job, and the disk comes and goes.
	m.Groups[0].Jobs = []release.Job{forker(), cycle("")}
	mustDeploy(t, l, m)
	if got := run(t, i, "cat", "/var/vcap/store/kept"); got != "persistent\n" {
		t.Errorf("the persistent disk holds %q after an update", got)
	}
	t.Run("stopped by the other", func(t *testing.T) { stoppedByTheOther(t, i, old, ours) })
	t.Run("in the middle of a migration", func(t *testing.T) { replacedInAMigration(t, i, old, ours) })
}

// stoppedByTheOther: a start that this agent has on record does not undo a stop that the other has made.
func stoppedByTheOther(t *testing.T, i *lab.Instance, old, ours string) {
	do := func(method string) {
		t.Helper()
		if _, err := i.Agent.Do(t.Context(), method); err != nil {
			t.Fatalf("%s: %v", method, err)
		}
	}
	do("stop")
	do("start")
	takeOver(t, i, old)
	// What the other's stop does. Its own needs the monit command of stemcells.
	run(t, i, "sh", "-c", "monit -c /var/vcap/bosh/etc/monitrc stop all && touch /var/vcap/monit/stopped")
	await(t, "stopped jobs", time.Minute, func() bool { return run(t, i, "sh", "-c", "pgrep -f [b]in/sleeper || true") == "" })
	takeOver(t, i, ours)
	if err := i.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	ready(t, i)
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(500 * time.Millisecond) {
		if got := run(t, i, "sh", "-c", "pgrep -f [b]in/sleeper || true"); got != "" {
			t.Fatalf("a job runs that the other agent has stopped: %s", got)
		}
	}
	do("start")
	await(t, "running jobs", time.Minute, func() bool { return stateOf(t, i).JobState == "running" })
}

// replacedInAMigration: the other agent refuses to start with two persistent disks, whoever began to exchange them. It
// changes nothing on them, and this one goes on where it was.
func replacedInAMigration(t *testing.T, i *lab.Instance, old, ours string) {
	run(t, i, "sh", "-c", "for n in $(seq 400); do head -c 500000 /dev/urandom >/var/vcap/store/file$n; done; sync")
	if _, err := i.Agent.Do(t.Context(), "stop"); err != nil {
		t.Fatal(err)
	}
	const cid = "disk-after"
	if err := i.NewDisk(cid, 2*lab.GiB); err != nil {
		t.Fatal(err)
	}
	hint, err := i.AttachDisk(t.Context(), cid)
	if err != nil {
		t.Fatal(err)
	}
	for _, call := range [][]any{{"add_persistent_disk", cid, hint}, {"mount_disk", cid}} {
		if _, err := i.Agent.Do(t.Context(), call[0].(string), call[1:]...); err != nil {
			t.Fatalf("%v: %v", call, err)
		}
	}
	sums := func() string { return run(t, i, "sh", "-c", "cd /var/vcap/store; cat kept file* | sha256sum") }
	before := sums()
	if _, err := i.Agent.Call(t.Context(), "migrate_disk"); err != nil {
		t.Fatal(err)
	}
	await(t, "the copy to begin", time.Minute, func() bool {
		return run(t, i, "sh", "-c", "ls /var/vcap/store_migration_target | grep -c file || true") != "0\n"
	})
	replaceAgent(t, i, old)
	run(t, i, "sh", "-c", "systemctl kill --signal=KILL bosh-agent; sleep 3")
	takeOver(t, i, ours)
	if _, err := i.Agent.Do(t.Context(), "migrate_disk"); err != nil {
		t.Fatal(err)
	}
	if got := sums(); got != before {
		t.Errorf("the store holds other data after the migration: %s, want %s", got, before)
	}
	if disks, err := i.Agent.Do(t.Context(), "list_disk"); err != nil || !strings.HasPrefix(string(disks), `["`+cid+`"`) {
		t.Errorf("list_disk after the migration: %s, %v", disks, err)
	}
}

func wantSameCondition(t *testing.T, when string, got, want condition) {
	t.Helper()
	for _, c := range []struct{ name, got, want string }{
		{"pids", got.Pids, want.Pids}, {"addresses", got.Addresses, want.Addresses}, {"mounts", got.Mounts, want.Mounts},
		{"partition tables", got.Tables, want.Tables}, {"data", got.Data, want.Data}, {"list_disk", got.Disks, want.Disks},
	} {
		if c.got != c.want {
			t.Errorf("%s: %s were\n%s\nand are\n%s", when, c.name, c.want, c.got)
		}
	}
	keys := map[string]bool{}
	for key := range got.State {
		keys[key] = true
	}
	for key := range want.State {
		keys[key] = true
	}
	for key := range keys {
		if !reflect.DeepEqual(got.State[key], want.State[key]) {
			t.Errorf("%s: get_state says %s is %v, said %v", when, key, got.State[key], want.State[key])
		}
	}
}
