// Package timeline is `agent timeline`: the boot as a waterfall, from the start of the kernel to the
// first heartbeat, on a terminal or as JSON. Chart turns the status document into rows;
// the renderers, here and in cmd/lab/picture, draw rows and know nothing of boots.
package timeline

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"cambium/cmd/agent/cli"
	"cambium/internal/status"
)

// Chart is a boot, ready to be drawn. All times are nanoseconds since the agent's account began.
type Chart struct {
	Title string `json:"title"`
	// Restarted means that this is not the boot of the machine, but a restart of the agent.
	Restarted bool         `json:"restarted,omitempty"`
	State     status.State `json:"state"`
	Text      string       `json:"text,omitempty"` // verdict, or how long it took
	// Begin and End delimit the axis; Agent is the start of the agent's process. Times before it are not to
	// scale.
	Begin int64 `json:"begin_ns"`
	Agent int64 `json:"agent_ns"`
	End   int64 `json:"end_ns"`
	// Ready is the time at which the agent became ready; 0 if it is not.
	Ready int64 `json:"ready_ns,omitempty"`
	Rows  []Row `json:"rows"`
}

// Kind distinguishes the rows of a chart.
type Kind string

// The kinds of rows.
const (
	KindMachine Kind = "machine" // before the agent
	KindStep    Kind = "step"
	KindSource  Kind = "source" // a part of a step
	KindMark    Kind = "mark"   // a moment
	KindTry     Kind = "try"    // a heading
)

// Row is one line of the waterfall.
type Row struct {
	Kind    Kind           `json:"kind"`
	Label   string         `json:"label"`
	Outcome status.Outcome `json:"outcome,omitempty"`
	Start   int64          `json:"start_ns"`
	End     int64          `json:"end_ns"`
	// Running rows reach to now.
	Running bool `json:"running,omitempty"`
	// Background rows are not waited for.
	Background bool   `json:"background,omitempty"`
	Waits      []Wait `json:"waits,omitempty"`
	Note       string `json:"note,omitempty"`
}

// Wait is a stretch of a row in which it could only wait.
type Wait struct {
	For   string `json:"for"`
	Start int64  `json:"start_ns"`
	End   int64  `json:"end_ns"`
}

// Took returns the length of a row.
func (r Row) Took() time.Duration { return time.Duration(r.End - r.Start) }

// waited returns the part of a row's length that was spent waiting.
func (r Row) waited() (sum time.Duration) {
	for _, w := range r.Waits {
		sum += time.Duration(w.End - w.Start)
	}
	return sum
}

// NewChart makes the chart of a document; steps that run reach to now, on the clock of the steps.
func NewChart(d status.Document, now int64) Chart {
	c := Chart{Title: "agent " + d.AgentID, State: d.State, Ready: d.ReadyNS}
	if o := d.Origin; o != nil && len(d.Earlier) > 0 {
		c.addRestart(d)
	} else if o != nil {
		if o.Kernel < 0 {
			c.Rows = append(c.Rows, Row{Kind: KindMachine, Label: "kernel", Outcome: status.Done, Start: o.Kernel, End: o.Init})
		}
		unit := o.Process
		if o.Unit < 0 {
			unit = o.Unit
		}
		c.Rows = append(c.Rows, Row{Kind: KindMachine, Label: "init until the unit's start",
			Outcome: status.Done, Start: o.Init, End: unit})
		if unit < o.Process {
			c.Rows = append(c.Rows, Row{Kind: KindMachine, Label: "unit until the program's start",
				Outcome: status.Done, Start: unit, End: o.Process})
		}
		c.Rows = append(c.Rows, Row{Kind: KindMachine, Label: "program start",
			Outcome: status.Done, Start: o.Process, End: 0})
		c.Begin = min(o.Init, o.Kernel)
		c.Agent = o.Process
	}
	for i, try := range d.Tries {
		c.Rows = append(c.Rows, heading(i+1, try.Verdict, try.Steps))
		c.addSteps(try.Steps, status.LastEvent(try.Steps))
	}
	if len(d.Tries) > 0 {
		c.Rows = append(c.Rows, heading(len(d.Tries)+1, "", d.Steps))
	}
	c.addSteps(d.Steps, now)
	marks := slices.Clone(d.Marks)
	if d.ReadyNS > 0 {
		marks = append(marks, status.Mark{Name: "ready", At: d.ReadyNS})
	}
	slices.SortStableFunc(marks, func(a, b status.Mark) int { return cmp.Compare(a.At, b.At) })
	for _, m := range marks {
		c.Rows = append(c.Rows, Row{Kind: KindMark, Label: m.Name, Outcome: status.Done, Start: m.At, End: m.At})
	}
	for _, r := range c.Rows {
		c.End = max(c.End, r.End)
	}
	c.End = max(c.End, c.Agent+1)
	switch {
	case d.Verdict != "":
		c.Text = d.Verdict
	case d.ReadyNS > 0:
		c.Text = "ready after " + cli.Rounded(time.Duration(d.ReadyNS))
	}
	return c
}

