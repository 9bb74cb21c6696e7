//go:build linux

// Package labtest has the parts that tests of the whole agent share, for all engines: a lab for each test, machines
// that say why they failed, and the measuring of two agents side by side.
package labtest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cambium/internal/skiptest"
	"cambium/lab"
	"cambium/lab/baseline"
	"cambium/lab/machine"
	"cambium/lab/machine/nspawn"
)

// Kind is a kind of machines.
type Kind struct {
	// Engine makes them; the lab's own choice, containers, if nil.
	Engine machine.Engine
	// Letter begins the names of its labs.
	Letter string
	// Timeout bounds the wait for a machine to become ready, and that for a program to end.
	Timeout time.Duration
}

// built is a directory for what the tests build, which Main makes and removes.
var built string

// Main runs the tests of a package and removes what they have built. It does not return.
func Main(m *testing.M) {
	code := 1
	var err error
	if built, err = os.MkdirTemp("", "cambium-built-"); err == nil {
		code = m.Run()
		err = os.RemoveAll(built)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// Program builds a command of this project as it is shipped, and returns where it is.
func Program(name, pkg string) (string, error) {
	if built == "" { // the working directory is the package's own
		return "", fmt.Errorf("build %s: there is no directory for it; call labtest.Main in TestMain", name)
	}
	path := filepath.Join(built, name)
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-tags=nethttpomithttp2", "-ldflags=-s -w", "-o", path, pkg)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w: %s", name, err, out)
	}
	return path, nil
}

// AgentPath returns the path of the binary under test: the one that CAMBIUM_AGENT names, or one that is built once.
var AgentPath = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("CAMBIUM_AGENT"); path != "" {
		return filepath.Abs(path)
	}
	return Program("agent", "cambium/cmd/agent")
})

// Agent is the binary under test; see AgentPath.
func Agent(t testing.TB) string {
	t.Helper()
	path, err := AgentPath()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var other = sync.OnceValues(func() (string, error) { return baseline.Build(context.Background(), "../..") })

// Baseline is the binary of the agent to compare with.
func Baseline(t testing.TB) string {
	t.Helper()
	path, err := other()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Need skips a test where such machines cannot run, with the reason; in CI it fails instead.
func (k Kind) Need(t testing.TB) {
	t.Helper()
	engine := k.Engine
	if engine == nil {
		engine = nspawn.Engine{}
	}
	if err := engine.Missing(); err != nil {
		skiptest.Skip(t, err)
	}
}

var labs atomic.Int32

// LabName is one that no other lab of this host has.
func (k Kind) LabName() string { return fmt.Sprintf("%s%d-%d", k.Letter, os.Getpid(), labs.Add(1)) }

// Lab starts a lab for the test.
func (k Kind) Lab(t testing.TB, edit ...func(*lab.Options)) *lab.Lab {
	t.Helper()
	k.Need(t)
	o := lab.Options{Name: k.LabName(), Dir: t.TempDir(), Agent: Agent(t), Engine: k.Engine, Progress: t.Logf, Poll: 50 * time.Millisecond}
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

// Create makes a machine that is off. When the test fails, its logs are shown.
func Create(t testing.TB, l *lab.Lab, vm lab.VM) *lab.Instance {
	t.Helper()
	i, err := l.Create(t.Context(), vm)
	if err != nil {
		t.Fatal(err)
	}
	Explain(t, i)
	return i
}

// Start makes a machine and switches it on.
func Start(t testing.TB, l *lab.Lab, vm lab.VM) *lab.Instance {
	t.Helper()
	i := Create(t, l, vm)
	if err := i.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return i
}

// Explain has a failed test show the ends of the agent's journal and of the console, and keep
// more where it outlives the test.
func Explain(t testing.TB, i *lab.Instance) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			explain(t, i)
		}
	})
}

// shown limits the part of a log that a failed test shows, in bytes.
const shown = 8 << 10

func explain(t testing.TB, i *lab.Instance) {
	t.Helper()
	dir, err := os.MkdirTemp("", "cambium-failed-")
	if err != nil {
		t.Log(err)
		return
	}
	kept := func(name string, data []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Log(err)
		}
	}
	console, err := os.ReadFile(i.Console())
	kept("console.log", console)
	t.Logf("console (%v):\n%s", err, Tail(string(console), shown))
	if i.Running() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		journal, err := i.Journal(ctx)
		t.Logf("journal of the agent (%v):\n%s", err, Tail(journal, shown))
		for name, args := range map[string][]string{
			"journal.log": {"journalctl", "--no-pager", "--output=short-monotonic"},
			"status.json": {"cat", lab.StatusFile},
			"disks.txt":   {"sh", "-c", "lsblk -f; ls -l /dev/disk/by-*; cat /proc/self/mountinfo; ip address; ip route; ip -6 route"},
		} {
			var out bytes.Buffer
			if err := i.Run(ctx, machine.Command{Args: args, Stdout: &out, Stderr: &out}); err != nil {
				out.WriteString("\n" + err.Error())
			}
			kept(name, out.Bytes())
		}
	}
	t.Logf("what is known of %s is in %s", i.Short, dir)
}

// Tail is the end of a text.
func Tail(s string, n int) string { return s[max(0, len(s)-n):] }

// Ready waits for the agent's pong.
func (k Kind) Ready(t testing.TB, i *lab.Instance) {
	t.Helper()
	begin := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), k.Timeout)
	defer cancel()
	if err := i.Ready(ctx); err != nil {
		t.Fatalf("agent of %s is not ready: %v", i.Short, err)
	}
	t.Logf("%s: pong after %.1f s", i.Short, time.Since(begin).Seconds())
}

// Run runs a program in the machine and returns its output.
func (k Kind) Run(t testing.TB, i *lab.Instance, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), k.Timeout)
	defer cancel()
	out, err := i.Output(ctx, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
