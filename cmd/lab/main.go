// Command lab runs machines with the agent on one Linux host, for tests, for the demo, and for people who develop CPIs,
// stemcells or the agent.
//
// Its output follows a few rules. Results go to standard output, progress and errors to standard error. With --json the
// result is JSON. An error is one line with the cause and, if possible, what to do. The exit status is 0 on success, 1
// if something failed, and 2 if the command line was wrong.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"cambium/cmd/agent/cli"
	"cambium/cmd/agent/completion"
	"cambium/internal/spelling"
	"cambium/lab/control"
)

var version = "unknown"

// command is a command of the lab, such as up.
type command struct {
	name     string
	args     string
	summary  string
	examples []string
	run      func(ctx context.Context, c *call) error
	hidden   bool
}

// The commands that work on every system: their agents may be outside of labs.

func callCommand() command {
	return command{"call", "[flags] METHOD [ARGUMENT…]",
		"send a request to an agent and follow its task; arguments are JSON, or else strings",
		[]string{"lab call ping", "lab call get_state full", `lab call add_persistent_disk disk-1 /dev/loop3`,
			"lab call --url https://mbus:secret@127.0.0.1:6868 --ca ca.pem ping",
			"lab call --settings settings.json get_state"}, callAgent, false}
}

func watchCommand() command {
	return command{"watch", "[flags] [MACHINE]",
		"show heartbeats and alerts as they come, or, by its CID, the jobs of a CPI's VM",
		[]string{"lab watch", "lab watch vm1 --json",
			"lab watch --url nats://10.0.0.6:4222 --ca ca --cert hm.crt --key hm.key"}, watch, false}
}

func versionCommand() command {
	return command{"version", "", "print the version", nil, func(_ context.Context, c *call) error {
		if err := c.parse(0, 0); err != nil {
			return err
		}
		return c.result(map[string]string{"version": version}, func(w io.Writer) { _, _ = fmt.Fprintln(w, version) })
	}, false}
}

func completionCommand() command {
	return command{"completion", strings.Join(completion.Shells, "|"),
		"print the completion of commands and flags for a shell",
		[]string{"source <(lab completion bash)"}, completionOf, false}
}

// call is one invocation of a command.
type call struct {
	command
	flags  *flag.FlagSet
	args   []string // all arguments before parse, and those that are not flags after it
	json   bool
	dir    string
	lab    string
	stdout io.Writer
	stderr io.Writer
	extra  []string // after "--"
}

// usageError is an error in the command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// parse parses flags before and after arguments, and checks the number of arguments.
func (c *call) parse(least, most int) error {
	c.flags.BoolVar(&c.json, "json", false, "print the result as JSON")
	if c.flags.Lookup("lab") == nil { // a command that makes a lab says more
		c.flags.StringVar(&c.lab, "lab", os.Getenv("LAB"), "the `name` of the lab, if there are several")
	}
	c.flags.StringVar(&c.dir, "dir", stateDir(), "where labs keep their state")
	rest := c.args
	for n, a := range rest {
		if a == "--" {
			rest, c.extra = rest[:n], rest[n+1:]
			break
		}
	}
	c.args = nil
	for {
		if err := c.flags.Parse(rest); err != nil {
			return usageError{err}
		}
		if rest = c.flags.Args(); len(rest) == 0 {
			break
		}
		c.args, rest = append(c.args, rest[0]), rest[1:]
	}
	if len(c.args) < least || most >= 0 && len(c.args) > most {
		return usagef("wrong number of arguments")
	}
	return nil
}

// result prints the value as JSON, or as the text that the function writes.
func (c *call) result(value any, text func(io.Writer)) error {
	if !c.json {
		text(c.stdout)
		return nil
	}
	encode := json.NewEncoder(c.stdout)
	encode.SetIndent("", "  ")
	encode.SetEscapeHTML(false)
	return encode.Encode(value)
}

func (c *call) progress(format string, args ...any) {
	_, _ = fmt.Fprintf(c.stderr, format+"\n", args...)
}

// client connects to the process that holds the lab.
func (c *call) client() (*control.Client, error) { return control.Open(c.dir, c.lab) }

