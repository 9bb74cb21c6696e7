package timeline

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cambium/cmd/agent/cli"
	"cambium/internal/golden"
	"cambium/internal/status"
	"cambium/internal/vcap"
)

const ms = int64(time.Millisecond)

// booted is a boot that ended well: five steps, of which one waited and one had two sources.
func booted() status.Document {
	return status.Document{AgentID: "a-1", State: status.Ready, ReadyNS: 120 * ms,
		Origin: &status.Origin{Kernel: -4200 * ms, Init: -3100 * ms, Process: -15 * ms},
		Marks:  []status.Mark{{Name: status.MarkBus, At: 90 * ms}, {Name: status.MarkHeartbeat, At: 140 * ms}},
		Steps: []status.Step{
			{Name: "settings", Outcome: status.Done, Start: 2 * ms, End: 40 * ms, Waits: []status.Wait{{For: "the metadata service", Start: 5 * ms, End: 35 * ms}},
				Parts: []status.Part{{Name: "HTTP http://169.254.169.254/latest/user-data", Outcome: "used", Start: 3 * ms,
					End: 39 * ms}, {Name: "CDROM", Outcome: "failed", Why: "no medium", Start: 3 * ms, End: 4 * ms}}},
			{Name: "network", Outcome: status.Done, Start: 41 * ms, End: 80 * ms},
			{Name: "ephemeral-disk", Outcome: status.Done, Start: 41 * ms, End: 110 * ms},
			{Name: "dns", Outcome: status.Warned, Start: 111 * ms, End: 150 * ms, Background: true, Error: "resolver is slow"},
			{Name: "raw-disks", Outcome: status.Skipped},
		}}
}

// stuck is a boot whose first two tries failed, and whose third waits.
func stuck() status.Document {
	d := booted()
	failed := []status.Step{{Name: "settings", Outcome: status.Done, Start: 1 * ms, End: 9 * ms},
		{Name: "ephemeral-disk", Outcome: status.Broken, Start: 9 * ms, End: 30_000 * ms, Error: "no disk"}}
	retried := []status.Step{{Name: "settings", Outcome: status.Done, Start: 45_000 * ms, End: 45_010 * ms},
		{Name: "ephemeral-disk", Outcome: status.Broken, Start: 45_010 * ms, End: 75_000 * ms, Error: "no disk"}}
	d.State, d.ReadyNS, d.Marks, d.Verdict = status.Starting, 0, nil, "ephemeral-disk: no disk"
	d.Tries = []status.Try{{Verdict: "ephemeral-disk: no disk", Steps: failed},
		{Verdict: "ephemeral-disk: no disk", Steps: retried}}
	d.Steps = []status.Step{{Name: "settings", Outcome: status.Running, Start: 95_000 * ms,
		Waiting: "http://169.254.169.254", Waits: []status.Wait{{For: "http://169.254.169.254", Start: 95_001 * ms}}}}
	return d
}

// longDocument is a boot with sixty steps.
func longDocument() status.Document {
	d := booted()
	for i := range int64(55) {
		d.Steps = append(d.Steps, status.Step{Name: fmt.Sprintf("a step with quite a long name, number %d", i),
			Outcome: status.Done, Start: (150 + 20*i) * ms, End: (160 + 21*i) * ms})
	}
	return d
}

func row(t *testing.T, c Chart, label string) Row {
	t.Helper()
	for _, r := range c.Rows {
		if r.Label == label {
			return r
		}
	}
	t.Fatalf("there is no row %q in %+v", label, c.Rows)
	return Row{}
}

func TestChart(t *testing.T) {
	c := NewChart(booted(), 500*ms)
	if c.Begin != -4200*ms || c.Agent != -15*ms || c.End != 150*ms || c.Ready != 120*ms {
		t.Errorf("axis from %d over %d to %d, ready %d", c.Begin, c.Agent, c.End, c.Ready)
	}
	if r := row(t, c, "init until the unit's start"); r.Took() != 3085*time.Millisecond {
		t.Errorf("init took %s", r.Took())
	}
	if r := row(t, c, "CDROM"); r.Kind != KindSource || r.Note != "failed: no medium" {
		t.Errorf("source: %+v", r)
	}
	if r := row(t, c, status.MarkHeartbeat); r.Start != 140*ms || r.Kind != KindMark {
		t.Errorf("heartbeat: %+v", r)
	}
	for _, r := range c.Rows {
		if r.Label == "raw-disks" {
			t.Error("a step that never ran has a row")
		}
	}
	if first := c.blame()[0]; first.Label != "init until the unit's start" {
		t.Errorf("the longest row is %q", first.Label)
	}
	if a, b := c.Fraction(c.Agent), c.Fraction(c.End); a != machineShare || b != 1 || c.Fraction(c.Begin) != 0 {
		t.Errorf("the agent begins at %v of the axis and ends at %v", a, b)
	}
}

