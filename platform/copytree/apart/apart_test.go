package apart

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cambium/platform/copytree"
)

func TestMain(m *testing.M) {
	ServeIfCalled()
	os.Exit(m.Run())
}

const program = "/proc/self/exe"

func begin(t *testing.T, ctx context.Context) *Trees {
	t.Helper()
	other, err := Start(ctx, program)
	if err != nil {
		t.Fatal(err)
	}
	return other
}

// odd is a name that is no text.
const odd = "n\xff\xfee"

func trees(t *testing.T) (from, to string) {
	t.Helper()
	from, to = t.TempDir(), t.TempDir()
	for _, name := range []string{"a", "b", odd} {
		if err := os.WriteFile(filepath.Join(from, name), []byte("content of "+name), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	return from, to
}

func TestCopiesAndVerifies(t *testing.T) {
	from, to := trees(t)
	other := begin(t, t.Context())
	counter := &copytree.Counter{}
	o := copytree.Options{Exact: true, Progress: counter}
	if err := errors.Join(other.Copy(t.Context(), from, to, o), other.Verify(t.Context(), from, to, o)); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(to, "a")); err != nil || string(got) != "content of a" {
		t.Errorf("the copy holds %q, %v", got, err)
	}
	if p := counter.Load(); p.Files != 4 || p.Bytes == 0 {
		t.Errorf("progress is %+v, want three files and their directory", p)
	}
	if err := os.WriteFile(filepath.Join(to, odd), []byte("other than "+odd), 0o640); err != nil {
		t.Fatal(err)
	}
	var differs *copytree.DifferenceError
	if err := other.Verify(t.Context(), from, to, o); !errors.As(err, &differs) || differs.Path != odd || !strings.Contains(err.Error(), "differs in") {
		t.Errorf("got %v, want a difference in %q", err, odd)
	}
	if err := other.Copy(t.Context(), filepath.Join(from, "nowhere"), to, o); !errors.Is(err, unix.ENOENT) || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("got %v, want the kernel's reason and the name", err)
	}
	if err := other.Close(); err != nil {
		t.Error(err)
	}
}

// occupied is a target that somebody works on, so that whoever wants to copy there waits.
func occupied(t *testing.T) (from, to string) {
	t.Helper()
	from, to = trees(t)
	dir, err := os.Open(to)
	if err == nil {
		err = unix.Flock(int(dir.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dir.Close() })
	return from, to
}

// waiting copies to an occupied target, and returns when the other process says that it is at it.
func waiting(t *testing.T, ctx context.Context, other *Trees) <-chan error {
	t.Helper()
	from, to := occupied(t)
	counter := &copytree.Counter{}
	counter.Set(copytree.Progress{Files: -1})
	ended := make(chan error, 1)
	go func() { ended <- other.Copy(ctx, from, to, copytree.Options{Exact: true, Progress: counter}) }()
	for deadline := time.Now().Add(time.Minute); counter.Load().Files != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no progress is told")
		}
	}
	if names, err := os.ReadDir(to); err != nil || len(names) > 0 {
		t.Fatalf("%v, %v: it does not wait for who was there before", names, err)
	}
	return ended
}

func gone(pid int) bool { return errors.Is(unix.Kill(pid, 0), unix.ESRCH) }

func TestEndsWithItsContext(t *testing.T) {
	stopped := errors.New("stopped")
	ctx, cancel := context.WithCancelCause(t.Context())
	other := begin(t, ctx)
	ended := waiting(t, ctx, other)
	cancel(stopped)
	if err := <-ended; !errors.Is(err, stopped) {
		t.Errorf("got %v, want what stopped it", err)
	}
	if err := other.Close(); err != nil || !gone(other.process.Pid()) {
		t.Errorf("got %v; the process is gone: %v", err, gone(other.process.Pid()))
	}
}

// The agent may be killed at any time: all that the other process sees is that its input ends.
func TestEndsWithItsAgent(t *testing.T) {
	other := begin(t, t.Context())
	ended := waiting(t, t.Context(), other)
	if err := other.Close(); err != nil || !gone(other.process.Pid()) {
		t.Errorf("got %v; the process is gone: %v", err, gone(other.process.Pid()))
	}
	if err := <-ended; err == nil {
		t.Error("a copy that was never made has succeeded")
	}
}

func TestSaysHowItEnded(t *testing.T) {
	other := begin(t, t.Context())
	ended := waiting(t, t.Context(), other)
	if err := unix.Kill(other.process.Pid(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "ended") {
		t.Errorf("got %v, want that the process ended", err)
	}
	if err := other.Close(); err == nil || !strings.Contains(err.Error(), "the process that copies: killed by SIGKILL") {
		t.Errorf("got %v, want how", err)
	}
}

func TestRefusesWhatItDoesNotKnow(t *testing.T) {
	other := begin(t, t.Context())
	if err := other.do(t.Context(), request{Do: "format"}, nil); err == nil {
		t.Error("an unknown request has succeeded")
	}
	if err := other.Close(); err == nil || !strings.Contains(err.Error(), `request "format" is not known`) {
		t.Errorf("got %v, want what was not known", err)
	}
}