func usage(w io.Writer, all []command) {
	width := cli.Width(w)
	_, _ = fmt.Fprint(w, "usage: lab COMMAND [flags] [arguments]\n\nA small IaaS on this machine, with the agent in its machines.\n\ncommands:\n")
	for _, c := range all {
		if !c.hidden {
			cli.PrintFolded(w, width, fmt.Sprintf("  %-11s ", c.name), commandColumn, c.summary)
		}
	}
	_, _ = fmt.Fprint(w, "\n'lab COMMAND --help' shows more. LAB names one of several labs.\n")
}

// commandColumn is the column at which the summary of a command begins.
const commandColumn = 14

func (c *call) help(w io.Writer) {
	width := cli.Width(w)
	cli.PrintFolded(w, width, "usage: ", len("usage: "), "lab "+c.name+" "+c.command.args)
	_, _ = fmt.Fprintln(w)
	cli.PrintFolded(w, width, "", 0, strings.ToUpper(c.summary[:1])+c.summary[1:]+".")
	cli.PrintFlags(w, width, cli.DescribeFlags(c.flags))
	if len(c.examples) > 0 {
		_, _ = fmt.Fprintf(w, "\nexamples:\n  %s\n", strings.Join(c.examples, "\n  "))
	}
}

// completionOf prints the completion script for a shell.
func completionOf(ctx context.Context, c *call) error {
	if err := c.parse(1, 1); err != nil {
		return err
	}
	var all []cli.Description
	for _, command := range commands() {
		if command.hidden {
			continue
		}
		described := &call{command: command, flags: flag.NewFlagSet(command.name, flag.ContinueOnError),
			args: []string{"--help"}, stdout: io.Discard, stderr: io.Discard}
		described.flags.SetOutput(io.Discard)
		if err := command.run(ctx, described); !errors.Is(err, flag.ErrHelp) {
			return err
		}
		all = append(all, cli.Description{Command: cli.Command{Name: command.name, Summary: command.summary},
			Flags: cli.DescribeFlags(described.flags)})
	}
	script, known := completion.Script(c.args[0], "lab", all)
	if !known {
		return usagef("unknown shell %q; want one of %s", c.args[0], strings.Join(completion.Shells, ", "))
	}
	_, err := io.WriteString(c.stdout, script)
	return err
}

// run runs a command and returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	all := commands()
	if len(args) == 0 {
		usage(stderr, all)
		return 2
	}
	if args[0] == "help" || args[0] == "--help" || args[0] == "-h" {
		usage(stdout, all)
		return 0
	}
	for _, command := range all {
		if command.name != args[0] {
			continue
		}
		c := &call{command: command, flags: flag.NewFlagSet(command.name, flag.ContinueOnError), args: args[1:],
			stdout: stdout, stderr: stderr}
		c.flags.SetOutput(io.Discard)
		err := command.run(ctx, c)
		var wrong usageError
		var status exitStatus
		switch {
		case err == nil:
			return 0
		case errors.Is(err, flag.ErrHelp):
			c.help(stdout)
			return 0
		case errors.As(err, &wrong):
			_, _ = fmt.Fprintf(stderr, "lab %s: %v\nusage: lab %s %s; 'lab %s --help' shows more\n", c.name, err, c.name,
				command.args, c.name)
			return 2
		case errors.As(err, &status):
			return int(status)
		}
		_, _ = fmt.Fprintf(stderr, "lab %s: %v\n", c.name, err)
		return 1
	}
	_, _ = fmt.Fprintf(stderr, "lab: unknown command %q%s\n'lab help' lists the commands\n",
		args[0], suggestion(args[0], all))
	return 2
}

// maxEdits bounds the edit distance between a misspelled word and the command that is suggested, as in the agent.
const maxEdits = 2

func suggestion(word string, all []command) string {
	var names []string
	for _, c := range all {
		if !c.hidden {
			names = append(names, c.name)
		}
	}
	if near, edits := spelling.Nearest(word, names); near != "" && edits <= maxEdits && edits < len(word) {
		return fmt.Sprintf("; did you mean %q?", near)
	}
	return ""
}

// exitStatus is the exit status of a program that ran in a machine.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
