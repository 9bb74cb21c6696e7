// Package trial implements `agent trial`, which replaces the stemcell's agent with this one on trial, keeps this one,
// or goes back. During the trial, the binary is bind-mounted over the stemcell's, so that a reboot restores the
// stemcell's agent. The errands of the release cambium-agent call this command.
package trial

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/cmd/agent/cli"
	"cambium/internal/vcap"
)

// Operations of the command.
const (
	try        = "try"
	keep       = "keep"
	showStatus = "status"
	back       = "back"
)

// Limits of the flags.
const (
	minTime, maxTime = 10 * time.Second, 30 * time.Minute
	maxDelay         = 10 * time.Minute
)

// options holds the flags of the command.
type options struct {
	dirs        vcap.Dirs
	time, delay time.Duration
	after       int // the pid to wait for in the background process; 0 in the command itself
	json        bool
}

// Version is the version of this agent.
type Version string

// Run runs `agent trial`.
func (v Version) Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	words := []string{try, keep, showStatus, back}
	flags := cli.NewFlags("trial", cli.Help{Arguments: strings.Join(words, "|") + " [flags]", Words: words,
		Purpose: `Tries this agent on a VM whose stemcell has another, and goes back. The errands of the release cambium-agent
call it; its job has put the binary where this command expects it. Exit codes: 0 done, or begun in the background, 1
refused or failed, and of status that the last trial failed, 2 usage.`,
		Terms: []cli.Term{
			{
				Word: try,
				Text: "after a delay, in the background: mount this binary over the old one until the next reboot and restart the agent; without a heartbeat that the Director's server has confirmed, go back",
			},
			{Word: keep, Text: "install an agent that a trial has confirmed, beside the old one, for good"},
			{Word: showStatus, Text: "show the outcome"},
			{Word: back, Text: "after a delay, in the background: restart the stemcell's agent in place of this one"}},
		Examples: []string{
			"agent trial try",
			"agent trial try --time 10m",
			"agent trial status --json",
			"agent trial back --delay 1s",
		}},
		stdout, stderr)
	o := options{}
	flags.DurationVar(&o.time, "time", 45*time.Second,
		"the `DURATION` in which the new agent must prove itself, 10s to 30m")
	flags.DurationVar(
		&o.delay,
		"delay",
		30*time.Second,
		"the `DURATION` between the end of this command and the restart, at most 10m: a Director must get the answer first",
	)
	flags.IntVar(&o.after, "after", 0,
		"do it in this process, after the end of process `PID`: what the command starts in the background")
	flags.BoolVar(&o.json, "json", false, "with status: print the record")
	base := flags.String("b", vcap.DefaultBase, "`BASE` directory")
	if code, ok := flags.Parse(args, 1, 1); !ok {
		return code
	}
	operation := flags.Arg(0)
	o.dirs = vcap.New(*base)
	switch {
	case !slices.Contains(words, operation):
		return flags.UsageError("unknown operation %q: want %s", operation, strings.Join(words, ", "))
	case o.time < minTime || o.time > maxTime:
		return flags.UsageError("--time %s: want %s to %s", o.time, minTime, maxTime)
	case o.delay < 0 || o.delay > maxDelay:
		return flags.UsageError("--delay %s: want at most %s", o.delay, maxDelay)
	}
	log := logrus.New()
	log.SetOutput(stderr)
	m := newMachine(o, string(v), logrus.NewEntry(log).WithField("component", "trial"))
	defer m.close()
	if operation == showStatus {
		return m.show(stdout, stderr)
	}
	text, err := m.run(ctx, operation)
	if err != nil {
		fmt.Fprintf(stderr, "agent trial %s: %v\n", operation, cli.Advise(err))
		return cli.ExitFailed
	}
	fmt.Fprintln(stdout, text)
	return cli.ExitOK
}

// run performs the operation or starts it in the background, and returns a sentence for people.
func (m *machine) run(ctx context.Context, operation string) (string, error) {
	if m.o.after > 0 {
		return m.later(ctx, operation)
	}
	if err := refusal(operation, m.observe(ctx)); err != nil {
		return "", err
	}
	if operation == keep {
		return m.installAgent(ctx)
	}
	if err := m.background(ctx, operation); err != nil {
		return "", err
	}
	return fmt.Sprintf("begins %s after this command has ended; the outcome will be in %s", m.o.delay,
		m.o.dirs.TrialRecord()), nil
}

// show prints the outcome of the last operation.
func (m *machine) show(stdout, stderr io.Writer) int {
	r, err := readRecord(m.o.dirs.TrialRecord())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		fmt.Fprintln(stderr, "agent trial status:", err)
		return cli.ExitFailed
	}
	r = settle(r, m.busy(), m.mounted())
	if m.o.json {
		err = cli.WriteJSON(stdout, r)
	} else {
		_, err = fmt.Fprintln(stdout, r)
	}
	if err != nil || r.State == failed {
		return cli.ExitFailed
	}
	return cli.ExitOK
}
