package show

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cambium/internal/golden"
	"cambium/internal/skiptest"
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
	return status.Document{Version: 1, Agent: "1.2", Supervisor: "monit", AgentID: "a-1", PID: 42,
		Started: time.Date(2026, 1, 2, 3, 4, 30, 0, time.UTC), State: status.Failed, Verdict: "disk: refused: look at it",
		Bus: &status.Bus{State: status.BusConnected, Server: "10.88.0.1:4222",
			Since: time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC)},
		Settings: &status.Settings{From: "/settings.json", Cached: true, Why: "no CDROM"},
		Warnings: []string{"time: no server"},
		Steps: []status.Step{
			{Name: "settings", Outcome: status.Done, Start: 10 * ms, End: 510 * ms, Evidence: []string{"from /settings.json"},
				Waits: []status.Wait{{For: "CDROM", Start: 110 * ms, End: 410 * ms}}},
			{Name: "disk", Outcome: status.Broken, Start: 510 * ms, End: 1000 * ms, Error: "refused"},
			{Name: "network", Outcome: status.Running, Start: 510 * ms, Waiting: "a lease",
				Waits: []status.Wait{{For: "a lease", Start: 600 * ms}}},
			{Name: "monit", Outcome: status.Pending},
		},
		Earlier: []status.Run{{PID: 41, State: status.Starting,
			Steps: []status.Step{{Name: "settings", Outcome: status.Running}}}}}
}

// dead leaves the file of an agent that was ready and does not run any more.
func dead(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "status.json")
	r, err := status.Open(path, "v")
	if err == nil {
		err = errors.Join(r.Update(func(d *status.Document) { d.State = status.Ready }), r.Stop())
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func TestStatusExitCodes(t *testing.T) {
	with := func(s status.State) string { return account(t, status.Document{State: s}) }
	withBus := func(s status.State, b status.Bus) string { return account(t, status.Document{State: s, Bus: &b}) }
	connecting := status.Bus{State: status.BusConnecting}
	missing := filepath.Join(t.TempDir(), "run", "status.json")
	for _, c := range []struct {
		name string
		args []string
		want int
	}{
		{"ready", []string{"--file", with(status.Ready)}, 0},
		{"ready, waited for", []string{"--wait", "--file", with(status.Ready)}, 0},
		{"ready without a bus", []string{"--file", withBus(status.Ready, connecting)}, 0},
		{"ready without a bus at the deadline", []string{"--wait=20ms", "--file", withBus(status.Ready, connecting)},
			4},
		{"without a bus for too long", []string{"--wait=1h", "--file",
			withBus(status.Degraded, status.Bus{State: status.BusConnecting, Overdue: true})}, 3},
		{"ready with a bus", []string{"--wait=1h", "--file", withBus(status.Ready,
			status.Bus{State: status.BusConnected})}, 0},
		{"ready and listening", []string{"--wait=1h", "--file", withBus(status.Ready,
			status.Bus{State: status.BusListening})}, 0},
		{"degraded without a bus yet", []string{"--wait=20ms", "--file", withBus(status.Degraded, connecting)}, 4},
		{"failed", []string{"--file", with(status.Failed)}, 1},
		{"failed, waited for", []string{"--wait=1h", "--file", with(status.Failed)}, 1},
		{"no agent", []string{"--file", missing}, 1},
		{"unknown flag", []string{"--hurry"}, 2},
		{"no duration", []string{"--wait=soon"}, 2},
		{"no time at all", []string{"--wait=0s"}, 2},
		{"an argument", []string{"now"}, 2},
		{"two arguments", []string{"--wait", "1s", "2s"}, 2},
		{"two durations", []string{"--wait=1s", "2s"}, 2},
		{"no duration after the flag", []string{"--wait", "soon"}, 2},
		{"ready, waited for with a limit", []string{"--wait", "1h", "--file", with(status.Ready)}, 0},
		{"starting at the deadline, as two words", []string{"--file", with(status.Starting), "--wait", "20ms"}, 4},
		{"degraded", []string{"--json", "--file", with(status.Degraded)}, 3},
		{"starting", []string{"--file", with(status.Starting)}, 4},
		{"starting at the deadline", []string{"--wait=20ms", "--file", with(status.Starting)}, 4},
		{"no agent at the deadline", []string{"--wait=20ms", "--file", missing}, 4},
		{"dead", []string{"--file", dead(t)}, 1},
		{"dead at the deadline", []string{"--wait=20ms", "--file", dead(t)}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out, problems bytes.Buffer
			if got := Status(t.Context(), c.args, &out, &problems); got != c.want {
				t.Errorf("exit code %d, want %d; %s", got, c.want, problems.String())
			}
		})
	}
}

