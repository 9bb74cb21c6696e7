//go:build machine

package machine

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/internal/status"
	"cambium/internal/vcap"
	"cambium/lab"
	"cambium/lab/control"
	"cambium/lab/labtest"
	"cambium/lab/tree"
)

// cli runs the lab's command line for one lab.
type cli struct {
	t         *testing.T
	bin, dir  string
	name      string
	agentPath string
}

func newCLI(t *testing.T) cli {
	t.Helper()
	containers.Need(t)
	c := cli{t: t, bin: buildLab(t), dir: t.TempDir(), name: containers.LabName(), agentPath: labtest.Agent(t)}
	t.Cleanup(func() {
		if err := lab.Clean(c.dir, c.name); err != nil {
			t.Error(err)
		}
	})
	return c
}

// try runs a command and returns output and exit status.
func (c cli) try(args ...string) (string, int) {
	c.t.Helper()
	out, _, status := c.all(args...)
	return out, status
}

// refused runs a command that has to fail with an error that says why, once.
func (c cli) refused(want string, args ...string) {
	c.t.Helper()
	begin := time.Now()
	if _, stderr, status := c.all(args...); status != 1 || strings.Count(stderr, want) != 1 ||
		time.Since(begin) > 20*time.Second {
		c.t.Errorf("lab %s: status %d after %s, %q; want 1 and %q once", strings.Join(args, " "), status,
			time.Since(begin).Round(time.Second), stderr, want)
	}
}

func (c cli) all(args ...string) (stdout, messages string, status int) {
	c.t.Helper()
	cmd := exec.Command(c.bin, args...)
	cmd.Env = append(os.Environ(), "CAMBIUM_LAB_DIR="+c.dir, "LAB="+c.name)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		c.t.Fatal(err)
	}
	if stderr.Len() > 0 {
		c.t.Logf("lab %s: %s", strings.Join(args, " "), strings.TrimSpace(stderr.String()))
	}
	return string(out), stderr.String(), cmd.ProcessState.ExitCode()
}

// run runs a command that has to succeed.
func (c cli) run(args ...string) string {
	c.t.Helper()
	out, status := c.try(args...)
	if status != 0 {
		c.t.Fatalf("lab %s: exit status %d: %s", strings.Join(args, " "), status, out)
	}
	return out
}

// dismount ends the use of a persistent disk; the agent would wait for one that it knows at the next boot.
func (c cli) dismount(cid string) {
	c.t.Helper()
	c.run("call", "unmount_disk", cid)
	c.run("call", "remove_persistent_disk", cid)
	c.run("disk", "detach", cid)
}

// wantVerdict: switching a machine on that does not boot says why.
func (c cli) wantVerdict() {
	c.t.Helper()
	c.run("shell", "--", "sh", "-c", "echo '{' >/var/vcap/bosh/agent.json")
	c.run("power", "off")
	if _, said, status := c.all("power", "on"); status != 1 ||
		!strings.Contains(said, "the agent's verdict: start: /var/vcap/bosh/agent.json") {
		c.t.Errorf("power on: status %d, %q; want 1 and the verdict", status, said)
	}
}