// TestChartOfTheUnit: what ExecStartPre= took is not init's.
func TestChartOfTheUnit(t *testing.T) {
	d := booted()
	d.Origin.Unit = -1015 * ms
	c := NewChart(d, 500*ms)
	if init, unit := row(t, c, "init until the unit's start"),
		row(t, c, "unit until the program's start"); init.Took() != 2085*time.Millisecond || unit.Took() != time.Second {
		t.Errorf("init took %s, the unit %s", init.Took(), unit.Took())
	}
}

// TestChartOfSourcesThatAreAsked: each has its row, which reaches as far as its step.
// TestChartOfARestart: hours since the boot of the machine are not a part of the agent's restart.
func TestChartOfARestart(t *testing.T) {
	d := status.Document{AgentID: "a", State: status.Ready, ReadyNS: int64(time.Second), Earlier: []status.Run{{PID: 7}},
		Origin: &status.Origin{Kernel: -int64(6 * time.Hour), Init: -int64(5 * time.Hour),
			Unit: -int64(2 * time.Millisecond), Process: -int64(time.Millisecond)},
		Steps: []status.Step{{Name: "network", Outcome: status.Done, Start: 1, End: int64(time.Second / 2)}}}
	c := NewChart(d, int64(time.Minute))
	var out strings.Builder
	Blame(&out, c, 80)
	if text := out.String(); !strings.HasPrefix(text, "agent a, restarted (once in this boot)\n") ||
		!strings.Contains(text, "restart: program start") || strings.Contains(text, "init until") ||
		strings.Contains(text, "h0m") {
		t.Errorf("the restart does not show:\n%s", text)
	}
	if c.Begin != d.Origin.Unit {
		t.Errorf("the chart begins at %d", c.Begin)
	}
}

func TestChartOfSourcesThatAreAsked(t *testing.T) {
	d := stuck()
	d.Steps[0].Parts = []status.Part{{Name: "HTTP", Outcome: "no answer", Why: "404", Start: 95_000 * ms},
		{Name: "CDROM", Outcome: "failed", Start: 95_000 * ms, End: 95_001 * ms}}
	c := NewChart(d, 100_000*ms)
	if r := row(t, c, "HTTP"); !r.Running || r.Outcome != status.Running || r.End != 100_000*ms ||
		r.Note != "no answer: 404" {
		t.Errorf("a source that is asked: %+v", r)
	}
	if r := row(t, c, "CDROM"); r.Running || r.End != 95_001*ms {
		t.Errorf("a source that has failed: %+v", r)
	}
	d.Steps[0].Outcome, d.Steps[0].End = status.Broken, 99_000*ms
	if r := row(t, NewChart(d, 100_000*ms), "HTTP"); r.Running || r.End != 99_000*ms {
		t.Errorf("a source of a step that was given up: %+v", r)
	}
}

func TestChartOfAStuckBoot(t *testing.T) {
	c := NewChart(stuck(), 100_000*ms)
	tries, broken := 0, 0
	for _, r := range c.Rows {
		if r.Kind == KindTry {
			tries++
		}
		if r.Outcome == status.Broken {
			broken++
		}
	}
	if tries != 3 || broken != 2 {
		t.Errorf("%d tries with %d failures, want 3 and 2", tries, broken)
	}
	last := c.Rows[len(c.Rows)-1]
	if !last.Running || last.End != 100_000*ms || c.End != last.End || last.Waits[0].End != last.End ||
		!strings.Contains(last.Note, "169.254") {
		t.Errorf("what runs does not reach to now: %+v", last)
	}
}

