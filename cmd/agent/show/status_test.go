package show

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cambium/cmd/agent/cli"
	"cambium/internal/status"
)

// account writes a status file and returns its path.
func account(t *testing.T, d status.Document) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "status.json")
	data, err := json.Marshal(d)
	if err == nil {
		err = os.WriteFile(path, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// booted is a boot in which everything happened that can.
func booted() status.Document {
	ms := int64(time.Millisecond)
	return status.Document{Version: 1, Agent: "1.2", Supervisor: "monit", AgentID: "a-1", PID: 42, State: status.Failed, Verdict: "disk: refused: look at it", Bus: "connected",
		Settings: &status.Settings{From: "/settings.json", Cached: true, Why: "no CDROM"}, Warnings: []string{"time: no server"},
		Steps: []status.Step{
			{Name: "settings", Outcome: status.Done, Start: 10 * ms, End: 510 * ms, Evidence: []string{"from /settings.json"},
				Waits: []status.Wait{{For: "CDROM", Start: 110 * ms, End: 410 * ms}}},
			{Name: "disk", Outcome: status.Broken, Start: 510 * ms, End: 1000 * ms, Error: "refused"},
			{Name: "network", Outcome: status.Running, Start: 510 * ms, Waiting: "a lease", Waits: []status.Wait{{For: "a lease", Start: 600 * ms}}},
			{Name: "monit", Outcome: status.Pending},
		},
		Earlier: []status.Run{{PID: 41, State: status.Starting, Steps: []status.Step{{Name: "settings", Outcome: status.Running}}}}}
}

func TestStatusExitCodes(t *testing.T) {
	with := func(s status.State) string { return account(t, status.Document{State: s}) }
	missing := filepath.Join(t.TempDir(), "run", "status.json")
	for _, c := range []struct {
		name string
		args []string
		want int
	}{
		{"ready", []string{"--file", with(status.Ready)}, 0},
		{"ready, waited for", []string{"--wait", "--file", with(status.Ready)}, 0},
		{"failed", []string{"--file", with(status.Failed)}, 1},
		{"failed, waited for", []string{"--wait=1h", "--file", with(status.Failed)}, 1},
		{"no agent", []string{"--file", missing}, 1},
		{"unknown flag", []string{"--hurry"}, 2},
		{"no duration", []string{"--wait=soon"}, 2},
		{"no time at all", []string{"--wait=0s"}, 2},
		{"an argument", []string{"now"}, 2},
		{"two arguments", []string{"--wait", "1s", "2s"}, 2},
		{"two durations", []string{"--wait=1s", "2s"}, 2},
		{"no duration behind the flag", []string{"--wait", "soon"}, 2},
		{"ready, waited for with a limit", []string{"--wait", "1h", "--file", with(status.Ready)}, 0},
		{"starting at the deadline, as two words", []string{"--file", with(status.Starting), "--wait", "20ms"}, 4},
		{"degraded", []string{"--json", "--file", with(status.Degraded)}, 3},
		{"starting", []string{"--file", with(status.Starting)}, 4},
		{"starting at the deadline", []string{"--wait=20ms", "--file", with(status.Starting)}, 4},
		{"no agent at the deadline", []string{"--wait=20ms", "--file", missing}, 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out, problems bytes.Buffer
			if got := Status(t.Context(), c.args, &out, &problems); got != c.want {
				t.Errorf("exit code %d, want %d; %s", got, c.want, problems.String())
			}
		})
	}
}

func TestStatusWaitsForTheVerdict(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "status.json")
	code := make(chan int)
	go func() { code <- Status(t.Context(), []string{"--wait=1m", "--file", path}, io.Discard, io.Discard) }()
	r, err := status.Open(path, "v")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Update(func(d *status.Document) { d.State = status.Degraded }); err != nil {
		t.Fatal(err)
	}
	if got := <-code; got != exitDegraded {
		t.Errorf("exit code %d, want %d", got, exitDegraded)
	}
}

func TestStatusText(t *testing.T) {
	want := `agent a-1  failed  (pid 42, version 1.2, supervisor monit)
verdict: disk: refused: look at it
settings: /settings.json (cached copy; no CDROM)
bus: connected
warning: time: no server

  done           500ms  settings
             waited 300ms for CDROM
             from /settings.json
  failed         490ms  disk  refused
  running               network  waiting for a lease
  pending               monit
earlier: pid 41 at 0001-01-01T00:00:00Z: starting ` + "\n"
	var out, problems bytes.Buffer
	if code := Status(t.Context(), []string{"--file", account(t, booted())}, &out, &problems); code != cli.ExitFailed || out.String() != want {
		t.Errorf("code %d %s, got\n%s\nwant\n%s", code, problems.String(), out.String(), want)
	}
}

func TestTimeline(t *testing.T) {
	want := `  settings           |==.......==         | 500ms
  disk               |          ==========| 490ms
  network            |          ==........| 0s
                      0                  1s
`
	var out, problems bytes.Buffer
	if code := Timeline(t.Context(), []string{"--width", "20", "--file", account(t, booted())}, &out, &problems); code != cli.ExitOK || out.String() != want {
		t.Errorf("code %d %s, got\n%s\nwant\n%s", code, problems.String(), out.String(), want)
	}
	if code := Timeline(t.Context(), []string{"--file", filepath.Join(t.TempDir(), "none")}, &out, &problems); code != cli.ExitFailed {
		t.Errorf("without a file: code %d, want %d", code, cli.ExitFailed)
	}
}

// Colors are for people: a terminal gets them, a file does not, nor does a terminal whose user
// or type forbids them.
func TestColorsAreForTerminals(t *testing.T) {
	path := account(t, booted())
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	Status(t.Context(), []string{"--file", path}, file, io.Discard)
	if text, err := os.ReadFile(file.Name()); err != nil || strings.Contains(string(text), "\x1b") || !strings.Contains(string(text), "failed") {
		t.Errorf("a file has %q, %v; want no colors", text, err)
	}
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "")
	if text := onTerminal(t, path); !strings.Contains(text, "\x1b[31mfailed\x1b[0m") {
		t.Errorf("a terminal has %q; want colors", text)
	}
	for name, value := range map[string]string{"NO_COLOR": "1", "TERM": "dumb"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, value)
			if text := onTerminal(t, path); strings.Contains(text, "\x1b") || !strings.Contains(text, "failed") {
				t.Errorf("a terminal gets %q; want no colors", text)
			}
		})
	}
}

// onTerminal is all that a terminal gets to see of the status; one read may return a part of it.
func onTerminal(t *testing.T, path string) string {
	t.Helper()
	const end = "END OF OUTPUT"
	screen, keyboard := terminal(t)
	Status(t.Context(), []string{"--file", path}, screen, io.Discard)
	if _, err := io.WriteString(screen, end); err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	buffer := make([]byte, 4096)
	for !strings.Contains(text.String(), end) {
		n, err := keyboard.Read(buffer)
		if err != nil {
			t.Fatal(err)
		}
		text.Write(buffer[:n])
	}
	return text.String()
}

// terminal makes a terminal: what is written to the one end is read from the other.
func terminal(t *testing.T) (screen, keyboard *os.File) {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skipf("no terminals here: %v", err)
	}
	t.Cleanup(func() { _ = keyboard.Close() })
	if err := unix.IoctlSetPointerInt(int(keyboard.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(keyboard.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	screen, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = screen.Close() })
	return screen, keyboard
}