// addRestart begins the chart of an agent that was restarted in this boot: what came before is not a part of it.
func (c *Chart) addRestart(d status.Document) {
	o := d.Origin
	c.Restarted = true
	c.Title += fmt.Sprintf(", restarted (%s in this boot)", times(len(d.Earlier)))
	c.Begin, c.Agent = o.Process, o.Process
	if o.Unit < o.Process { // 0 if it is not known
		c.Begin = o.Unit
		c.Rows = append(
			c.Rows,
			Row{
				Kind:    KindMachine,
				Label:   "restart: unit until the program's start",
				Outcome: status.Done,
				Start:   o.Unit,
				End:     o.Process,
			},
		)
	}
	c.Rows = append(c.Rows,
		Row{Kind: KindMachine, Label: "restart: program start", Outcome: status.Done, Start: o.Process, End: 0})
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

func heading(n int, verdict string, steps []status.Step) Row {
	begin := int64(0)
	for _, s := range steps {
		if s.Start > 0 && (begin == 0 || s.Start < begin) {
			begin = s.Start
		}
	}
	return Row{Kind: KindTry, Label: fmt.Sprintf("try %d", n), Start: begin, End: begin, Note: verdict}
}

// addSteps adds the steps that began, in the order in which they did; what still runs reaches to now.
func (c *Chart) addSteps(steps []status.Step, now int64) {
	steps = slices.Clone(steps)
	slices.SortStableFunc(steps, func(a, b status.Step) int { return cmp.Compare(a.Start, b.Start) })
	for _, s := range steps {
		if s.Start == 0 && s.End == 0 {
			continue
		}
		r := Row{
			Kind:       KindStep,
			Label:      s.Name,
			Outcome:    s.Outcome,
			Start:      s.Start,
			End:        s.End,
			Running:    s.Outcome == status.Running,
			Background: s.Background,
			Note:       s.Error,
		}
		if s.End == 0 {
			r.End = max(now, s.Start)
		}
		if s.Waiting != "" {
			r.Note = "waiting for " + s.Waiting
		}
		for _, w := range s.Waits {
			end := w.End
			if end == 0 {
				end = r.End
			}
			r.Waits = append(r.Waits, Wait{For: w.For, Start: w.Start, End: end})
		}
		c.Rows = append(c.Rows, r)
		for _, p := range s.Parts {
			c.Rows = append(c.Rows, sourceRow(p, r))
		}
	}
}

// sourceRow is that of a source or of a piece of work; one that has not ended reaches as far as its step.
func sourceRow(p status.Part, step Row) Row {
	r := Row{
		Kind:    KindSource,
		Label:   p.Name,
		Outcome: status.Skipped,
		Start:   p.Start,
		End:     p.End,
		Note:    strings.TrimSuffix(p.Outcome+": "+p.Why, ": "),
	}
	switch {
	case p.End == 0 && step.Running:
		r.End, r.Outcome, r.Running = step.End, status.Running, true
	case p.End == 0:
		r.End = step.End
	case p.Outcome == "used":
		r.Outcome = status.Done
	case p.Outcome == string(status.Done): // work
		r.Outcome, r.Note = status.Done, p.Why
	}
	return r
}

// blame returns the rows that took time, the longest first.
func (c Chart) blame() []Row {
	rows := slices.DeleteFunc(slices.Clone(c.Rows), func(r Row) bool { return r.Took() <= 0 })
	slices.SortStableFunc(rows, func(a, b Row) int { return cmp.Compare(b.Took(), a.Took()) })
	return rows
}

// machineShare is the part of the axis for the time before the agent, which is seconds where the agent
// needs milliseconds.
const machineShare = 0.2

// Fraction maps a time to a place on the axis, from 0 to 1.
func (c Chart) Fraction(t int64) float64 {
	before := 0.0
	if c.Begin < c.Agent {
		before = machineShare
		if t < c.Agent {
			return clamp(before * float64(t-c.Begin) / float64(c.Agent-c.Begin))
		}
	}
	return clamp(before + (1-before)*float64(t-c.Agent)/float64(c.End-c.Agent))
}

func clamp(x float64) float64 { return min(max(x, 0), 1) }

// Tick is a label of the axis.
type Tick struct {
	At    int64
	Label string
}

// Ticks returns at most n round times after the start of the agent, at least gap (a part of the axis) apart.
func (c Chart) Ticks(n int, gap float64) (ticks []Tick) {
	span := c.End - c.Agent
	step := int64(1)
	for _, factors := 0, []int64{1, 2, 5}; ; {
		done := false
		for _, f := range factors {
			if span/(step*f) <= int64(n) {
				step, done = step*f, true
				break
			}
		}
		if done {
			break
		}
		step *= 10
	}
	if c.Begin < c.Agent {
		ticks = append(ticks, Tick{At: c.Begin, Label: cli.Rounded(time.Duration(c.Begin))})
	}
	first := (c.Agent + step - 1) / step * step
	for i := range int64(n) + 1 {
		t := first + i*step
		if t > c.End {
			break
		}
		if len(ticks) > 0 && c.Fraction(t)-c.Fraction(ticks[len(ticks)-1].At) < gap || c.Fraction(t) > 1-gap/2 {
			continue
		}
		ticks = append(ticks, Tick{At: t, Label: cli.Rounded(time.Duration(t))})
	}
	return ticks
}
