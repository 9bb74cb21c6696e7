// Package show implements `agent status`, which shows the agent's status document to people and scripts.
package show

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"cambium/cmd/agent/cli"
	"cambium/cmd/agent/doctor"
	"cambium/cmd/agent/doctor/observe"
	"cambium/internal/status"
	"cambium/internal/vcap"
	"cambium/internal/watch"
)

// Exit codes of `agent status` in addition to the common ones.
const (
	exitDegraded = 3
	exitStarting = 4
)

// waitFlag is --wait, --wait=DURATION or --wait DURATION. The flag package does not know whether the word after --wait
// belongs to it, so Status removes it from the arguments.
type waitFlag struct {
	set   bool
	limit time.Duration // 0 means no limit
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

// Status runs `agent status`.
func Status(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := cli.NewFlags(
		"status",
		cli.Help{
			Arguments: "[-v] [--wait [DURATION]] [--json]",
			Purpose: `Shows the state of the agent, its verdict, its bus, where its settings came from, and what has
failed or is still to be done; without --wait also what is wrong with the machine itself, such as a
full disk. With --wait, ready also means that the Director can reach the
agent, and while a failed boot is retried the next verdict is waited for. Exit codes: 0 ready, 1
failed or not running, 2 usage, 3 degraded (ready, but a step warned, the machine has a problem, or the
bus has been disconnected for too long, a minute at the start), 4 still starting (with --wait: at the
deadline, or no agent appeared until then).`,
			Examples: []string{
				"agent status",
				"agent status -v",
				"agent status --wait 10m",
				"agent status --json",
			},
		},
		stdout,
		stderr,
	)
	var wait waitFlag
	flags.Var(&wait, "wait",
		"wait until the agent has failed, or is ready with its bus, at most `DURATION` if one is given")
	asJSON := flags.Bool("json", false, "print the status document")
	verbose := flags.Bool("v", false, "show every boot step, with what it waited for, saw and changed")
	path := flags.String("file", vcap.RunDir.Status(), "status `FILE` to read")
	if code, ok := flags.Parse(args, 0, 1); !ok {
		return code
	}
	if word := flags.Arg(0); word != "" {
		if !wait.set || wait.limit > 0 {
			return flags.UsageError("unexpected argument %q", word)
		}
		if err := wait.Set(word); err != nil {
			return flags.UsageError("--wait %s: %v", word, err)
		}
	}
	doc, err := read(ctx, *path, wait, stderr)
	if err != nil {
		fmt.Fprintln(stderr, "agent status:", err)
		if wait.set && errors.Is(err, status.ErrNone) {
			return exitStarting // it may still start
		}
		return cli.ExitFailed
	}
	if *path == vcap.RunDir.Status() {
		doc.Restarts = observe.Restarts(ctx)
	}
	// A boot mounts disks and starts the supervisor: missing mounts are expected until it has finished.
	if !wait.set && *path == vcap.RunDir.Status() && doc.State != status.Starting {
		addFindings(ctx, &doc)
	}
	if *asJSON {
		if err := cli.WriteJSON(stdout, doc); err != nil {
			return cli.ExitFailed
		}
	} else {
		newScreen(stdout, time.Now()).print(doc, *verbose)
	}
	if wait.set && doc.Serving() && !settled(doc, doc) {
		return exitStarting // the bus is still missing at the deadline
	}
	return exitCode(doc.State)
}

// settled reports whether --wait is over: there is a new verdict, or the agent is ready and has its bus or has been
// without it for too long. An agent that has ended is not settled, because systemd restarts it.
func settled(d, first status.Document) bool {
	switch {
	case d.Serving():
		return d.Bus == nil || d.Bus.Reachable() || d.Bus.Overdue
	case d.Retrying() && first.Verdict != "":
		return !d.SameVerdict(first) // the cause may have been repaired since
	}
	return d.State != status.Starting && d.State != status.NotRunning
}

// awaited describes what settled waits for.
func awaited(d status.Document) string {
	waiting := ""
	for _, step := range d.Steps {
		if step.Outcome == status.Running && !step.Background {
			waiting = ": " + step.Name
			if step.Waiting != "" {
				waiting += ": " + step.Waiting
			}
		}
	}
	switch {
	case d.State == "":
		return "the agent to start"
	case d.State == status.NotRunning:
		return "the agent to start again"
	case d.Serving():
		return "the bus: " + d.Bus.String()
	case d.NextTry != nil:
		return "the next try at " + d.NextTry.Format(time.RFC3339) + "; 'agent retry' begins it at once"
	}
	return fmt.Sprintf("the boot, try %d%s", d.Try, waiting)
}

// glanceTimeout bounds the wait for the gateways to answer.
const glanceTimeout = 2 * time.Second

// addFindings adds the findings that doctor.DiagnoseNearby makes without contacting other machines.
func addFindings(ctx context.Context, d *status.Document) {
	dirs := vcap.New(vcap.DefaultBase)
	var problems, warnings []string
	o := observe.Options{Dirs: dirs, Config: dirs.AgentJSON(), Status: vcap.RunDir.Status(), Timeout: glanceTimeout}
	for _, f := range doctor.DiagnoseNearby(observe.Nearby(ctx, o)) {
		if f.Severity == doctor.Problem {
			problems = append(problems, f.Found)
		} else {
			warnings = append(warnings, f.Found)
		}
	}
	d.AddFindings(problems, warnings)
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

// read returns the document at path. With wait it first waits until the document is settled, or for the limit. A
// verdict that existed before does not count while the boot is retried.
func read(ctx context.Context, path string, wait waitFlag, stderr io.Writer) (status.Document, error) {
	if !wait.set {
		return status.Observe(path)
	}
	if wait.limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, wait.limit)
		defer cancel()
	}
	var doc, first status.Document
	var latest atomic.Pointer[status.Document]
	latest.Store(&status.Document{})
	defer cli.SayWaiting(stderr, func() string { return awaited(*latest.Load()) })()
	err := watch.Until(ctx, path, func() (bool, error) {
		seen, err := status.Observe(path)
		if errors.Is(err, status.ErrNone) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if first.State == "" {
			first = seen
		}
		doc = seen
		latest.Store(&seen)
		return settled(doc, first), nil
	})
	if errors.Is(err, context.DeadlineExceeded) {
		// At the deadline, return the document instead of an error.
		if doc.State == "" {
			return doc, status.ErrNone
		}
		return doc, nil
	}
	return doc, err
}
