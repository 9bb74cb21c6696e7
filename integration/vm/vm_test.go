//go:build vm

// Package vm holds the tests of the real binary in virtual machines of the lab: real kernel,
// udev, disks that come and go, power cuts.
package vm

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cambium/integration/lab"
	"cambium/integration/lab/image"
	"cambium/integration/lab/machine/qemu"
	"cambium/integration/lab/tree"
)

// engine is the one of the tests.
func engine() qemu.Engine { return qemu.Engine{Images: image.Cache{Dir: tree.DefaultDir()}} }

// agentBinary builds the agent once, or takes the one that CAMBIUM_AGENT names.
var agentBinary = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("CAMBIUM_AGENT"); path != "" {
		return filepath.Abs(path)
	}
	path := filepath.Join(built, "agent")
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", path, "cambium/cmd/agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the agent: %w: %s", err, out)
	}
	return path, nil
})

// built is a directory for what the tests build, removed in the end.
var built string

func TestMain(m *testing.M) {
	var err error
	if built, err = os.MkdirTemp("", "cambium-vm-"); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(built)
	os.Exit(code)
}

var labs atomic.Int32

// need skips a test where virtual machines cannot run, with the reason; in CI it fails instead.
func need(t testing.TB) {
	t.Helper()
	if err := engine().Missing(); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

// newLab starts a lab of virtual machines for the test.
func newLab(t testing.TB, edit ...func(*lab.Options)) *lab.Lab {
	t.Helper()
	need(t)
	agent, err := agentBinary()
	if err != nil {
		t.Fatal(err)
	}
	o := lab.Options{Name: fmt.Sprintf("q%d-%d", os.Getpid(), labs.Add(1)), Dir: t.TempDir(), Agent: agent, Engine: engine(),
		Progress: t.Logf, Poll: 50 * time.Millisecond}
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

// create makes a machine that is off. When the test fails, its console, journal and status are kept, and
// the test says where.
func create(t testing.TB, l *lab.Lab, vm lab.VM) *lab.Instance {
	t.Helper()
	i, err := l.Create(t.Context(), vm)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			keep(t, i)
		}
	})
	return i
}

// start makes a machine and switches it on.
func start(t testing.TB, l *lab.Lab, vm lab.VM) *lab.Instance {
	t.Helper()
	i := create(t, l, vm)
	if err := i.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return i
}

// keep copies what tells why a machine failed to where it outlives the test.
func keep(t testing.TB, i *lab.Instance) {
	dir, err := os.MkdirTemp("", "cambium-vm-failed-")
	if err != nil {
		t.Log(err)
		return
	}
	if from, err := os.Open(i.Console()); err == nil {
		if to, err := os.Create(filepath.Join(dir, "console.log")); err == nil {
			_, _ = io.Copy(to, from)
			_ = to.Close()
		}
		_ = from.Close()
	}
	if i.Running() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		for name, args := range map[string][]string{
			"journal.log": {"journalctl", "--no-pager", "--output=short-monotonic"},
			"status.json": {"cat", lab.StatusFile},
			"disks.txt":   {"sh", "-c", "lsblk -f; ls -l /dev/disk/by-*; cat /proc/self/mountinfo; ip address; ip route; ip -6 route"},
		} {
			out, err := i.Output(ctx, args...)
			if err != nil {
				out += "\n" + err.Error()
			}
			_ = os.WriteFile(filepath.Join(dir, name), []byte(out), 0o600)
		}
	}
	t.Logf("console and logs of %s are in %s", i.Short, dir)
}

// readyTimeout is generous: an interpreted machine boots in about 20 seconds when it has the
// host for itself.
const readyTimeout = 6 * time.Minute

// ready waits for the agent's pong.
func ready(t testing.TB, i *lab.Instance) {
	t.Helper()
	begin := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), readyTimeout)
	defer cancel()
	if err := i.Ready(ctx); err != nil {
		t.Fatalf("agent of %s is not ready: %v", i.Short, err)
	}
	t.Logf("%s: pong after %.1f s", i.Short, time.Since(begin).Seconds())
}

// run runs a program in the machine and returns its output.
func run(t testing.TB, i *lab.Instance, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), readyTimeout)
	defer cancel()
	out, err := i.Output(ctx, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
