// Command agent is a BOSH-compatible VM agent. This package has the table of commands, and assembles the running agent
// from the concrete types that other packages use through interfaces.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"cambium/cmd/agent/cli"
	"cambium/cmd/agent/compile"
	"cambium/cmd/agent/disk"
	"cambium/cmd/agent/doctor"
	"cambium/cmd/agent/doctor/observe"
	"cambium/cmd/agent/jobs"
	"cambium/cmd/agent/loglevel"
	"cambium/cmd/agent/metrics"
	"cambium/cmd/agent/monitcli"
	"cambium/cmd/agent/retry"
	"cambium/cmd/agent/show"
	"cambium/cmd/agent/showsettings"
	"cambium/cmd/agent/supervise"
	"cambium/cmd/agent/support"
	"cambium/cmd/agent/timeline"
	"cambium/cmd/agent/trial"
	"cambium/cmd/agent/validate"
	"cambium/internal/command"
	"cambium/platform/copytree/worker"
)

// version is set by the linker. The default is the text by which stemcell test suites recognize a development build.
var version = "[DEV BUILD]"

// ownProgram is the path of the running program, even if its file has been replaced.
const ownProgram = "/proc/self/exe"

// commands returns the table of commands. It is a function because some commands read the table.
func commands() cli.Table {
	return cli.Table{
		{Name: "run", Summary: "run the agent (what a stemcell does with flags alone)", Run: runAgent},
		{Name: "status", Summary: "show state, verdict and boot steps, or --wait for them", Run: show.Status},
		{Name: "retry", Summary: "begin the next attempt of a failed boot at once", Run: retry.Run},
		{Name: "timeline", Summary: "show where the boot spent its time", Run: timeline.Run},
		{Name: "doctor", Summary: "find out why the Director may not see this machine", Run: doctor.Command(drift)},
		{Name: "support", Summary: "write a support archive without secrets", Run: support.Version(version).Run},
		{Name: "metrics", Summary: "print the state of boot, bus, disks and jobs for Prometheus", Run: metrics.Run},
		{Name: "validate", Summary: "check agent.json, settings or update-settings documents", Run: validate.Run},
		{Name: "settings", Summary: "ask the sources as a boot does, show the effective settings", Run: showsettings.Run},
		{Name: "plan", Summary: "show what a boot would change on this machine", Run: runPlan},
		{Name: "disk", Summary: "accept, release or format a disk", Run: disk.Command(describeDisk)},
		{Name: "jobs", Summary: "show the processes of the jobs", Run: jobs.Run},
		{Name: "supervise", Summary: "run the jobs in place of monit", Run: supervise.Run},
		{Name: "compile", Summary: "compile release tarballs on this machine, without a Director", Run: compile.Run},
		{Name: "log-level", Summary: "show or change the log level of the running agent", Run: loglevel.Run},
		{Name: "trial", Summary: "try this agent on a VM whose stemcell has another, and go back", Run: trial.Version(version).Run},
		{Name: "version", Summary: "print the version", Run: runVersion},
	}
}

// programs maps the names under which this binary is another program.
var programs = map[string]cli.RunFunc{
	"bosh-enable-monit-access": allowMonit,
	monitcli.Name:              runMonit,
}

// runMonit runs monit's command line. monit.service also starts the supervisor under this name, so that the process is
// called monit.
func runMonit(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) > 0 && args[0] == "supervise" {
		return supervise.Run(ctx, args[1:], stdout, stderr)
	}
	return monitcli.Run(ctx, args, stdout, stderr)
}

func main() {
	command.DetachIfCalled()
	worker.ServeIfCalled(context.Background())
	observe.AskStoreIfCalled()
	// SIGTERM and SIGINT become a context once, here.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	code := dispatch(ctx, os.Args, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// dispatch selects a program by the name under which it was called, or a command by its word, or runs the agent with
// the flags that stemcells use.
func dispatch(ctx context.Context, argv []string, stdout, stderr io.Writer) int {
	if len(argv) == 0 {
		return cli.ExitUsage
	}
	if run, found := programs[filepath.Base(argv[0])]; found {
		return run(ctx, argv[1:], stdout, stderr)
	}
	args := argv[1:]
	if len(args) == 0 {
		commands().PrintHelp(stderr)
		return cli.ExitUsage
	}
	switch word := args[0]; {
	case word == "help" || word == "-h" || word == "-help" || word == "--help":
		return help(ctx, args[1:], stdout, stderr)
	case word == "-version" || word == "--version":
		return runVersion(ctx, args[1:], stdout, stderr)
	case strings.HasPrefix(word, "-"):
		return runAgent(ctx, args, stdout, stderr)
	default:
		command, found := commands().Find(word)
		if !found {
			return commands().Unknown(word, stderr)
		}
		return command.Run(ctx, args[1:], stdout, stderr)
	}
}

// help prints the list of commands, or the help of one. With JSON output it prints all, from which manual pages and
// completions are made.
func help(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		commands().PrintHelp(stdout)
		return cli.ExitOK
	}
	if args[0] == "--json" {
		if err := cli.WriteJSON(stdout, commands().Describe(ctx)); err != nil {
			fmt.Fprintln(stderr, "agent help:", err)
			return cli.ExitFailed
		}
		return cli.ExitOK
	}
	command, found := commands().Find(args[0])
	if !found {
		return commands().Unknown(args[0], stderr)
	}
	return command.Run(ctx, []string{"--help"}, stdout, stderr)
}

func runVersion(_ context.Context, args []string, stdout, stderr io.Writer) int {
	flags := cli.NewFlags("version", cli.Help{Purpose: "Prints the version of this agent."}, stdout, stderr)
	if code, ok := flags.Parse(args, 0, 0); !ok {
		return code
	}
	fmt.Fprintln(stdout, version)
	return cli.ExitOK
}
