package timeline

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"cambium/cmd/agent/cli"
	"cambium/internal/status"
)

// minAxis is the shortest axis that shows anything; a narrower terminal gets lines that are too long.
const minAxis = 16

// StateColors are the colors of the agent's state.
var StateColors = map[status.State]cli.Color{
	status.Ready:      cli.Green,
	status.Degraded:   cli.Yellow,
	status.Failed:     cli.Red,
	status.NotRunning: cli.Red,
	status.Starting:   cli.Bold,
}

// OutcomeColors are the colors of the outcome of a step.
var OutcomeColors = map[status.Outcome]cli.Color{
	status.Done:     cli.Green,
	status.Warned:   cli.Yellow,
	status.Broken:   cli.Red,
	status.Running:  cli.Bold,
	status.Skipped:  cli.Grey,
	status.Pending:  cli.Grey,
	status.Canceled: cli.Grey,
}

// signs maps the outcome of a step to the character of its bar.
var signs = map[status.Outcome]rune{
	status.Done:     '=',
	status.Warned:   '?',
	status.Broken:   'x',
	status.Running:  '>',
	status.Skipped:  '-',
	status.Canceled: '-',
}

const legend = "= done  . waiting  ? warned  x failed  > running  - unused  | moment  : ready"

// Text draws the chart in lines of at most width characters.
func Text(w io.Writer, c Chart, width int) {
	p := cli.PaletteFor(w)
	const indent, took = 2, 9
	labels := min(c.LongestLabel(), max((width-took-indent)/3, 12))
	axis := max(width-indent-labels-3-took, minAxis)
	fmt.Fprintf(w, "%s  %s", c.Title, p.Paint(StateColors[c.State], string(c.State)))
	if c.Text != "" {
		fmt.Fprintf(w, "\n%s", Clip(c.Text, width))
	}
	fmt.Fprintln(w)
	for _, r := range c.Rows {
		if r.Kind == KindTry {
			fmt.Fprintln(
				w,
				p.Paint(
					cli.Bold,
					Clip(
						strings.TrimSuffix(
							fmt.Sprintf("%s, %s: %s", r.Label, cli.Rounded(time.Duration(r.Start)), r.Note), ": "),
						width,
					),
				),
			)
			continue
		}
		length := cli.Rounded(r.Took())
		if r.Kind == KindMark {
			length = cli.Rounded(time.Duration(r.Start))
		}
		fmt.Fprintf(w, "%*s%s |%s| %s\n", indent, "", pad(label(r), labels),
			p.Paint(OutcomeColors[r.Outcome], bar(c, r, axis)), length)
	}
	fmt.Fprintf(w, "%*s%s  %s\n%s\n", indent, "", pad("", labels), axisLine(c, axis),
		p.Paint(cli.Grey, Clip(legend, width)))
}

func label(r Row) string {
	if r.Kind == KindSource {
		return "  " + r.Label
	}
	return r.Label
}

// LongestLabel returns the number of characters of the longest label.
func (c Chart) LongestLabel() (n int) {
	for _, r := range c.Rows {
		n = max(n, len([]rune(label(r))))
	}
	return n
}

// bar draws a row; the ready line goes through all of them.
func bar(c Chart, r Row, axis int) string {
	column := func(t int64) int { return min(int(c.Fraction(t)*float64(axis)), axis-1) }
	line := []rune(strings.Repeat(" ", axis))
	if c.Ready > 0 {
		line[column(c.Ready)] = ':'
	}
	if r.Kind == KindMark {
		line[column(r.Start)] = '|'
		return string(line)
	}
	sign, known := signs[r.Outcome]
	if !known {
		sign = '='
	}
	for i := column(r.Start); i <= column(r.End); i++ {
		line[i] = sign
	}
	for _, wait := range r.Waits {
		for i := column(wait.Start); i <= column(wait.End); i++ {
			line[i] = '.'
		}
	}
	if r.Outcome == status.Broken || r.Running {
		line[column(r.End)] = sign // stays visible after a wait
	}
	return string(line)
}

// axisLine puts the labels of the axis at their places.
func axisLine(c Chart, axis int) string {
	line := []rune(strings.Repeat(" ", axis+9))
	for _, t := range c.Ticks(axis/12, 12/float64(axis)) {
		copy(line[int(c.Fraction(t.At)*float64(axis)):], []rune(t.Label))
	}
	return strings.TrimRight(string(line), " ")
}

// Clip shortens a text to n characters.
func Clip(text string, n int) string {
	runes := []rune(text)
	if len(runes) <= n {
		return text
	}
	return string(runes[:max(n-1, 0)]) + "…"
}

// pad makes a text exactly n characters long.
func pad(text string, n int) string {
	text = Clip(text, n)
	return text + strings.Repeat(" ", n-len([]rune(text)))
}

// Blame lists the rows by their length.
func Blame(w io.Writer, c Chart, width int) {
	p := cli.PaletteFor(w)
	if c.Restarted {
		fmt.Fprintln(w, Clip(c.Title, width))
	}
	for _, r := range c.blame() {
		waited := ""
		if r.waited() > 0 {
			waited = cli.Rounded(r.waited())
		}
		text := r.Label
		if r.Background {
			text += " (in the background)"
		}
		if r.Note != "" {
			text += ": " + r.Note
		} else if len(r.Waits) > 0 {
			text += ": waited for " + longest(r.Waits).For
		}
		fmt.Fprintf(w, "%9s %9s  %s\n", cli.Rounded(r.Took()), waited,
			p.Paint(OutcomeColors[r.Outcome], Clip(text, width-21)))
	}
}

func longest(waits []Wait) Wait {
	return slices.MaxFunc(waits, func(a, b Wait) int { return cmp.Compare(a.End-a.Start, b.End-b.Start) })
}

// compare lists the rows of two boots side by side, with what has changed.
func compare(w io.Writer, before, after Chart, width int) {
	fmt.Fprintf(w, "%9s %9s %10s\n", "before", "now", "change")
	seen := map[string]bool{}
	for _, c := range []Chart{after, before} {
		for _, r := range c.Rows {
			if seen[r.Label] || r.Kind == KindTry {
				continue
			}
			seen[r.Label] = true
			was, is := before.length(r.Label), after.length(r.Label)
			change := ""
			if was >= 0 && is >= 0 {
				change = fmt.Sprintf("%+.1f ms", float64(is-was)/1e6)
			}
			fmt.Fprintf(w, "%9s %9s %10s  %s\n", orDash(was), orDash(is), change, Clip(r.Label, width-32))
		}
	}
}

// length returns the length of the last row with that label or, for a moment, its time; -1 without such a row.
func (c Chart) length(label string) time.Duration {
	for _, r := range slices.Backward(c.Rows) {
		if r.Label == label && r.Kind != KindTry {
			if r.Kind == KindMark {
				return time.Duration(r.Start)
			}
			return r.Took()
		}
	}
	return -1
}

func orDash(d time.Duration) string {
	if d < 0 {
		return "-"
	}
	return cli.Rounded(d)
}
