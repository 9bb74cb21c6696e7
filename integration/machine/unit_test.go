//go:build machine

package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"cambium/lab"
	"cambium/lab/machine"
	"cambium/platform/unit"
)

// systemdOf talks to the systemd of a machine from outside, through its root file system.
func systemdOf(t *testing.T, i *lab.Instance) *unit.Systemd {
	t.Helper()
	led, ok := i.Machine.(interface{ Leader() int })
	if !ok {
		t.Fatalf("%T has no processes on this host", i.Machine)
	}
	s := &unit.Systemd{Root: fmt.Sprintf("/proc/%d/root", led.Leader())}
	t.Cleanup(s.Close)
	return s
}

func TestMachineUnits(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	i := start(t, l, lab.VM{Ephemeral: lab.GiB})
	ready(t, i)
	for name, text := range map[string]string{
		"good":      "[Service]\nExecStart=/bin/sh -c 'sleep 1000 & exec sleep 2000'\nKillMode=process\nRestart=always\nRestartSec=0\n",
		"bad":       "[Service]\nType=oneshot\nExecStart=/bin/false\n",
		"condition": "[Unit]\nConditionPathExists=/no/such/path\n[Service]\nExecStart=/bin/sleep 1000\n",
		"slow":      "[Service]\nType=oneshot\nExecStart=/bin/sleep 1000\nTimeoutStartSec=infinity\n",
		// As the agent in its boot: up, but not ready until what is ordered after it runs.
		"self":     "[Service]\nType=notify\nExecStart=/bin/sleep 1000\nTimeoutStartSec=infinity\n",
		"ordered":  "[Unit]\nAfter=t-self.service\n[Service]\nExecStart=/bin/sleep 1000\n",
		"hesitant": "[Service]\nType=oneshot\nExecStart=/bin/sleep 3\nRemainAfterExit=yes\n",
	} {
		if err := i.WriteFile(machine.File{Path: "/etc/systemd/system/t-" + name + ".service", Data: []byte(text),
			Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
	}
	run(t, i, "systemctl", "daemon-reload")
	s := systemdOf(t, i)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	if err := s.Start(ctx, "t-good"); err != nil {
		t.Fatal(err)
	}
	first, err := s.State(ctx, "t-good")
	if err != nil || first.Active != "active" || first.Sub != "running" || first.MainPID == 0 {
		t.Fatalf("got %+v, %v, want it running", first, err)
	}
	if err := s.Start(ctx, "t-good"); err != nil {
		t.Errorf("starting what runs: %v", err)
	}
	// systemd calls a unit running before its shell has started the child.
	children := func() string {
		return strings.TrimSpace(run(t, i, "sh", "-c", "until pgrep -f '^sleep 1000$'; do sleep 0.01; done"))
	}
	child := children()
	if err := s.Kill(ctx, "t-good"); err != nil {
		t.Fatal(err)
	}
	for state := first; state.MainPID == first.MainPID || state.MainPID == 0; {
		if state, err = s.State(ctx, "t-good"); err != nil {
			t.Fatal(err)
		}
	}
	if now := children(); !strings.HasPrefix(now, child) {
		t.Errorf("children are %q, want %s still among them: a signal is for the main process alone", now, child)
	}
	before, err := s.State(ctx, "t-good")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Restart(ctx, "t-good"); err != nil {
		t.Fatal(err)
	}
	if after, err := s.State(ctx, "t-good"); err != nil || after.MainPID == before.MainPID || !after.Running() {
		t.Errorf("got %+v, %v, want a process other than %d", after, err, before.MainPID)
	}
	if err := s.Stop(ctx, "t-good"); err != nil {
		t.Fatal(err)
	}
	if state, err := s.State(ctx, "t-good"); err != nil || state.Running() {
		t.Errorf("got %+v, %v, want it stopped", state, err)
	}

	var job *unit.JobError
	if err := s.Start(ctx, "t-bad"); !errors.As(err, &job) || job.Result != "failed" || job.State.Active != "failed" ||
		job.State.Result != "exit-code" {
		t.Errorf("got %v, want the job failed by an exit code", err)
	}
	if err := s.Start(ctx, "t-condition"); !errors.Is(err, unit.ErrCondition) {
		t.Errorf("got %v, want ErrCondition", err)
	}
	if err := s.Start(ctx, "t-never-heard-of"); !errors.Is(err, unit.ErrNotFound) {
		t.Errorf("got %v, want ErrNotFound", err)
	}
	short, end := context.WithTimeout(ctx, 200*time.Millisecond)
	defer end()
	if err := s.Start(short, "t-slow"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the deadline", err)
	}

	// What waits for our own unit to be ready is started all the same.
	run(t, i, "systemctl", "start", "--no-block", "t-self", "t-ordered")
	s.Self = "t-self"
	limited, stop := context.WithTimeout(ctx, 10*time.Second)
	defer stop()
	if err := s.Start(limited, "t-ordered"); err != nil {
		t.Errorf("a unit ordered after our own: %v", err)
	}
	if state, err := s.State(ctx, "t-self"); err != nil || state.Active != "activating" {
		t.Errorf("got %+v, %v, want our own unit still starting", state, err)
	}
	s.Self = ""

	// Without systemd's private socket the same works over the message bus.
	overBus := &unit.Systemd{Root: t.TempDir()}
	t.Cleanup(overBus.Close)
	if err := os.MkdirAll(filepath.Join(overBus.Root, "run"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(s.Root, "run/dbus"), filepath.Join(overBus.Root, "run/dbus")); err != nil {
		t.Fatal(err)
	}
	if err := overBus.Start(ctx, "t-good"); err != nil {
		t.Errorf("over the message bus: %v", err)
	}
	if err := overBus.Start(ctx, "t-bad"); !errors.As(err, &job) || job.Result != "failed" {
		t.Errorf("over the message bus: got %v, want the job failed", err)
	}

	// systemd re-executes itself while a job runs: the wait goes on, on both ways to it.
	for _, way := range []*unit.Systemd{s, overBus} {
		if err := s.Stop(ctx, "t-hesitant"); err != nil {
			t.Fatal(err)
		}
		result := make(chan error)
		go func() { result <- way.Start(ctx, "t-hesitant") }()
		for state := (unit.State{}); state.Active != "activating"; {
			if state, err = s.State(ctx, "t-hesitant"); err != nil {
				t.Fatal(err)
			}
		}
		run(t, i, "systemctl", "daemon-reexec")
		if err := <-result; err != nil {
			t.Errorf("over a re-execution of systemd: %v", err)
		}
	}
}

func TestMachinePowerOff(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	i := start(t, l, lab.VM{Ephemeral: lab.GiB})
	ready(t, i)
	pid, err := strconv.Atoi(strings.TrimSpace(run(t, i, "systemctl", "show", "-P", "MainPID", "agent.service")))
	if err != nil || pid == 0 {
		t.Fatalf("agent has process %d, %v", pid, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := systemdOf(t, i).PowerOff(ctx); err != nil {
		t.Fatal(err)
	}
	select {
	case <-i.Done():
	case <-ctx.Done():
		t.Error("the machine is still on")
	}
}
