// Package show is `agent status` and `agent timeline`: the status document that the agent writes,
// for people and for scripts.
package show

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"cambium/cmd/agent/cli"
	"cambium/internal/status"
	"cambium/internal/watch"
)

// Exit codes of `agent status` beside the common ones.
const (
	exitDegraded = 3
	exitStarting = 4
)

// waitFlag is --wait, --wait=DURATION or --wait DURATION. The flag package cannot know whether the
// word behind --wait belongs to it, so Status takes it from the arguments.
type waitFlag struct {
	set   bool
	limit time.Duration // 0 is no limit
}

func (w *waitFlag) String() string   { return "" }
func (w *waitFlag) IsBoolFlag() bool { return true }
func (w *waitFlag) Set(text string) (err error) {
	w.set = true
	if text == "true" {
		return nil
	}
	w.limit, err = time.ParseDuration(text)
	if err == nil && w.limit <= 0 {
		err = errors.New("want a positive duration such as 90s")
	}
	return err
}

// Status is `agent status`.
func Status(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := cli.NewFlags("status", cli.Help{Arguments: "[--wait [DURATION]] [--json]", Purpose: `Shows how far the agent is, its verdict, and each boot step with its duration and what it
waited for. Exit codes: 0 ready, 1 failed (or no agent), 2 usage, 3 degraded (ready with
warnings), 4 still starting (with --wait: at the deadline, or no agent until then).`,
		Examples: []string{"agent status", "agent status --wait 10m", "agent status --json"}}, stdout, stderr)
	var wait waitFlag
	flags.Var(&wait, "wait", "wait for ready or failed, at most `DURATION` if one is given")
	asJSON := flags.Bool("json", false, "print the status document")
	path := flags.String("file", status.DefaultPath, "status `FILE` to read")
	if code, ok := flags.Parse(args, 0, 1); !ok {
		return code
	}
	if word := flags.Arg(0); word != "" {
		if !wait.set || wait.limit > 0 {
			return flags.Misused("unexpected argument %q", word)
		}
		if err := wait.Set(word); err != nil {
			return flags.Misused("--wait %s: %v", word, err)
		}
	}
	doc, err := read(ctx, *path, wait)
	if err != nil {
		fmt.Fprintln(stderr, "agent status:", err)
		if wait.set && errors.Is(err, status.ErrNone) {
			return exitStarting // it may still start
		}
		return cli.ExitFailed
	}
	if *asJSON {
		if err := cli.WriteJSON(stdout, doc); err != nil {
			return cli.ExitFailed
		}
	} else {
		printStatus(stdout, doc)
	}
	return exitCode(doc.State)
}

func exitCode(s status.State) int {
	switch s {
	case status.Ready:
		return cli.ExitOK
	case status.Degraded:
		return exitDegraded
	case status.Starting:
		return exitStarting
	default:
		return cli.ExitFailed
	}
}

// read returns the document at path, with wait when it tells a verdict or at the deadline.
func read(ctx context.Context, path string, wait waitFlag) (status.Document, error) {
	if !wait.set {
		return status.Read(path)
	}
	if wait.limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, wait.limit)
		defer cancel()
	}
	var doc status.Document
	err := watch.Until(ctx, path, func() (bool, error) {
		var err error
		doc, err = status.Read(path)
		if errors.Is(err, status.ErrNone) {
			return false, nil
		}
		return err == nil && doc.State != status.Starting, err
	})
	if errors.Is(err, context.DeadlineExceeded) {
		// At the deadline the document as it is tells more than the deadline.
		if doc.State == "" {
			return doc, status.ErrNone
		}
		return doc, nil
	}
	return doc, err
}

var stateColors = map[status.State]cli.Color{status.Ready: cli.Green, status.Degraded: cli.Yellow, status.Failed: cli.Red, status.Starting: cli.Bold}

var outcomeColors = map[status.Outcome]cli.Color{status.Done: cli.Green, status.Warned: cli.Yellow, status.Broken: cli.Red,
	status.Running: cli.Bold, status.Skipped: cli.Grey, status.Pending: cli.Grey, status.Canceled: cli.Grey}

func printStatus(w io.Writer, d status.Document) {
	p := cli.PaletteFor(w)
	fmt.Fprintf(w, "agent %s  %s", d.AgentID, p.Paint(stateColors[d.State], string(d.State)))
	if d.ReadyNS > 0 {
		fmt.Fprintf(w, " after %s", roundTime(time.Duration(d.ReadyNS)))
	}
	fmt.Fprintf(w, "  (pid %d, version %s", d.PID, d.Agent)
	if d.Supervisor != "" {
		fmt.Fprintf(w, ", supervisor %s", d.Supervisor)
	}
	fmt.Fprintln(w, ")")
	if d.Verdict != "" {
		fmt.Fprintf(w, "%s %s\n", p.Paint(cli.Red, "verdict:"), d.Verdict)
	}
	if d.Settings != nil {
		fmt.Fprintf(w, "settings: %s", d.Settings.From)
		if d.Settings.Cached {
			fmt.Fprintf(w, " (cached copy; %s)", d.Settings.Why)
		}
		fmt.Fprintln(w)
	}
	if d.Bus != "" {
		fmt.Fprintf(w, "bus: %s\n", d.Bus)
	}
	for _, text := range d.Warnings {
		fmt.Fprintf(w, "%s %s\n", p.Paint(cli.Yellow, "warning:"), text)
	}
	for name, g := range d.Progress {
		fmt.Fprintf(w, "%s: %s\n", name, g.Text)
	}
	if len(d.Steps) > 0 {
		fmt.Fprintln(w)
	}
	for _, step := range d.Steps {
		printStep(w, p, step)
	}
	for _, r := range d.Earlier {
		fmt.Fprintf(w, "earlier: pid %d at %s: %s %s\n", r.PID, r.Started.Format(time.RFC3339), r.State, r.Verdict)
	}
}

func printStep(w io.Writer, p cli.Palette, s status.Step) {
	took := ""
	if s.End > 0 {
		took = roundTime(s.Took()).String()
	}
	fmt.Fprintf(w, "  %s %10s  %s", p.Paint(outcomeColors[s.Outcome], fmt.Sprintf("%-9s", s.Outcome)), took, s.Name)
	if s.Waiting != "" {
		fmt.Fprintf(w, "  waiting for %s", s.Waiting)
	}
	if s.Error != "" {
		fmt.Fprintf(w, "  %s", s.Error)
	}
	fmt.Fprintln(w)
	for _, wait := range s.Waits {
		if wait.End > 0 {
			fmt.Fprintln(w, "             "+p.Paint(cli.Grey, fmt.Sprintf("waited %s for %s", roundTime(time.Duration(wait.End-wait.Start)), wait.For)))
		}
	}
	for _, e := range slices.Concat(s.Evidence, s.Changes) {
		fmt.Fprintln(w, "             "+p.Paint(cli.Grey, e))
	}
}

// roundTime keeps about three digits.
func roundTime(d time.Duration) time.Duration {
	switch {
	case d > 10*time.Second:
		return d.Round(100 * time.Millisecond)
	case d > 10*time.Millisecond:
		return d.Round(time.Millisecond)
	default:
		return d.Round(10 * time.Microsecond)
	}
}
