package show

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"cambium/cmd/agent/cli"
	"cambium/cmd/agent/doctor"
	"cambium/cmd/agent/timeline"
	"cambium/internal/status"
)

// screen prints a status document for people, with lines no wider than the terminal.
type screen struct {
	w       io.Writer
	palette cli.Palette
	width   int
	now     time.Time
}

func newScreen(w io.Writer, now time.Time) screen {
	return screen{w: w, palette: cli.PaletteFor(w), width: cli.Width(w), now: now}
}

// labelWidth is the column after the labels.
const labelWidth = 10

// field prints a label and a text in a color; "" means no color.
func (s screen) field(label string, color cli.Color, format string, values ...any) {
	lead := s.palette.Paint(color, label+":") + strings.Repeat(" ", max(1, labelWidth-len(label)-1))
	s.folded(lead, labelWidth, fmt.Sprintf(format, values...))
}

func (s screen) folded(lead string, indent int, text string) {
	cli.PrintFolded(s.w, s.width, lead, indent, text)
}

func (s screen) print(d status.Document, verbose bool) {
	s.field("state", timeline.StateColors[d.State], "%s", s.state(d))
	agent := fmt.Sprintf("%s, version %s, pid %d", cmp.Or(d.AgentID, "(no id yet)"), d.Agent, d.PID)
	if d.Supervisor != "" {
		agent += ", supervisor " + d.Supervisor
	}
	s.field("agent", "", "%s", agent)
	if d.Restarts > 0 || d.Ended != nil {
		text := fmt.Sprintf("%d by systemd", d.Restarts)
		if d.Ended != nil {
			text += fmt.Sprintf("; a process ended at %s: %s", d.Ended.At.Format(time.RFC3339), d.Ended.How)
		}
		s.field("restarts", cli.Yellow, "%s", text)
	}
	if d.Reboot != nil {
		s.field("reboot", "", "%s", d.Reboot.Summary())
	}
	if d.Verdict != "" {
		s.field("verdict", cli.Red, "%s", d.Verdict)
	}
	if d.Bus != nil && d.State != status.NotRunning {
		s.field("bus", busColor(d.Bus), "%s", d.Bus.Summary(d.BusAge(s.now)))
	}
	if d.Settings != nil {
		from := d.Settings.From
		if d.Settings.Cached {
			from += " (cached copy; " + d.Settings.Why + ")"
		}
		s.field("settings", "", "%s", from)
	}
	for _, text := range d.Problems {
		s.field("problem", cli.Red, "%s", text)
	}
	for _, text := range d.Warnings {
		if !slices.Contains(d.Problems, text) { // the doctor names some of the agent's own warnings as problems
			s.field("warning", cli.Yellow, "%s", text)
		}
	}
	if len(d.Problems) > 0 {
		s.field("see", "", "'agent doctor' for what to do")
	}
	for _, name := range slices.Sorted(maps.Keys(d.Progress)) {
		s.field("progress", "", "%s: %s", name, d.Progress[name].Text)
	}
	if verbose {
		s.steps(d)
		return
	}
	s.unfinished(d)
}

// state describes the state of the agent, and what comes next.
func (s screen) state(d status.Document) string {
	switch {
	case d.Halted:
		return fmt.Sprintf("not running: its process is stopped by a signal (it was %s); '%s' resumes it", d.LastState,
			doctor.ForThisMachine("systemctl kill -s CONT bosh-agent"))
	case d.State == status.NotRunning:
		since := "an unknown time"
		if d.Stopped != nil {
			since = d.Stopped.Format(time.RFC3339)
		}
		return fmt.Sprintf("not running since %s (it was %s); see '%s'", since, d.LastState,
			doctor.ForThisMachine("systemctl status bosh-agent"))
	case d.State == status.Ready:
		return "ready after " + cli.Rounded(time.Duration(d.ReadyNS))
	case d.State == status.Degraded:
		return fmt.Sprintf("degraded (ready after %s, but see below)", cli.Rounded(time.Duration(d.ReadyNS)))
	case d.State == status.Starting && d.Try > 1:
		return fmt.Sprintf("starting, try %d; the verdict is that of the last try", d.Try)
	case d.NextTry != nil:
		return fmt.Sprintf(
			"%s, try %d; the next try is at %s, or as soon as disks or links change, or with 'agent retry'",
			d.State, d.Try, d.NextTry.Format(time.RFC3339))
	default:
		return string(d.State)
	}
}

func busColor(b *status.Bus) cli.Color {
	switch {
	case b.Reachable():
		return cli.Green
	case b.Overdue:
		return cli.Red
	default:
		return cli.Yellow
	}
}

// unfinished prints the steps that are running or have not begun.
func (s screen) unfinished(d status.Document) {
	var pending []string
	for _, step := range d.Steps {
		switch step.Outcome {
		case status.Running:
			text := step.Name
			if d.State != status.NotRunning {
				text += " for " + max(0, d.Elapsed(s.now)-time.Duration(step.Start)).Round(time.Second).String()
			}
			if step.Waiting != "" {
				text += ", waiting for " + step.Waiting
			}
			s.field("running", cli.Bold, "%s", text)
		case status.Pending:
			pending = append(pending, step.Name)
		}
	}
	if len(pending) > 0 {
		s.field("pending", cli.Grey, "%s", strings.Join(pending, ", "))
	}
}

// steps prints all steps, and the earlier processes of the agent.
func (s screen) steps(d status.Document) {
	if len(d.Steps) > 0 {
		fmt.Fprintln(s.w)
	}
	for _, step := range d.Steps {
		s.step(step)
	}
	for _, r := range d.Earlier {
		s.field("earlier", "", "pid %d, started %s, %s %s", r.PID, r.Started.Format(time.RFC3339), r.State, r.Verdict)
	}
}

// stepIndent is the column at which the names of steps begin.
const stepIndent = 22

func (s screen) step(step status.Step) {
	took := ""
	if step.End > 0 {
		took = cli.Rounded(step.Took())
	}
	text := step.Name
	if step.Waiting != "" {
		text += "  waiting for " + step.Waiting
	}
	if step.Error != "" {
		text += ": " + step.Error
	}
	lead := s.palette.Paint(timeline.OutcomeColors[step.Outcome], fmt.Sprintf("%-9s", step.Outcome)) + fmt.Sprintf(
		" %10s  ",
		took,
	)
	s.folded(lead, stepIndent, text)
	detail := strings.Repeat(" ", stepIndent)
	for _, wait := range step.Waits {
		if wait.End > 0 {
			s.folded(detail, stepIndent,
				fmt.Sprintf("waited %s for %s", cli.Rounded(time.Duration(wait.End-wait.Start)), wait.For))
		}
	}
	for _, fact := range slices.Concat(step.Evidence, step.Changes) {
		s.folded(detail, stepIndent, fact)
	}
}