func TestMachineCommandLine(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	var up control.State
	if err := json.Unmarshal([]byte(c.run("up", "--agent", c.agentPath, "--ephemeral", "2G", "--disk", "256M",
		"--json")), &up); err != nil {
		t.Fatal(err)
	}
	if up.Name != c.name || len(up.Machines) != 1 || !up.Machines[0].Running {
		t.Fatalf("up says %+v, want lab %s with one running machine", up, c.name)
	}
	if out := c.run("call", "ping"); out != "\"pong\"\n" {
		t.Errorf("call ping: %q, want pong", out)
	}
	c.run("call", "mount_disk", "disk-1") // the agent knows the disks of up
	c.dismount("disk-1")
	hint := strings.TrimSpace(c.run("disk", "attach", "disk-2", "--size", "1G"))
	if !strings.HasPrefix(hint, "/dev/") {
		t.Errorf("disk attach prints %q, want a hint", hint)
	}
	c.run("call", "add_persistent_disk", "disk-2", hint)
	c.run("call", "mount_disk", "disk-2")
	if out := c.run("call", "list_disk", "--json"); strings.Join(strings.Fields(out), "") != `["disk-2"]` {
		t.Errorf("list_disk: %q, want disk-2", out)
	}
	c.run("disk", "resize", "disk-2", "--size", "2G")
	c.refused("cannot shrink", "disk", "resize", "disk-2", "--size", "1G")
	if _, status := c.try("disk", "detach", "disk-2"); status != 1 {
		t.Errorf("detaching a mounted disk: status %d, want 1", status)
	}
	c.dismount("disk-2")
	if out := c.run("shell", "--", "cat", "/proc/1/comm"); out != "systemd\n" {
		t.Errorf("shell: %q, want systemd", out)
	}
	if _, status := c.try("shell", "--", "sh", "-c", "exit 7"); status != 7 {
		t.Errorf("shell: status %d, want the program's 7", status)
	}
	if out := c.run("logs"); !strings.Contains(out, "bosh-agent") {
		t.Errorf("logs: %.200q, want the agent's", out)
	}
	if out := c.run("watch", "vm1", "--once", "--json"); !strings.Contains(out, `"heartbeat"`) {
		t.Errorf("watch: %.200q, want a heartbeat", out)
	}
	c.refused("neither the lab nor a CPI has", "watch", "vm-0123", "--once")
	c.run("machine", "stop")
	c.refused("machine vm1 is off", "call", "ping")
	c.refused("lab "+c.name+" is up", "clean", c.name)
	var pruned struct {
		InUse []struct{ Name string } `json:"in_use"`
	}
	if err := json.Unmarshal([]byte(c.run("cache", "prune", "--all", "--dry-run", "--json")), &pruned); err != nil ||
		!slices.ContainsFunc(pruned.InUse, func(e struct{ Name string }) bool {
			return strings.HasPrefix(e.Name,
				tree.Prefix)
		}) {
		t.Errorf("cache prune while a lab is up: %+v (%v), want its tree to be in use", pruned, err)
	}
	c.run("machine", "reboot") // of one that is off
	c.run("machine", "reboot")
	if out := c.run("call", "ping"); out != "\"pong\"\n" {
		t.Errorf("call ping after a reboot: %q, want pong", out)
	}
	for _, wrong := range [][]string{{"call"}, {"disk", "attach"}, {"disk", "burn", "x"}, {"up", "--ephemeral", "much"},
		{"frobnicate"}, {"ls", "--color"}, {"machine", "paint"}} {
		if _, status := c.try(wrong...); status != 2 {
			t.Errorf("lab %v: status %d, want 2", wrong, status)
		}
	}
	if _, status := c.try("call", "no_such_method"); status != 1 {
		t.Errorf("an exception: status %d, want 1", status)
	}
	if _, status := c.try("up", "--agent", c.agentPath); status != 1 {
		t.Errorf("a second lab of the same name: status %d, want 1", status)
	}
	c.wantVerdict()
	c.run("down")
	if out := c.run("ls"); strings.Contains(out, c.name) {
		t.Errorf("after down ls says %q", out)
	}
	if left := traces(t); strings.Contains(left, c.name) {
		t.Errorf("left over:\n%s", left)
	}
}

