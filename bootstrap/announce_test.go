package bootstrap

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"cambium/bootstrap/engine"
	"cambium/internal/secret"
	"cambium/internal/status"
	"cambium/internal/vcap"
	"cambium/platform/host"
	"cambium/platform/platformtest"
)

// consoles makes a machine whose kernel uses the consoles in active; /dev/console leads to the last.
func consoles(t *testing.T, active string) (root string) {
	t.Helper()
	root = t.TempDir()
	for name, content := range map[string]string{"sys/class/tty/console/active": active + "\n", "dev/console": "",
		"dev/tty0": "", "dev/ttyS0": "", "dev/ttyS1": ""} {
		path := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755),
			os.WriteFile(path, []byte(content), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// Every console of the kernel has the line once, whichever of them /dev/console leads to.
func TestEveryConsoleHasTheLineOnce(t *testing.T) {
	for active, want := range map[string]string{
		"tty0 ttyS0": "console tty0", "ttyS0 tty0": "console ttyS0", "ttyS0": "console", "tty0": "console",
		"ttyS1 tty0 ttyS0": "console tty0 ttyS1", "": "console",
	} {
		root := consoles(t, active)
		Announcer{Root: root, Log: logrus.NewEntry(logrus.New())}.Waiting("settings")
		var got []string
		for _, name := range []string{"console", "tty0", "ttyS0", "ttyS1"} {
			if text, _ := os.ReadFile(filepath.Join(root, "dev", name)); strings.Count(string(text), "settings") == 1 {
				got = append(got, name)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q: the line is once on %q, want %q", active, got, want)
		}
	}
}

func TestFailedReachesLogConsolesAndServiceManager(t *testing.T) {
	root := consoles(t, "ttyS0 tty0")
	var log bytes.Buffer
	logger := logrus.New()
	logger.SetOutput(&log)
	var notified []string
	a := Announcer{Root: root, Log: logrus.NewEntry(logger), Notify: func(s string) { notified = append(notified, s) }}
	v := engine.Verdict{State: status.Failed, Step: "ephemeral-disk",
		Cause: errors.New("No ephemeral disk found: /dev/sdb does not exist"), Advice: "attach it"}
	a.Failed(t.Context(), v)
	want := "ephemeral-disk: No ephemeral disk found: /dev/sdb does not exist: attach it"
	for _, console := range []string{"dev/console", "dev/ttyS0"} {
		if got, _ := os.ReadFile(filepath.Join(root, console)); !strings.Contains(string(got),
			"bosh-agent: not ready: "+want+"\r\n") {
			t.Errorf("%s got %q", console, got)
		}
	}
	if got, _ := os.ReadFile(filepath.Join(root, "dev/ttyS1")); len(got) != 0 {
		t.Errorf("a terminal that is not a console got %q", got)
	}
	if !strings.Contains(log.String(), "App setup failed: "+want) {
		t.Errorf("log: %s", log.String())
	}
	if len(notified) != 1 || notified[0] != "STATUS=failed: "+want {
		t.Errorf("service manager shows %q", notified)
	}
}

// TestPortLine: one line, printable, of at most 1,024 bytes.
func TestPortLine(t *testing.T) {
	for text, want := range map[string]string{
		"": "\n", "settings: no answer": "settings: no answer\n", "a\nb\r\nc": "a; b; c\n",
		"\x1b[2Ja\x00b\u202ec\xff":            " [2Ja b c?\n",
		strings.Repeat("x", portBytes-1):      strings.Repeat("x", portBytes-1) + "\n",
		strings.Repeat("x", portBytes):        strings.Repeat("x", portBytes-1) + "\n",
		strings.Repeat("x", 1022) + "é…":      strings.Repeat("x", 1022) + "\n",
		strings.Repeat("x", 1021) + "é" + "…": strings.Repeat("x", 1021) + "é\n",
	} {
		if got := portLine(text); got != want {
			t.Errorf("%q:\ngot  %q\nwant %q", text, got, want)
		}
	}
}

// TestVerdictGoesToThePort: each verdict is appended as a line, without a secret. Where nobody reads, or the device is
// missing, neither does an announcement wait, nor does another channel lose it.
func TestVerdictGoesToThePort(t *testing.T) {
	root := consoles(t, "ttyS0")
	a := Announcer{Root: root, Log: logrus.NewEntry(logrus.New()), Port: "/dev/port"}
	path := filepath.Join(root, "dev/port")
	v := engine.Verdict{State: status.Failed, Step: "settings", Advice: "correct it",
		Cause: fmt.Errorf("ask %v:\nno answer", secret.NewURL("https://user:canary@h/"))}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	a.Failed(t.Context(), v)
	a.Ready(engine.Verdict{State: status.Ready}, 1500*time.Millisecond)
	got, _ := os.ReadFile(path)
	first, rest, _ := strings.Cut(string(got), "\n")
	if !strings.HasPrefix(first, "not ready: settings: ask ") || !strings.HasSuffix(first, "; no answer: correct it") ||
		rest != "ready after 1.5s\n" || strings.Contains(first, "canary") {
		t.Errorf("the port got %q", got)
	}
	fifo := func() error { return unix.Mkfifo(path, 0o600) }
	for name, device := range map[string]func() error{"no device": func() error { return nil }, "no reader": fifo,
		"hung reader": func() error {
			err := fifo()
			fd, opening := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
			t.Cleanup(func() { _ = unix.Close(fd) })
			for full := opening; full == nil; {
				_, full = unix.Write(fd, make([]byte, 4096))
			}
			return errors.Join(err, opening)
		},
	} {
		if err := errors.Join(os.Remove(path), device()); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(filepath.Join(root, "dev/console"), 0); err != nil {
			t.Fatal(err)
		}
		a.Failed(t.Context(), v)
		if text, _ := os.ReadFile(filepath.Join(root, "dev/console")); !strings.Contains(string(text),
			"not ready: settings") {
			t.Errorf("%s: the console got %q", name, text)
		}
		if err := os.WriteFile(path+".next", nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".next", path); err != nil {
			t.Fatal(err)
		}
	}
}

func TestReadyMarkerBelongsToOneAgent(t *testing.T) {
	m := ReadyMarker{Dirs: vcap.New(t.TempDir())}
	if !m.First("a") {
		t.Error("a fresh disk is not first")
	}
	for range 2 {
		if err := m.Set("a"); err != nil {
			t.Fatal(err)
		}
	}
	if m.First("a") || !m.First("b") {
		t.Errorf("First(a) %v, First(b) %v; want false, true", m.First("a"), m.First("b"))
	}
}

func TestBootOnce(t *testing.T) {
	dirs := vcap.New(t.TempDir())
	if err := os.MkdirAll(dirs.CanRestart(), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := CheckBootOnce(dirs); err != nil {
		t.Errorf("first boot: %v", err)
	}
	for _, want := range []int{2, 0} {
		goals, _ := (&Machine{Dirs: dirs, Host: &host.Host{Root: "/", Log: platformtest.Quiet()}}).bootOnce(t.Context(), nil)
		written, err := goals[0].Converge(t.Context())
		if err := errors.Join(err, CheckBootOnce(dirs)); err != nil || len(written) != want {
			t.Errorf("agent restart: %v, wrote %q, want %d files", err, written, want)
		}
	}
	if err := os.RemoveAll(dirs.CanRestart()); err != nil { // what a reboot does to a tmpfs
		t.Fatal(err)
	}
	if err := CheckBootOnce(dirs); !errors.Is(err, errBootOnce) {
		t.Errorf("reboot: got %v, want ErrBootOnce", err)
	}
}