func TestTextFitsTheTerminal(t *testing.T) {
	for name, d := range map[string]status.Document{"booted": booted(), "stuck": stuck(), "many": longDocument(),
		"empty": {}} {
		for _, width := range []int{60, 80, 120, 200} {
			var out bytes.Buffer
			Text(&out, NewChart(d, 100_000*ms), width)
			Blame(&out, NewChart(d, 100_000*ms), width)
			compare(&out, NewChart(booted(), 0), NewChart(d, 100_000*ms), width)
			for _, line := range strings.Split(out.String(), "\n") {
				if n := len([]rune(line)); n > width {
					t.Errorf("%s: a line of %d characters on a terminal of %d: %q", name, n, width, line)
				}
			}
		}
	}
	var out bytes.Buffer
	Text(&out, NewChart(stuck(), 100_000*ms), 80)
	for _, want := range []string{"try 1", "try 3", "x", ">"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}

func TestRun(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "status.json")
	rec, err := status.Open(path, "v")
	if err != nil {
		t.Fatal(err)
	}
	if err := rec.Update(func(d *status.Document) {
		d.AgentID, d.State, d.Steps = "a-1", status.Ready,
			booted().Steps
	}); err != nil {
		t.Fatal(err)
	}
	if err := rec.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "bosh"), 0o755); err != nil {
		t.Fatal(err)
	}
	run := func(want int, args ...string) string {
		t.Helper()
		var stdout, stderr bytes.Buffer
		if code := Run(t.Context(), append([]string{"--file", path, "-b", dir}, args...), &stdout, &stderr); code != want {
			t.Errorf("%v: exit code %d, want %d: %s", args, code, want, stderr.String())
		}
		return stdout.String()
	}
	if out := run(0); !strings.Contains(out, "ephemeral-disk") || !strings.Contains(out, "init until") {
		t.Errorf("got\n%s", out)
	}
	run(1, "--boot", "-1")
	run(2, "--boot", "1")
	for i := range 7 {
		old := booted()
		old.BootID, old.AgentID = fmt.Sprint("boot-", i), fmt.Sprint("old-", i)
		for range 2 { // the second replaces the first
			if err := status.AddBoot(vcap.New(dir).Boots(), old); err != nil {
				t.Fatal(err)
			}
		}
	}
	if out := run(0, "--boot", "-2"); !strings.Contains(out, "agent old-5") || !strings.Contains(out, "before") {
		t.Errorf("got\n%s", out)
	}
	run(1, "--boot", "-6") // five are kept
	run(2, "--html", filepath.Join(dir, "a.html"))
}

// TestScreens keeps what is drawn at 80 columns as files; -update writes them.
func TestScreens(t *testing.T) {
	asked := stuck()
	slower := booted()
	slower.Steps[1].End += 20 * ms
	asked.Steps[0].Parts = []status.Part{{Name: "HTTP http://169.254.169.254", Outcome: "no answer", Why: "404",
		Start: 95_000 * ms}, {Name: "CDROM", Outcome: "failed", Start: 95_000 * ms, End: 95_001 * ms}}
	for name, draw := range map[string]func(*bytes.Buffer){
		"ready":   func(b *bytes.Buffer) { Text(b, NewChart(booted(), 500*ms), 80) },
		"stuck":   func(b *bytes.Buffer) { Text(b, NewChart(asked, 100_000*ms), 80) },
		"blame":   func(b *bytes.Buffer) { Blame(b, NewChart(booted(), 500*ms), 80) },
		"compare": func(b *bytes.Buffer) { compare(b, NewChart(booted(), 500*ms), NewChart(slower, 500*ms), 80) },
	} {
		var out bytes.Buffer
		draw(&out)
		for line := range strings.Lines(out.String()) {
			if len([]rune(strings.TrimSuffix(line, "\n"))) > 80 {
				t.Errorf("%s: wider than 80 columns: %s", name, line)
			}
		}
		golden.Check(t, "timeline-"+name+".txt", out.String())
	}
}

// TestJSON keeps the documents from which cmd/lab/picture draws; -update writes them.
func TestJSON(t *testing.T) {
	for name, d := range map[string]status.Document{"ready": booted(), "stuck": stuck(), "sixty": longDocument()} {
		var out bytes.Buffer
		if err := cli.WriteJSON(&out, NewChart(d, 100_000*ms)); err != nil {
			t.Fatal(err)
		}
		golden.Check(t, "timeline-"+name+".json", out.String())
	}
}