// TestMachineUp: what is wrong is said as soon as it is known, and a lab needs no services of its own.
func TestMachineUp(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	// The agent comes to its verdict long before the lab would stop waiting.
	c.refused("No ephemeral disk found", "up", "--agent", c.agentPath, "--ephemeral", "0")
	if out := c.run("logs"); !strings.Contains(out, "No ephemeral disk found") {
		t.Errorf("the machine with the verdict is not there to look into; logs: %.300s", out)
	}
	c.run("down")

	document := map[string]any{"agent_id": "outside", "mbus": "https://mbus:secret@0.0.0.0:6868",
		"vm": map[string]any{"name": "outside"},
		"blobstore": map[string]any{"provider": "local",
			"options": map[string]any{"blobstore_path": "/var/vcap/micro_bosh/data/cache"}},
		"networks": map[string]any{"default": map[string]any{"type": "manual", "ip": "10.88.0.77",
			"netmask": "255.255.255.0", "gateway": "10.88.0.1", "default": []string{"dns", "gateway"}}},
		"disks": map[string]any{"ephemeral": "@ephemeral@", "persistent": map[string]any{"first": "@disk-1@"}},
		"env":   map[string]any{"bosh": map[string]any{"swap_size": 0}}}
	file := func(name string) string {
		data, err := json.Marshal(document)
		path := filepath.Join(c.dir, name)
		if err == nil {
			err = os.WriteFile(path, data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	settings := file("settings.json")
	c.refused("@disk-1@", "up", "--agent", c.agentPath, "--settings", settings, "--bare")
	if out := c.run("ls"); strings.Contains(out, c.name) {
		t.Errorf("a lab was made for documents that do not fit: %s", out)
	}
	var up control.State
	if err := json.Unmarshal([]byte(c.run("up", "--agent", c.agentPath, "--settings", settings, "--bare", "--ephemeral",
		"2G", "--disk", "1G", "--source", "http", "--json")), &up); err != nil {
		t.Fatal(err)
	}
	if up.Bus != "" || len(up.Machines[0].Disks) != 2 {
		t.Errorf("up says bus %q and disks %+v, want none and two", up.Bus, up.Machines[0].Disks)
	}
	c.refused("has no NATS", "watch")
	if out := c.run("shell", "--", "findmnt", "-n", "-o", "SOURCE", "/var/vcap/data"); !strings.HasPrefix(out,
		"/dev/loop") {
		t.Errorf("the ephemeral disk is not mounted: %q", out)
	}
	// The agent has the address of the document, not the lab's, and gets its metadata all the same.
	if out := c.run("shell", "--", "ip", "-o", "-4", "address", "show", "eth0"); !strings.Contains(out, "10.88.0.77/") {
		t.Errorf("addresses %q, want the document's", out)
	}
	c.run("shell", "--", "systemctl", "restart", "bosh-agent")
	var account status.Document
	err := json.Unmarshal([]byte(c.run("shell", "--", "cat", vcap.RunDir.Status())), &account)
	if err != nil || account.Settings == nil || account.Settings.Cached {
		t.Errorf("settings of %+v (%v), want them from the metadata service", account.Settings, err)
	}
	// A disk outlives its machine.
	c.run("machine", "delete")
	var list struct{ Labs []control.State }
	if err := json.Unmarshal([]byte(c.run("ls", "--json")), &list); err != nil || len(list.Labs) != 1 ||
		len(list.Labs[0].Disks) != 1 || list.Labs[0].Disks[0].ID != "disk-1" {
		t.Errorf("after its machine was deleted the lab has %+v (%v), want disk-1 alone", list.Labs, err)
	}
	c.run("disk", "delete", "disk-1")
	c.refused("no disk disk-1", "disk", "delete", "disk-1")
	c.run("down")
}

// TestMachineForeignClient takes documents as they are, as from a CPI, and speaks HTTPS through
// the published port, as create-env does.
func TestMachineForeignClient(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	// The documents are those of another lab's machine, whose address is the same.
	l := newLab(t)
	i, err := l.Create(t.Context(), lab.VM{HTTPS: true})
	if err != nil {
		t.Fatal(err)
	}
	settings, err := i.ReadFile("/var/vcap/bosh/agent-bootstrap-env.json")
	if err != nil {
		t.Fatal(err)
	}
	agentJSON := `{"Platform":{"Linux":{"SkipDiskSetup":true,"ServiceManager":"systemd"}},` +
		`"Infrastructure":{"Settings":{"Sources":[{"Type":"CDROM","FileName":"env"}]}}}`
	// The network card is not the one that the document names.
	var document map[string]any
	if err := json.Unmarshal(settings, &document); err != nil {
		t.Fatal(err)
	}
	delete(document["networks"].(map[string]any)["default"].(map[string]any), "mac")
	if settings, err = json.Marshal(document); err != nil {
		t.Fatal(err)
	}
	files := t.TempDir()
	for name, data := range map[string][]byte{"agent.json": []byte(agentJSON), "settings.json": settings} {
		if err := os.WriteFile(filepath.Join(files, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var up control.State
	out := c.run("up", "--agent", c.agentPath, "--agent-json", filepath.Join(files, "agent.json"), "--settings",
		filepath.Join(files, "settings.json"),
		"--source", "cdrom", "--ephemeral", "0", "--publish", "0", "--json")
	if err := json.Unmarshal([]byte(out), &up); err != nil {
		t.Fatal(err)
	}
	address := up.Machines[0].Published
	if !strings.HasPrefix(address, "127.0.0.1:") {
		t.Fatalf("published on %q, want a port on loopback", address)
	}
	var pong string
	eventually.True(t, "the agent's pong", func() bool {
		var status int
		pong, status = c.try("call", "--settings", filepath.Join(files, "settings.json"), "--host", address, "ping")
		return status == 0
	})
	if pong != "\"pong\"\n" {
		t.Errorf("ping over HTTPS: %q, want pong", pong)
	}
}
