package command

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cambium/internal/eventually"
)

func TestRunKeepsOutputAndStatus(t *testing.T) {
	r, err := Run(t.Context(), Cmd{Name: "sh", Args: []string{"-c", "echo out; echo err >&2"}})
	if err != nil || string(r.Stdout) != "out\n" || string(r.Stderr) != "err\n" {
		t.Errorf("got %q %q %v", r.Stdout, r.Stderr, err)
	}
	r, err = Run(t.Context(), Cmd{Name: "sh", Args: []string{"-c", "echo first >&2; echo last >&2; exit 7", "s3cret"}})
	var exit *ExitError
	if !errors.As(err, &exit) || exit.ExitCode != 7 || r.Status() != 7 {
		t.Fatalf("got %v, want exit status 7", err)
	}
	if got := err.Error(); got != "sh: exit status 7: last" {
		t.Errorf("error is %q, want program, status and last line only", got)
	}
	r, err = Run(t.Context(), Cmd{Name: "sh", Args: []string{"-c", "kill -9 $$"}})
	if err == nil || r.Status() != 137 {
		t.Errorf("killed program: status %d, %v; want 137", r.Status(), err)
	}
	if _, err := Run(t.Context(), Cmd{Name: "no-such-program-here"}); err == nil {
		t.Error("a missing program is not an error")
	}
}

func TestOutputIsBounded(t *testing.T) {
	r, err := Run(t.Context(), Cmd{Name: "sh", Args: []string{"-c", "head -c 1000000 /dev/zero | tr '\\0' x; echo END"}})
	if err != nil || len(r.Stdout) != defaultMaxOutput || !bytes.HasSuffix(r.Stdout, []byte("xEND\n")) {
		t.Errorf("kept %d bytes, %v; want the last %d", len(r.Stdout), err, defaultMaxOutput)
	}
}

func TestCancelEndsTheWholeGroup(t *testing.T) {
	pidFile := filepath.Join(t.TempDir(), "pid")
	ctx, cancel := context.WithCancelCause(t.Context())
	// Both the shell and its child ignore SIGTERM, so only the group's SIGKILL ends them.
	script := `trap "" TERM; (trap "" TERM; sleep 100) & echo $! > "$1.new"; mv "$1.new" "$1"; wait`
	p, err := Start(ctx, Cmd{Name: "sh", Args: []string{"-c", script, "sh", pidFile}, Grace: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	var child int
	eventually.True(t, "the child", func() bool {
		text, _ := os.ReadFile(pidFile)
		child, _ = strconv.Atoi(strings.TrimSpace(string(text)))
		return child != 0
	})
	cancel(errors.New("task canceled"))
	_, err = p.Wait()
	if err == nil || !strings.Contains(err.Error(), "task canceled") {
		t.Errorf("got %v, want the cause of the cancellation", err)
	}
	eventually.True(t, "the end of the child", func() bool {
		return errors.Is(unix.Kill(child, 0), syscall.ESRCH) || zombie(child)
	})
}

// zombie reports a dead process that its new parent has not reaped yet.
func zombie(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && strings.Contains(string(stat), ") Z ")
}

func TestNiceIsAddedAndCapped(t *testing.T) {
	own, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, delta := range []int{5, 40} {
		want := strconv.Itoa(min(20-own+delta, 19))
		// The program has its level when it begins, however soon it asks.
		for range 20 {
			var out bytes.Buffer
			if _, err := Run(t.Context(), Cmd{Name: "nice", Stdout: &out, Nice: delta}); err != nil ||
				strings.TrimSpace(out.String()) != want {
				t.Fatalf("nice +%d gives %q, %v; want %s", delta, out.String(), err, want)
			}
		}
	}
	if now, err := unix.Getpriority(unix.PRIO_PROCESS, 0); err != nil || now != own {
		t.Errorf("own level is %d, %v; want %d", 20-now, err, 20-own)
	}
}

// However late the agent's own threads may be, what they start is not.
func TestTimersAreNotLate(t *testing.T) {
	set := func(slack string) {
		tasks, err := filepath.Glob("/proc/self/task/*")
		if err != nil {
			t.Fatal(err)
		}
		for _, task := range tasks {
			// Another thread's is root's to set, and some may have ended.
			_ = os.WriteFile(filepath.Join("/proc", filepath.Base(task), "timerslack_ns"), []byte(slack), 0)
		}
	}
	set("3000000")
	t.Cleanup(func() { set(strconv.Itoa(timerSlack)) })
	var out bytes.Buffer
	if _, err := Run(t.Context(), Cmd{Name: "cat", Args: []string{"/proc/self/timerslack_ns"},
		Stdout: &out}); err != nil || strings.TrimSpace(out.String()) != "50000" {
		t.Errorf("a program's timers are late by %q, %v; want 50000", out.String(), err)
	}
}
