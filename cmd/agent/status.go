package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cambium/internal/status"
	"cambium/internal/watch"
)

// Exit codes of `status` beside the common ones.
const (
	exitDegraded = 3
	exitRunning  = 4
)

// waitFlag is --wait or --wait=DURATION.
type waitFlag struct {
	set   bool
	limit time.Duration
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

func runStatus(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := newFlags("status", "[--wait[=DURATION]] [--json]", `Shows how far the agent is, its verdict, and each boot step with its duration and what it
waited for. Exit codes: 0 ready, 1 failed (or no agent), 2 usage, 3 degraded (ready with
warnings), 4 still starting (with --wait: at the deadline, or no agent until then).`, stderr, "agent status", "agent status --wait=10m", "agent status --json")
	var wait waitFlag
	flags.Var(&wait, "wait", "wait for ready or failed, at most `DURATION` if one is given")
	asJSON := flags.Bool("json", false, "print the status document")
	path := flags.String("file", status.DefaultPath, "status `FILE` to read")
	if code, ok := parse(flags, args, 0, 0); !ok {
		return code
	}
	doc, err := readStatus(ctx, *path, wait)
	if err != nil {
		fmt.Fprintln(stderr, "agent status:", err)
		if wait.set && errors.Is(err, status.ErrNone) {
			return exitRunning // it may still come
		}
		return exitBad
	}
	if *asJSON {
		out := json.NewEncoder(stdout)
		out.SetIndent("", "  ")
		if err := out.Encode(doc); err != nil {
			return exitBad
		}
	} else {
		printStatus(stdout, doc, isTerminal(stdout))
	}
	return statusCode(doc.State)
}

func statusCode(s status.State) int {
	switch s {
	case status.Ready:
		return exitGood
	case status.Degraded:
		return exitDegraded
	case status.Starting:
		return exitRunning
	default:
		return exitBad
	}
}

func readStatus(ctx context.Context, path string, wait waitFlag) (status.Document, error) {
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

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// paint wraps text in a terminal colour when there is a terminal.
type paint bool

func (p paint) of(colour, text string) string {
	if !p {
		return text
	}
	codes := map[string]string{"red": "31", "green": "32", "yellow": "33", "grey": "90", "bold": "1"}
	return "\x1b[" + codes[colour] + "m" + text + "\x1b[0m"
}

var stateColours = map[status.State]string{status.Ready: "green", status.Degraded: "yellow", status.Failed: "red", status.Starting: "bold"}

var outcomeColours = map[status.Outcome]string{status.Done: "green", status.Warned: "yellow", status.Broken: "red",
	status.Running: "bold", status.Skipped: "grey", status.Pending: "grey", status.Cancelled: "grey"}

func printStatus(w io.Writer, d status.Document, colours bool) {
	p := paint(colours)
	fmt.Fprintf(w, "agent %s  %s", d.AgentID, p.of(stateColours[d.State], string(d.State)))
	if d.ReadyNS > 0 {
		fmt.Fprintf(w, " after %s", roundTime(time.Duration(d.ReadyNS)))
	}
	fmt.Fprintf(w, "  (pid %d, version %s)\n", d.PID, d.Agent)
	if d.Verdict != "" {
		fmt.Fprintf(w, "%s %s\n", p.of("red", "verdict:"), d.Verdict)
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
		fmt.Fprintf(w, "%s %s\n", p.of("yellow", "warning:"), text)
	}
	for name, g := range d.Progress {
		fmt.Fprintf(w, "%s: %s\n", name, g.Text)
	}
	if len(d.Steps) > 0 {
		fmt.Fprintln(w)
	}
	for _, s := range d.Steps {
		took := ""
		if s.End > 0 {
			took = roundTime(s.Took()).String()
		}
		fmt.Fprintf(w, "  %s %10s  %s", p.of(outcomeColours[s.Outcome], fmt.Sprintf("%-9s", s.Outcome)), took, s.Name)
		if s.Waiting != "" {
			fmt.Fprintf(w, "  waiting for %s", s.Waiting)
		}
		if s.Error != "" {
			fmt.Fprintf(w, "  %s", s.Error)
		}
		fmt.Fprintln(w)
		for _, wait := range s.Waits {
			if wait.End > 0 {
				fmt.Fprintln(w, "             "+p.of("grey", fmt.Sprintf("waited %s for %s", roundTime(time.Duration(wait.End-wait.Start)), wait.For)))
			}
		}
		for _, e := range s.Evidence {
			fmt.Fprintln(w, "             "+p.of("grey", e))
		}
	}
	for _, r := range d.Earlier {
		fmt.Fprintf(w, "earlier: pid %d at %s: %s %s\n", r.PID, r.Started.Format(time.RFC3339), r.State, r.Verdict)
	}
}

// roundTime keeps three digits or so: enough to compare, no more to read.
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

func runTimeline(_ context.Context, args []string, stdout, stderr io.Writer) int {
	flags := newFlags("timeline", "", "Draws the boot's steps beside each other on one time axis; waits are dotted.", stderr, "agent timeline")
	path := flags.String("file", status.DefaultPath, "status `FILE` to read")
	width := flags.Int("width", 60, "width of the axis in characters")
	if code, ok := parse(flags, args, 0, 0); !ok {
		return code
	}
	doc, err := status.Read(*path)
	if err != nil {
		fmt.Fprintln(stderr, "agent timeline:", err)
		return exitBad
	}
	printTimeline(stdout, doc, max(*width, 10))
	return exitGood
}

func printTimeline(w io.Writer, d status.Document, width int) {
	var last int64 = 1
	for _, s := range d.Steps {
		last = max(last, s.End)
	}
	column := func(t int64) int { return min(int(t*int64(width)/last), width-1) }
	for _, s := range d.Steps {
		if s.Start == 0 && s.End == 0 {
			continue
		}
		end := s.End
		if end == 0 {
			end = last
		}
		bar := []byte(strings.Repeat(" ", width))
		for i := column(s.Start); i <= column(end); i++ {
			bar[i] = '='
		}
		for _, wait := range s.Waits {
			waited := wait.End
			if waited == 0 {
				waited = end
			}
			for i := column(wait.Start); i <= column(waited); i++ {
				bar[i] = '.'
			}
		}
		fmt.Fprintf(w, "  %-18s |%s| %s\n", s.Name, bar, roundTime(s.Took()))
	}
	fmt.Fprintf(w, "  %-18s  0%*s\n", "", width, roundTime(time.Duration(last)))
}
