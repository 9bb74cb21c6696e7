//go:build machine

package machine

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/lab"
	"cambium/lab/baseline"
	"cambium/lab/labtest"
	"cambium/lab/machine"
	"cambium/lab/release"
)

// tokenProxy makes this program a proxy between agents and the machine's monit. The monit of
// stemcells (5.2.5) does not know tokens, and neither does the baseline; a current monit refuses
// requests without one.
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
			if request, err := http.NewRequestWithContext(r.Context(), r.Method, r.URL.Path,
				strings.NewReader(body)); err == nil {
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
		machine.File{Path: "/var/vcap/bosh/etc/monitrc", Mode: 0o600,
			Data: []byte(strings.Replace(string(monitrc), "port 2822", "port 2823", 1))})
	return func(vm *lab.VM) { vm.SCSI, vm.Files = true, append(vm.Files, files...) }
}

// condition is the state of a machine that an exchange of agents must not change.
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
	// What monit measures changes with each of its cycles.
	processes, _ := c.State["processes"].([]any)
	for _, p := range processes {
		if process, ok := p.(map[string]any); ok {
			for _, measured := range []string{"uptime", "mem", "cpu"} {
				delete(process, measured)
			}
		}
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
	if got := run(t, i, "ss", "-Hltnp", "sport = :2825"); strings.Count(got, "\n") != 1 ||
		!strings.Contains(got, "pid="+pid+",") || strings.Count(got, "pid=") != 1 {
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
	t.Parallel() // it mostly waits
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
	for _, change := range []struct{ name, binary string }{{"taken over", ours}, {"given back", old},
		{"taken over again", ours}} {
		takeOver(t, i, change.binary)
		eventually.True(t, "running jobs", func() bool { return stateOf(t, i).JobState == "running" })
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
	t.Run("killed after its program was replaced", func(t *testing.T) { killedAfterReplacement(t, i, old, ours) })
	t.Run("stopped by the other", func(t *testing.T) { stoppedByTheOther(t, i, old, ours) })
	t.Run("a half-prepared disk travels", func(t *testing.T) { halfPreparedTravels(t, l, i, old, ours) })
}

// killedAfterReplacement: an agent that has no time to clean up leaves nothing behind in the other's way either.
func killedAfterReplacement(t *testing.T, i *lab.Instance, old, ours string) {
	replaceAgent(t, i, old)
	eventually.True(t, "the agent to give way", func() bool {
		return run(t, i, "sh", "-c", "[ -e /var/vcap/instance/agent_version ] || echo gone") == "gone\n"
	})
	run(t, i, "systemctl", "kill", "--signal=KILL", "bosh-agent")
	ready(t, i)
	wantNothingOfOurs(t, i)
	takeOver(t, i, ours)
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
	eventually.True(t, "stopped jobs", func() bool {
		return run(t, i, "sh", "-c", "pgrep -f [b]in/sleeper || true") == ""
	})
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
	eventually.True(t, "running jobs", func() bool { return stateOf(t, i).JobState == "running" })
}

// heldFormatting stands for mke2fs. While /root/hold is there, it waits before or after its work, as that file says.
const heldFormatting = `#!/bin/sh
hold=$(cat /root/hold 2>/dev/null)
stay() { [ "$hold" != $1 ] || { touch /root/held; sleep 600; }; }
stay before
case $0 in *mkfs.ext4) set -- -t ext4 "$@" ;; esac # which mke2fs knows by its name
/usr/sbin/mke2fs.real "$@" || exit
stay after
`

// holdFormatting keeps mke2fs, and so the agent that prepares a disk, from going on "before" or "after" its work.
func holdFormatting(t *testing.T, i *lab.Instance, moment string) {
	t.Helper()
	run(t, i, "sh", "-ec", "mv /usr/sbin/mke2fs /usr/sbin/mke2fs.real; rm /usr/sbin/mkfs.ext4; ln -s mke2fs /usr/sbin/mkfs.ext4; echo "+moment+" >/root/hold")
	if err := i.WriteFile(machine.File{Path: "/usr/sbin/mke2fs", Data: []byte(heldFormatting), Mode: 0o755}); err != nil {
		t.Fatal(err)
	}
}

// awaitFormatting waits until mke2fs is held, and what was written before is on the disk.
func awaitFormatting(t *testing.T, i *lab.Instance) {
	t.Helper()
	eventually.True(t, "mke2fs", func() bool {
		return run(t, i, "sh", "-c", "[ ! -e /root/held ] || { sync; echo held; }") == "held\n"
	})
}

// moveDisk takes a disk from a machine that is off to another.
func moveDisk(t *testing.T, from, to *lab.Instance, cid string) {
	t.Helper()
	if err := errors.Join(from.DetachDisk(t.Context(), cid), from.MoveDisk(cid, to)); err != nil {
		t.Fatal(err)
	}
}

// attachAnnounced attaches a disk and returns its hint. The host's kernel reads no partition tables, and the baseline expects to find
// the partitions of a disk announced.
func attachAnnounced(t *testing.T, i *lab.Instance, cid string) any {
	t.Helper()
	hint, err := i.AttachDisk(t.Context(), cid)
	if err != nil {
		t.Fatal(err)
	}
	node, isPath := hint.(string)
	if !isPath {
		t.Fatalf("the hint of %s is %v, want a path", cid, hint)
	}
	run(t, i, "sh", "-c", "partx --show "+node+" >/dev/null 2>&1 || exit 0; partx --add "+node+"; for n in $(seq 50); do [ -e "+node+"1 ] && exit 0; sleep 0.1; done; exit 1")
	return hint
}

// halfPreparedTravels: a VM is lost while this agent prepares a disk. Another VM finishes it, and the baseline mounts it.
func halfPreparedTravels(t *testing.T, l *lab.Lab, i *lab.Instance, old, ours string) {
	const cid = "disk-half"
	do := func(i *lab.Instance, method string, arguments ...any) {
		t.Helper()
		if _, err := i.Agent.Do(t.Context(), method, arguments...); err != nil {
			t.Fatalf("%s: %v", method, err)
		}
	}
	attach := func(i *lab.Instance) {
		t.Helper()
		do(i, "add_persistent_disk", cid, attachAnnounced(t, i, cid))
	}
	lost := create(t, l, lab.VM{Ephemeral: lab.GiB})
	replaceAgent(t, lost, ours)
	if err := errors.Join(lost.NewDisk(cid, 256<<20), lost.Start(t.Context())); err != nil {
		t.Fatal(err)
	}
	ready(t, lost)
	holdFormatting(t, lost, "before")
	attach(lost)
	if _, err := lost.Agent.Call(t.Context(), "mount_disk", cid); err != nil {
		t.Fatal(err)
	}
	awaitFormatting(t, lost)
	if err := lost.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	moveDisk(t, lost, i, cid)

	attach(i) // beside the store, hence on the migration target
	if got := run(t, i, "sh", "-c", "sfdisk -d /dev/sdd"); !strings.Contains(got, "being-prepared") {
		t.Errorf("the table does not say that the disk is being prepared:\n%s", got)
	}
	do(i, "mount_disk", cid)
	run(t, i, "sh", "-ec", "echo traveled >/var/vcap/store_migration_target/kept; sync")
	do(i, "unmount_disk", cid)
	do(i, "remove_persistent_disk", cid)
	if got := run(t, i, "sh", "-c", "sfdisk -d /dev/sdd"); strings.Contains(got, "being-prepared") {
		t.Errorf("the table of the finished disk says that it is being prepared:\n%s", got)
	}
	if err := i.DetachDisk(t.Context(), cid); err != nil {
		t.Fatal(err)
	}
	takeOver(t, i, old)
	attach(i)
	do(i, "mount_disk", cid)
	if got := run(t, i, "cat", "/var/vcap/store_migration_target/kept"); got != "traveled\n" {
		t.Errorf("mounted by the baseline, the disk holds %q", got)
	}
	do(i, "unmount_disk", cid)
	do(i, "remove_persistent_disk", cid)
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