// TestStatusWaitsForTheNextVerdict: the verdict that is there when the command begins may be out of date, unless
// nothing goes on.
func TestStatusWaitsForTheNextVerdict(t *testing.T) {
	next := time.Now().Add(time.Hour)
	old := status.Document{State: status.Failed, Verdict: "disk: none", PID: 7, Try: 2, VerdictNS: 5, NextTry: &next}
	with := func(change func(*status.Document)) status.Document { d := old; change(&d); return d }
	steps := []status.Step{{Name: "settings", Outcome: status.Running}}
	for _, c := range []struct {
		name       string
		first, now status.Document
		want       bool
	}{
		{"the old verdict", old, old, false},
		{"the next try goes on", old,
			with(func(d *status.Document) { d.State, d.Try, d.NextTry = status.Starting, 3, nil }), false},
		{"the next try has failed", old, with(func(d *status.Document) { d.Try, d.VerdictNS = 3, 9 }), true},
		{"the next try was ready", old, status.Document{State: status.Ready, PID: 7, Try: 3}, true},
		{"another process has failed", old, with(func(d *status.Document) { d.PID = 8 }), true},
		{"the first verdict", status.Document{State: status.Starting, PID: 7, Try: 2}, old, true},
		{"a step still waits", with(func(d *status.Document) { d.NextTry, d.Steps = nil, steps }),
			with(func(d *status.Document) { d.NextTry, d.Steps = nil, steps }), false},
		{"a step still waits and has said so again", with(func(d *status.Document) { d.NextTry, d.Steps = nil, steps }),
			with(func(d *status.Document) { d.NextTry, d.Steps, d.VerdictNS = nil, steps, 9 }), true},
		{"nothing goes on", with(func(d *status.Document) { d.NextTry = nil }),
			with(func(d *status.Document) { d.NextTry = nil }), true},
	} {
		if got := settled(c.now, c.first); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	path := account(t, old)
	begun := time.Now()
	if code := Status(t.Context(), []string{"--wait=50ms", "--file", path}, io.Discard, io.Discard); code != 1 ||
		time.Since(begun) < 50*time.Millisecond {
		t.Errorf("exit code %d after %v, want 1 at the deadline", code, time.Since(begun))
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
	if err := r.Update(func(d *status.Document) {
		d.State, d.Warnings = status.Ready,
			[]string{"time: no server"}
	}); err != nil {
		t.Fatal(err)
	}
	if got := <-code; got != exitDegraded {
		t.Errorf("exit code %d, want %d", got, exitDegraded)
	}
}

// TestStatusText compares the screens with files; -update writes them.
func TestStatusText(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 5, 0, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	pointer := func(t time.Time) *time.Time { return &t }
	const longest = "the agent does not trust the server's certificate: x509: certificate signed by unknown authority"
	ready := booted()
	ready.State, ready.Verdict, ready.Steps, ready.ReadyNS, ready.Settings, ready.Warnings, ready.Earlier = status.Ready,
		"", ready.Steps[:1], 1234e6, &status.Settings{From: "CDROM"}, nil, nil
	refused := ready
	refused.State, refused.Bus = status.Degraded, &status.Bus{State: status.BusRefused, Server: "10.88.0.1:4222",
		Since: ago(42 * time.Second), Tries: 17, Overdue: true, Reason: longest}
	lost := ready
	lost.Bus = &status.Bus{State: status.BusLost, Server: "10.88.0.1:4222", Since: ago(2 * time.Second), Tries: 1,
		Reason: "EOF"}
	listening := ready
	listening.Bus = &status.Bus{State: status.BusListening, Server: "0.0.0.0:6868", Since: ago(time.Hour)}
	dead := ready
	dead.State, dead.LastState, dead.Stopped = status.NotRunning, status.Ready, pointer(ago(time.Minute))
	halted := dead
	halted.Halted = true
	restarted := ready
	restarted.Restarts, restarted.Ended = 2, &status.End{How: "watchdog, killed by ABRT", At: ago(time.Minute)}
	withProblem := ready
	const withheld = status.JobsWithheld + ": persistent disk vol-1 is blank"
	withProblem.Warnings = []string{withheld} // which is printed once
	withProblem.AddFindings([]string{withheld, "no space left on /var/vcap/data: 0 of 976 MiB are free"},
		[]string{"eth0 has an MTU of 576 bytes, less than the 1280 that every IaaS supports"})
	retried := booted()
	retried.State, retried.Try, retried.Started = status.Starting, 3, ago(time.Minute)
	pausing := booted()
	pausing.Try, pausing.NextTry = 2, pointer(ago(-20*time.Second))
	for name, c := range map[string]struct {
		document status.Document
		verbose  bool
	}{
		"failed": {document: booted()}, "failed-verbose": {document: booted(), verbose: true}, "ready": {document: ready},
		"refused": {document: refused}, "lost": {document: lost},
		"listening": {document: listening}, "not-running": {document: dead}, "retried": {document: retried},
		"pausing": {document: pausing}, "problem": {document: withProblem},
		"halted": {document: halted}, "restarted": {document: restarted},
	} {
		for _, width := range []int{80, 120, 200} {
			var out bytes.Buffer
			screen{w: &out, width: width, now: now}.print(c.document, c.verbose)
			for _, line := range strings.Split(out.String(), "\n") {
				if len(line) > width {
					t.Errorf("%s: %d columns instead of %d: %s", name, len(line), width, line)
				}
			}
			if width == 80 {
				golden.Check(t, "status-"+name+".txt", out.String())
			}
		}
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
	if text, err := os.ReadFile(file.Name()); err != nil || strings.Contains(string(text), "\x1b") ||
		!strings.Contains(string(text), "failed") {
		t.Errorf("a file has %q, %v; want no colors", text, err)
	}
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "")
	if text := onTerminal(t, path); !strings.Contains(text, "\x1b[31mstate:\x1b[0m") {
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
		skiptest.Skip(t, fmt.Errorf("no terminals: %w", err))
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
