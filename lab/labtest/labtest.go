//go:build linux

// Package labtest provides what tests of the whole agent share, for all engines: a lab for each test, machines that
// explain their failures, and measurements that compare two agents.
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

// Kind configures the machines of a test package.
type Kind struct {
	// Engine creates the machines; nil lets the lab choose, which means containers.
	Engine machine.Engine
	// Letter is the prefix of the names of its labs.
	Letter string
	// Timeout bounds the wait for a machine to become ready, and for a program to end.
	Timeout time.Duration
}

// built is the directory for programs that the tests build. Main creates and removes it.
var built string

// Main runs the tests of a package and removes the programs that they have built. It does not return.
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

// Program builds a command of this project with the flags of a release, and returns its path.
func Program(name, pkg string) (string, error) {
	if built == "" { // the working directory is the package's own
		return "", fmt.Errorf("build %s: there is no directory for it; call labtest.Main in TestMain", name)
	}
	path := filepath.Join(built, name)
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-tags=nethttpomithttp2", "-ldflags=-s -w", "-o",
		path, pkg)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w: %s", name, err, out)
	}
	return path, nil
}

// AgentPath returns the path of the binary under test: the value of CAMBIUM_AGENT, or a binary that is built once.
var AgentPath = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("CAMBIUM_AGENT"); path != "" {
		return filepath.Abs(path)
	}
	return Program("agent", "cambium/cmd/agent")
})

// Agent returns the path of the binary under test; see AgentPath.
func Agent(t testing.TB) string {
	t.Helper()
	path, err := AgentPath()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var other = sync.OnceValues(func() (string, error) { return baseline.Build(context.Background(), "../..") })

// Baseline returns the path of the agent to compare with.
func Baseline(t testing.TB) string {
	t.Helper()
	path, err := other()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Need skips the test if this host cannot run such machines, and fails it in CI.
func (k Kind) Need(t testing.TB) {
	t.Helper()
	engine := k.Engine
	if engine == nil {
		engine = nspawn.Engine{}
	}
	if err := engine.CheckHost(); err != nil {
		skiptest.Skip(t, err)
	}
}

var labs atomic.Int32

// LabName returns a name that no other lab of this host has.
func (k Kind) LabName() string { return fmt.Sprintf("%s%d-%d", k.Letter, os.Getpid(), labs.Add(1)) }

// Lab starts a lab for the test.
func (k Kind) Lab(t testing.TB, edit ...func(*lab.Options)) *lab.Lab {
	t.Helper()
	k.Need(t)
	o := lab.Options{Name: k.LabName(), Dir: t.TempDir(), Agent: Agent(t), Engine: k.Engine, Progress: t.Logf,
		Poll: 50 * time.Millisecond}
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

// Create creates a machine that is off. If the test fails, the logs are shown.
func Create(t testing.TB, l *lab.Lab, vm lab.VM) *lab.Instance {
	t.Helper()
	i, err := l.Create(t.Context(), vm)
	if err != nil {
		t.Fatal(err)
	}
	Explain(t, i)
	return i
}

// Start creates a machine and switches it on.
func Start(t testing.TB, l *lab.Lab, vm lab.VM) *lab.Instance {
	t.Helper()
	i := Create(t, l, vm)
	if err := i.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return i
}

// Explain makes a failing test show the end of the agent's journal and of the console. It stores more in a place that
// outlives the test.
func Explain(t testing.TB, i *lab.Instance) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			explain(t, i)
		}
	})
}

// shown limits the part of a log that a failing test shows, in bytes.
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

// Tail returns at most the last n bytes of a text.
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
