//go:build machine

package machine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"cambium/bootstrap"
	"cambium/internal/eventually"
	"cambium/internal/status"
	"cambium/lab"
	"cambium/lab/execs"
	"cambium/lab/machine"
)

// agentStatus is the agent's own account, as `agent status` prints it.
func agentStatus(t *testing.T, i *lab.Instance, options ...string) status.Document {
	t.Helper()
	out, err := i.Output(t.Context(), "sh", "-c",
		"/var/vcap/bosh/bin/bosh-agent status --json "+strings.Join(options, " ")+" || true")
	var d status.Document
	if err == nil {
		err = json.Unmarshal([]byte(out), &d)
	}
	if err != nil {
		t.Fatalf("status: %v: %s", err, out)
	}
	return d
}

// settled waits until the boot has been judged, as an operator does.
func settled(t *testing.T, i *lab.Instance, limit time.Duration) status.Document {
	t.Helper()
	return agentStatus(t, i, "--wait="+limit.String())
}

// ended waits until the background steps have ended, too.
func ended(t *testing.T, i *lab.Instance) (d status.Document) {
	t.Helper()
	eventually.True(t, "the end of all steps", func() bool {
		d = agentStatus(t, i)
		return len(d.Steps) > 0 && !slices.ContainsFunc(d.Steps,
			func(s status.Step) bool { return s.Outcome == status.Pending || s.Outcome == status.Running })
	})
	return d
}

// hooks returns the programs of a stemcell that the agent runs. Each appends a line to the file that the test reads.
func hooks() (files []machine.File) {
	for _, name := range []string{"bosh-agent-rc", "bosh-start-logging-and-auditing"} {
		files = append(files, machine.File{Path: "/var/vcap/bosh/bin/" + name,
			Data: []byte("#!/bin/sh\necho " + name + " >>/run/hooks.ran\n"), Mode: 0o755})
	}
	return files
}

