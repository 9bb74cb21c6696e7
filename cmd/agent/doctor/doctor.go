// Package doctor implements `agent doctor`, which finds out why the Director may not see this machine. Package observe
// collects the facts, and pure functions here interpret them. Each finding says what was checked, what was found and
// what to do. The most likely cause comes first.
package doctor

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"cambium/cmd/agent/cli"
	"cambium/cmd/agent/doctor/observe"
	"cambium/internal/vcap"
)

// exitWarnings is the exit code if there are warnings and no problems. It is also that of a degraded agent.
const exitWarnings = 3

// Drift lists how the machine differs from the settings in force; see observe.Options.
type Drift func(ctx context.Context, agentJSON string, dirs vcap.Dirs) ([]string, error)

// Command returns the command `agent doctor`.
func Command(drift Drift) cli.RunFunc {
	return func(ctx context.Context, args []string, stdout, stderr io.Writer) int {
		return run(ctx, drift, args, stdout, stderr)
	}
}

func run(ctx context.Context, drift Drift, args []string, stdout, stderr io.Writer) int {
	flags := cli.NewFlags("doctor", cli.Help{Arguments: "[--json] [-v] [--timeout DURATION]",
		Purpose: `Looks for the reason why a Director may not see this machine, the most likely first: settings,
certificates, each step of the connection to each bus server, clock, gateway, MTU, firewall, disks,
units, jobs. Changes nothing; works without a running agent and without a network. Exit codes: 0 nothing
found, 1 a problem, 2 usage, 3 warnings only, or some checks need root.`,
		Examples: []string{"agent doctor", "agent doctor --json", "agent doctor -v --timeout 10s"}}, stdout, stderr)
	o := observe.Options{Drift: drift}
	flags.StringVar(&o.Config, "C", "", "`AGENT_JSON` that names the sources; bosh/agent.json below BASE if not given")
	base := flags.String("b", vcap.DefaultBase, "`BASE` directory")
	flags.StringVar(&o.Status, "file", vcap.RunDir.Status(), "status `FILE` to read")
	flags.DurationVar(&o.Timeout, "timeout", 5*time.Second, "how long to wait for each remote host")
	asJSON := flags.Bool("json", false, "print a JSON document")
	verbose := flags.Bool("v", false, "also show checks that passed")
	if code, ok := flags.Parse(args, 0, 0); !ok {
		return code
	}
	o.Dirs = vcap.New(*base)
	if o.Config == "" {
		o.Config = o.Dirs.AgentJSON()
	}
	end := cli.SayWaiting(stderr, func() string {
		return fmt.Sprintf("answers of other machines, up to %s each", o.Timeout)
	})
	machine := observe.All(ctx, o)
	end()
	findings := Diagnose(machine)
	if *asJSON {
		if cli.WriteJSON(stdout, Report{Findings: findings, Observed: machine}) != nil {
			return cli.ExitFailed
		}
	} else {
		Print(stdout, findings, *verbose)
	}
	return exitCode(findings)
}

// Report is the JSON form of the findings.
type Report struct {
	Findings []Finding     `json:"findings"`
	Observed observe.Facts `json:"observed"`
}

func exitCode(findings []Finding) int {
	worst := OK
	for _, f := range findings {
		if ranks[f.Severity] < ranks[worst] {
			worst = f.Severity
		}
	}
	switch worst {
	case Problem:
		return cli.ExitFailed
	case Warning, Unchecked:
		return exitWarnings
	}
	return cli.ExitOK
}

var severityColors = map[Severity]cli.Color{Problem: cli.Red, Warning: cli.Yellow, Note: cli.Bold, OK: cli.Green}

// asRoot is the command with which everything can be checked.
const asRoot = "sudo agent doctor"

// indent is the column at which the text of a finding begins.
const indent = 11

// Print shows the findings to a person, with lines no wider than the terminal. Good results share one line, or get a
// paragraph each if verbose is set.
func Print(w io.Writer, findings []Finding, verbose bool) {
	p, width := cli.PaletteFor(w), cli.Width(w)
	var good, unchecked []string
	for _, f := range findings {
		switch {
		case f.Severity == Unchecked:
			unchecked = append(unchecked, f.Check)
			continue
		case f.Severity == OK && !verbose:
			good = append(good, f.Check)
			continue
		}
		fmt.Fprintf(w, "%s %s\n", p.Paint(severityColors[f.Severity], string(f.Severity)+":"), f.Check)
		for _, line := range []struct{ label, text string }{{"checked", f.Checked}, {"found", f.Found}, {"do", f.Do}} {
			if line.text != "" {
				cli.PrintFolded(w, width, fmt.Sprintf("  %-8s ", line.label), indent, line.text)
			}
		}
	}
	for _, line := range []struct {
		lead   string
		color  cli.Color
		checks []string
	}{{cli.NotChecked, cli.Yellow, unchecked}, {"ok", cli.Green, good}} {
		if len(line.checks) > 0 {
			cli.PrintFolded(w, width, p.Paint(line.color, line.lead+":")+" ", len(line.lead)+2,
				strings.Join(line.checks, ", "))
		}
	}
	if len(unchecked) > 0 {
		fmt.Fprintf(w, "'%s' does the rest\n", asRoot)
	}
}
