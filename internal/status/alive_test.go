package status

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"cambium/internal/skiptest"
	"cambium/internal/vcap"
)

// asAgent names the status file that the test's own program writes as an agent that is ready, until its input ends.
const asAgent = "CAMBIUM_TEST_STATUS"

func TestMain(m *testing.M) {
	if path := os.Getenv(asAgent); path != "" {
		r, err := Open(path, "v")
		if err == nil {
			err = r.Update(func(d *Document) { d.State = Ready })
		}
		if err != nil {
			panic(err)
		}
		_, _ = os.Stdout.WriteString("ready\n")
		_, _ = bufio.NewReader(os.Stdin).ReadByte()
		return
	}
	os.Exit(m.Run())
}

// startAgent runs a process that is ready.
func startAgent(t *testing.T, path string) *exec.Cmd {
	t.Helper()
	agent := exec.Command(os.Args[0])
	agent.Env = append(os.Environ(), asAgent+"="+path)
	if _, err := agent.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := agent.StdoutPipe()
	if err == nil {
		err = agent.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = agent.Process.Kill(); _ = agent.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("%q, %v", line, err)
	}
	return agent
}

// asOther observes as another user.
func asOther(t *testing.T, path string) (Document, error) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if _, err := unix.SetfsuidRetUid(4711); err != nil {
		t.Fatal(err)
	}
	d, err := Observe(path)
	if _, back := unix.SetfsuidRetUid(0); back != nil {
		t.Fatal(back)
	}
	return d, err
}

// TestObserveTheProcess: an agent that cannot answer is not ready, for root and for others.
func TestObserveTheProcess(t *testing.T) {
	skiptest.WithoutRoot(t, "to look as another user")
	dir := t.TempDir()
	path := filepath.Join(dir, "status.json")
	for at := dir; at != os.TempDir(); at = filepath.Dir(at) {
		if err := os.Chmod(at, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	agent := startAgent(t, path)
	want := func(when string, state State, halted bool) {
		t.Helper()
		for who, look := range map[string]func() (Document, error){"root": func() (Document,
			error) {
			return Observe(path)
		},
			"another user": func() (Document, error) { return asOther(t, path) }} {
			if d, err := look(); err != nil || d.State != state || d.Halted != halted {
				t.Errorf("%s: %s sees %s, halted %v, %v; want %s, %v", when, who, d.State, d.Halted, err, state, halted)
			}
		}
	}
	want("running", Ready, false)
	if err := agent.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Wait4(agent.Process.Pid, nil, unix.WUNTRACED, nil); err != nil {
		t.Fatal(err)
	}
	want("stopped by a signal", NotRunning, true)
	if err := agent.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Wait4(agent.Process.Pid, nil, unix.WCONTINUED, nil); err != nil {
		t.Fatal(err)
	}
	want("continued", Ready, false)
	if err := agent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = agent.Wait() // it was killed
	want("killed", NotRunning, false)
}

// TestHowTheLastProcessEnded: the unit writes it when the process is gone.
func TestHowTheLastProcessEnded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "status.json")
	r, err := Open(path, "v")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Flush() }()
	for text, want := range map[string]string{"": "", "success exited 0\n": "", "garbage": "",
		"exit-code exited 1\n":   "exit-code, exited with 1",
		"watchdog killed ABRT\n": "watchdog, killed by ABRT", "oom-kill killed KILL\n": "oom-kill, killed by KILL",
		"exit-code exited 2\n": "exit-code, exited with 2"} {
		if err := os.WriteFile(vcap.Run(filepath.Dir(path)).Ended(), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		d, err := Observe(path)
		got := ""
		if d.Ended != nil {
			got = strings.TrimSpace(d.Ended.How)
		}
		if err != nil || got != want || d.Ended != nil && d.Ended.At.IsZero() {
			t.Errorf("%q: %q, %v; want %q", text, got, err, want)
		}
	}
}
