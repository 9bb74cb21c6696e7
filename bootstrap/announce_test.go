package bootstrap

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"

	"cambium/bootstrap/engine"
	"cambium/internal/status"
	"cambium/internal/vcap"
	"cambium/platform/host"
)

// consoles makes a machine whose kernel uses the consoles in active; /dev/console leads to the last.
func consoles(t *testing.T, active string) (root string) {
	t.Helper()
	root = t.TempDir()
	for name, content := range map[string]string{"sys/class/tty/console/active": active + "\n", "dev/console": "", "dev/tty0": "", "dev/ttyS0": "", "dev/ttyS1": ""} {
		path := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// Every console of the kernel has the line once, whichever of them /dev/console leads to.
func TestEveryConsoleHasTheLineOnce(t *testing.T) {
	for active, want := range map[string]string{
		"tty0 ttyS0": "console tty0", "ttyS0 tty0": "console ttyS0", "ttyS0": "console", "tty0": "console", "ttyS1 tty0 ttyS0": "console tty0 ttyS1", "": "console",
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
	v := engine.Verdict{State: status.Failed, Step: "ephemeral-disk", Cause: errors.New("No ephemeral disk found: /dev/sdb does not exist"), Advice: "attach it"}
	a.Failed(t.Context(), v)
	want := "ephemeral-disk: No ephemeral disk found: /dev/sdb does not exist: attach it"
	for _, console := range []string{"dev/console", "dev/ttyS0"} {
		if got, _ := os.ReadFile(filepath.Join(root, console)); !strings.Contains(string(got), "bosh-agent: not ready: "+want+"\r\n") {
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
		goals, _ := (&Machine{Dirs: dirs, Host: &host.Host{Root: "/"}}).bootOnce(t.Context(), nil)
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
