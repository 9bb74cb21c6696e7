//go:build machine

// Package machine holds the tests of the real binary under a real systemd, in machines of the
// lab. Each test makes a lab of its own and removes it, also when it fails.
package machine

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"cambium/integration/lab"
	"cambium/integration/lab/machine/nspawn"
)

// need skips a test where machines cannot run, with the reason; in CI it fails instead.
func need(t testing.TB) {
	t.Helper()
	if err := (nspawn.Engine{}).Missing(); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

// agentBinary builds the agent once, or takes the one that CAMBIUM_AGENT names.
var agentBinary = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("CAMBIUM_AGENT"); path != "" {
		return filepath.Abs(path)
	}
	dir, err := os.MkdirTemp("", "cambium-agent-")
	if err != nil {
		return "", err
	}
	built = dir
	path := filepath.Join(dir, "agent")
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, "cambium/cmd/agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the agent: %w: %s", err, out)
	}
	return path, nil
})

// built is the directory of the agent that was built, to be removed in the end.
var built string

func TestMain(m *testing.M) {
	code := m.Run()
	if built != "" {
		_ = os.RemoveAll(built)
	}
	os.Exit(code)
}

var labs int

// newLab starts a lab for the test. Tests of this package run one after the other.
func newLab(t testing.TB, edit ...func(*lab.Options)) *lab.Lab {
	t.Helper()
	need(t)
	agent, err := agentBinary()
	if err != nil {
		t.Fatal(err)
	}
	labs++
	o := lab.Options{Name: fmt.Sprintf("t%d-%d", os.Getpid(), labs), Dir: t.TempDir(), Agent: agent, Progress: t.Logf, Poll: 50 * time.Millisecond}
	for _, e := range edit {
		e(&o)
	}
	l, err := lab.New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(context.Background()); err != nil {
			t.Errorf("lab was not removed: %v", err)
		}
	})
	return l
}

// start creates and starts a machine.
func start(t testing.TB, l *lab.Lab, vm lab.VM) *lab.Instance {
	t.Helper()
	i := create(t, l, vm)
	if err := i.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return i
}

// create makes a machine. When the test fails, its console and the agent's journal are shown.
func create(t testing.TB, l *lab.Lab, vm lab.VM) *lab.Instance {
	t.Helper()
	i, err := l.Create(t.Context(), vm)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		if i.Running() {
			journal, err := i.Journal(context.Background())
			t.Logf("journal of the agent (%v):\n%s", err, journal)
		}
		console, err := os.ReadFile(i.Console())
		t.Logf("console (%v):\n%s", err, tail(string(console), 8<<10))
	})
	return i
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

// ready waits for the agent's pong.
func ready(t testing.TB, i *lab.Instance) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := i.Ready(ctx); err != nil {
		t.Fatalf("agent of %s is not ready: %v", i.Short, err)
	}
}

// run runs a program in the machine and returns its output.
func run(t testing.TB, i *lab.Instance, args ...string) string {
	t.Helper()
	out, err := i.Output(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
