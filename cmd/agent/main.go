// Command agent is the BOSH-compatible VM agent. This package only wires: flags, signals,
// logging, and the concrete types that the other packages know as interfaces.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"cambium/platform/copytree/apart"
	"cambium/platform/firewall"
	"cambium/platform/user"
)

// version is set by the linker. A build without one is a development build, and says so in the
// words that stemcell test suites look for.
var version = "[DEV BUILD]"

// Exit codes of every command; `status --wait` adds two of its own.
const (
	exitGood  = 0
	exitBad   = 1 // bad input, or the thing asked for failed
	exitUsage = 2
)

// command is one word behind `agent`. Its run function gets the arguments behind that word.
type command struct {
	name    string
	summary string
	run     func(ctx context.Context, args []string, stdout, stderr io.Writer) int
}

func commands() []command {
	return []command{
		{"run", "run the agent (what a stemcell does with flags alone)", runAgent},
		{"status", "show state, verdict and boot steps; --wait for ready or failed", runStatus},
		{"timeline", "draw where the boot's time went", runTimeline},
		{"validate", "check agent.json, settings or update-settings, with line and column", runValidate},
		{"settings", "ask the sources as a boot would and show the effective settings; --explain", runSettings},
		{"plan", "show what a boot would change on this machine", runPlan},
		{"compile", "compile release tarballs on this machine, without a Director", compileReleases},
		{"version", "print the version", runVersion},
	}
}

func main() {
	apart.ServeIfCalled()
	// SIGTERM and SIGINT become a context once, here.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	code := dispatch(ctx, os.Args, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// dispatch chooses between the program's faces: the name it was called by, a command word, or
// the flags that stemcells have always used.
func dispatch(ctx context.Context, argv []string, stdout, stderr io.Writer) int {
	if len(argv) == 0 {
		return exitUsage
	}
	if face, found := faces[filepath.Base(argv[0])]; found {
		return face(ctx, argv[1:], stdout, stderr)
	}
	args := argv[1:]
	if len(args) == 0 {
		printHelp(stderr)
		return exitUsage
	}
	switch word := args[0]; {
	case word == "help" || word == "-h" || word == "-help" || word == "--help":
		return runHelp(ctx, args[1:], stdout, stderr)
	case strings.HasPrefix(word, "-"):
		return runAgent(ctx, args, stdout, stderr)
	default:
		for _, c := range commands() {
			if c.name == word {
				return c.run(ctx, args[1:], stdout, stderr)
			}
		}
		fmt.Fprintf(stderr, "agent: unknown command %q; 'agent help' lists the commands\n", word)
		return exitUsage
	}
}

// ownProgram is this program, whatever has become of its file.
const ownProgram = "/proc/self/exe"

// faces are the names under which the same binary does something else.
var faces = map[string]func(ctx context.Context, args []string, stdout, stderr io.Writer) int{
	"bosh-enable-monit-access": runEnableMonitAccess,
}

// runEnableMonitAccess is called by jobs that talk to monit themselves.
func runEnableMonitAccess(ctx context.Context, _ []string, _, stderr io.Writer) int {
	log := setUpLogging(stderr).WithField("component", "monit-access")
	account, err := (&user.Accounts{Root: "/", Log: log}).Lookup("vcap")
	if err == nil {
		err = (&firewall.Firewall{Log: log}).LetIn(ctx, firewall.Job{Root: "/", UID: uint32(account.UID)})
	}
	if errors.Is(err, firewall.ErrNotSetUp) {
		return exitGood // nobody is kept out
	}
	if err != nil {
		log.WithError(err).Error("monit access not enabled")
		return exitBad
	}
	return exitGood
}

func runVersion(_ context.Context, args []string, stdout, stderr io.Writer) int {
	flags := newFlags("version", "", "Prints the version of this agent.", stderr)
	if code, ok := parse(flags, args, 0, 0); !ok {
		return code
	}
	fmt.Fprintln(stdout, version)
	return exitGood
}

func runHelp(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		printHelp(stdout)
		return exitGood
	}
	for _, c := range commands() {
		if c.name == args[0] {
			return c.run(ctx, []string{"--help"}, stdout, stdout)
		}
	}
	fmt.Fprintf(stderr, "agent: no command %q; 'agent help' lists the commands\n", args[0])
	return exitUsage
}

func printHelp(w io.Writer) {
	fmt.Fprint(w, `agent: the BOSH-compatible VM agent

usage:
  agent -P ubuntu|dummy -C AGENT_JSON [-M monit|dummy|dummy-nats] [-b BASE]   run (as stemcells do)
  agent COMMAND [flags] [arguments]

commands:
`)
	for _, c := range commands() {
		fmt.Fprintf(w, "  %-10s %s\n", c.name, c.summary)
	}
	fmt.Fprint(w, `
'agent COMMAND --help' shows a command's flags with examples.
exit codes: 0 good, 1 bad input or failed, 2 wrong usage
`)
}