// starts counts the lines in the agent's log that report a start of monit, which others take for the end of a boot.
func starts(t *testing.T, i *lab.Instance) int {
	t.Helper()
	journal, err := i.Journal(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(journal, "systemctl start monit")
}

func writeMarker(t *testing.T, i *lab.Instance, path string) {
	t.Helper()
	run(t, i, "sh", "-c", "echo kept > "+path+" && sync "+path)
}

func wantMarker(t *testing.T, i *lab.Instance, path string) {
	t.Helper()
	if got := run(t, i, "cat", path); got != "kept\n" {
		t.Errorf("%s holds %q, want what was written before", path, got)
	}
}

// counted returns the counts of the watch after every past event has arrived.
func counted(watch *execs.Watch, namespace string) (execs.Family, error) {
	if err := watch.CatchUp(); err != nil {
		return execs.Family{}, err
	}
	return watch.Of(namespace)
}

// TestMachineBoot is the life of a machine: first boot, agent restart, reboot, power cut.
func TestMachineBoot(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	watch, err := execs.Start("bosh-agent")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = watch.Close() })
	i := start(t, l, lab.VM{Ephemeral: 10 * lab.GiB, Files: hooks()})
	ready(t, i)

	first := ended(t, i)
	if got := run(t, i, "sort", "/run/hooks.ran"); got != "bosh-agent-rc\nbosh-start-logging-and-auditing\n" {
		t.Errorf("hooks that ran: %q, want each once", got)
	}
	if first.State != status.Ready || first.AgentID != i.AgentID || first.Settings == nil || first.Settings.Cached {
		t.Errorf("after the first boot: %s %q, agent %q, settings %+v, warnings %q", first.State, first.Verdict,
			first.AgentID, first.Settings, first.Warnings)
	}
	namespace := strings.TrimSpace(run(t, i, "readlink", "/proc/self/ns/pid"))
	done, err := counted(watch, namespace)
	if err != nil || done.Processes == 0 || len(done.Programs) > 5 {
		t.Errorf("first boot executed %d programs, want at most 5 (%v): %v", len(done.Programs), err, done.Programs)
	}
	t.Logf("first boot: ready after %v, programs %v", time.Duration(first.ReadyNS), done.Programs)
	for _, path := range []string{"/var/vcap/data/marker", "/var/vcap/bosh/marker"} {
		writeMarker(t, i, path)
	}
	mounts := run(t, i, "sh", "-c", "sort /proc/self/mountinfo | cut -d' ' -f3-6")
	addresses := run(t, i, "ip", "-o", "address", "show", "scope", "global")

	before, started := agentStatus(t, i), starts(t, i)
	run(t, i, "systemctl", "restart", "bosh-agent")
	ready(t, i)
	second := ended(t, i)
	if second.State != status.Ready || !second.Unchanged {
		t.Errorf("restart on a converged machine: %s, unchanged %v, warnings %q, steps %s", second.State, second.Unchanged,
			second.Warnings, evidence(second))
	}
	if len(second.Earlier) != 1 || second.Earlier[0].State != status.Ready {
		t.Errorf("restart remembers %+v, want the first process; its warnings were %q", second.Earlier, before.Warnings)
	}
	if got := starts(t, i); started != 1 || got != 2 {
		t.Errorf("the log says %d and %d times that monit was started, want it once per start of the agent", started, got)
	}
	restarted, err := counted(watch, namespace)
	if err != nil || restarted.Processes <= done.Processes || len(restarted.Programs) != len(done.Programs) {
		t.Errorf("restart executed programs (%v): %v", err, restarted.Programs)
	}
	if got := run(t, i, "sh", "-c", "sort /proc/self/mountinfo | cut -d' ' -f3-6"); got != mounts {
		t.Errorf("restart changed the mounts from\n%s\nto\n%s", mounts, got)
	}
	if got := run(t, i, "ip", "-o", "address", "show", "scope", "global"); got != addresses {
		t.Errorf("restart changed the addresses from\n%s\nto\n%s", addresses, got)
	}
	// A start of monit is a change, though of nothing else.
	run(t, i, "systemctl", "stop", "monit")
	run(t, i, "systemctl", "restart", "bosh-agent")
	ready(t, i)
	if d := agentStatus(t, i); d.Unchanged || starts(t, i) != 3 {
		t.Errorf("monit was started, and the status says unchanged %v", d.Unchanged)
	}

	for name, bootAgain := range map[string]func(context.Context) error{
		"reboot":    i.Reboot,
		"power cut": func(ctx context.Context) error { return errors.Join(i.Kill(ctx), i.Start(ctx)) },
	} {
		if err := bootAgain(t.Context()); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		ready(t, i)
		if d := agentStatus(t, i); d.State != status.Ready || d.First {
			t.Errorf("after %s: %s %q, warnings %q", name, d.State, d.Verdict, d.Warnings)
		}
		for _, path := range []string{"/var/vcap/data/marker", "/var/vcap/bosh/marker"} {
			wantMarker(t, i, path)
		}
	}
}

func evidence(d status.Document) string {
	var b strings.Builder
	for _, s := range d.Steps {
		if len(s.Evidence) > 0 {
			fmt.Fprintf(&b, "%s: %q\n", s.Name, s.Evidence)
		}
	}
	return b.String()
}

// TestMachineHeals: a disk that appears late makes a failed machine ready, and it is the disk's
// coming, not the end of a pause, that makes the agent try again.
func TestMachineHeals(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	i := start(t, l, lab.VM{Edit: func(d lab.Document) { d.Set("disks.ephemeral", "/dev/late") }})
	if d := settled(t, i, 3*time.Minute); d.State != status.Failed {
		t.Fatalf("without its disk the machine is %s", d.State)
	}
	disk, err := i.AttachNew(t.Context(), "late", lab.GiB)
	if err != nil {
		t.Fatal(err)
	}
	run(t, i, "ln", "-s", disk.Path, "/dev/late")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for {
		// The Director has given up; a later request gets the state of that moment.
		if value, err := i.Agent.Call(ctx, "ping"); err == nil && string(value) == `"pong"` {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("not ready after its disk came: %q", agentStatus(t, i).Verdict)
		}
	}
	if got := run(t, i, "findmnt", "-n", "-o", "FSTYPE", "/var/vcap/data"); strings.TrimSpace(got) != "ext4" {
		t.Errorf("data is %q", got)
	}
	journal, err := i.Journal(t.Context())
	if err != nil || !containsLine(journal, "retrying the boot", "disks") ||
		containsLine(journal, "retrying the boot", "pause") {
		t.Errorf("the boot was not tried again because of the disk (%v)", err)
	}
}

// crashAgent is an agent that kills itself at a step boundary when the test asks for it.
func crashAgent(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "agent")
	build := exec.Command("go", "build", "-trimpath", "-tags", "nethttpomithttp2,crashpoints", "-o", path,
		"cambium/cmd/agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v: %s", err, out)
	}
	return path
}

// TestMachineKilledAtStepBoundaries has the steps that leave most on disks and in the kernel; all of them are in
// TestNightlyKilledAtStepBoundaries.
func TestMachineKilledAtStepBoundaries(t *testing.T) {
	t.Parallel()
	killAtStepBoundaries(t, "settings", "network", "ephemeral-disk", "directories", "supervisor")
}

// killAtStepBoundaries kills the agent at the beginning of steps of a first boot, all of them if none is named, then,
// in the process that takes over, at its end, and sees a third one converge.
func killAtStepBoundaries(t *testing.T, steps ...string) {
	agent := crashAgent(t)
	l := newLab(t, func(o *lab.Options) { o.Agent = agent })
	for n, step := range bootstrap.Steps(&bootstrap.Machine{}) {
		if len(steps) > 0 && !slices.Contains(steps, step.Name) || step.Name == "media" { // these machines have none
			continue
		}
		t.Run(step.Name, func(t *testing.T) {
			inMemory := step.Name == "boot-once"
			i := create(t, l, lab.VM{Ephemeral: lab.GiB, Files: append(hooks(), machine.File{Path: "/var/vcap/bosh/crash_at",
				Data: []byte(step.Name + ":begin\n" + step.Name + ":end\n"), Mode: 0o600}), Edit: func(d lab.Document) {
				d.Set("env.bosh.authorized_keys", []string{"ssh-ed25519 ENV"}).Set("env.bosh.ipv6.enable", true)
				if inMemory {
					d.Set("env.bosh.job_dir.tmpfs", true)
				}
			}})
			defer remove(t, i)
			if step.Name == "raw-disks" {
				disk, err := i.AttachNew(t.Context(), "raw", lab.GiB)
				if err == nil {
					err = i.Change(t.Context(), func(d lab.Document) {
						d.Set("disks.raw_ephemeral",
							[]any{map[string]any{"path": disk.Path}})
					})
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if err := i.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			eventually.True(t, "the third process", func() bool { // a pong could be of one that is about to be killed
				raw, err := i.Status()
				var d status.Document
				return err == nil && json.Unmarshal(raw, &d) == nil && len(d.Earlier) == 2
			})
			ready(t, i)
			d := ended(t, i)
			if d.State != status.Ready || len(d.Earlier) != 2 || d.Steps[n].Name != step.Name ||
				d.Steps[n].Outcome != status.Done {
				t.Errorf("%s %q after %d earlier processes, step %s %s; want ready after two, and the step done", d.State,
					d.Warnings, len(d.Earlier), d.Steps[n].Name, d.Steps[n].Outcome)
			}
			if n%3 == 0 && !inMemory { // a power cut on top, for some
				if err := errors.Join(i.Kill(t.Context()), i.Start(t.Context())); err != nil {
					t.Fatal(err)
				}
				ready(t, i)
			}
		})
	}
}
