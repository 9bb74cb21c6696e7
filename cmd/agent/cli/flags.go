// Package cli provides what the commands of the agent share: flags with help, exit codes, JSON and colored output. Each
// command has its own package beside this one; cmd/agent lists them.
package cli

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
)

// Exit codes of every command; `agent status` adds two of its own.
const (
	ExitOK     = 0
	ExitFailed = 1 // bad input, or the request failed
	ExitUsage  = 2
)

// Flags parses the flags of a command. Help is printed to the standard output, usage errors to the standard error.
type Flags struct {
	*flag.FlagSet
	help           Help
	stdout, stderr io.Writer
	arguments      []string
}

// Help is the text that --help prints around the list of flags.
type Help struct {
	Arguments string   `json:"-"` // after the command's name in the usage line
	Purpose   string   `json:"purpose"`
	Terms     []Term   `json:"terms,omitempty"` // words in Purpose that need an explanation
	Examples  []string `json:"examples,omitempty"`
	// Words lists the possible first arguments, for completion.
	Words []string `json:"words,omitempty"`
}

// Term is a word and its explanation.
type Term struct {
	Word string `json:"word"`
	Text string `json:"text"`
}

// NewFlags returns an empty set of flags for `agent NAME`.
func NewFlags(name string, help Help, stdout, stderr io.Writer) *Flags {
	f := &Flags{FlagSet: flag.NewFlagSet(name, flag.ContinueOnError), help: help, stdout: stdout, stderr: stderr}
	// The flag package prints errors and help to one writer; Parse prints them instead.
	f.SetOutput(io.Discard)
	return f
}

// Parse parses flags before and after arguments ("--" ends the flags), and checks the number of arguments. If most is
// negative, any number is accepted. If ok is false, the command must exit with code, which is ExitOK after --help.
func (f *Flags) Parse(args []string, least, most int) (code int, ok bool) {
	for {
		if err := f.FlagSet.Parse(args); err != nil {
			return f.failed(err), false
		}
		rest := f.FlagSet.Args()
		consumed := args[:len(args)-len(rest)]
		if len(rest) == 0 || len(consumed) > 0 && consumed[len(consumed)-1] == "--" {
			f.arguments = append(f.arguments, rest...)
			break
		}
		f.arguments = append(f.arguments, rest[0])
		args = rest[1:]
	}
	switch n := len(f.arguments); {
	case n < least:
		return f.UsageError("missing argument"), false
	case most >= 0 && n > most:
		return f.UsageError("unexpected argument %q", f.arguments[most]), false
	}
	return ExitOK, true
}

// ParseLeading parses as cloudfoundry/bosh-agent does, and stemcells rely on that: the first argument ends the flags,
// and arguments are ignored.
func (f *Flags) ParseLeading(args []string) (code int, ok bool) {
	if err := f.FlagSet.Parse(args); err != nil {
		return f.failed(err), false
	}
	return ExitOK, true
}

// Args returns the arguments without the flags. It replaces the method of flag.FlagSet, which stops at the first
// argument.
func (f *Flags) Args() []string { return f.arguments }

// Arg returns the argument at index i, or "".
func (f *Flags) Arg(i int) string {
	if i >= len(f.arguments) {
		return ""
	}
	return f.arguments[i]
}

// UsageError prints a usage error and returns its exit code.
func (f *Flags) UsageError(format string, values ...any) int {
	width := Width(f.stderr)
	PrintFolded(f.stderr, width, "", 0, fmt.Sprintf("agent %s: %s", f.Name(), fmt.Sprintf(format, values...)))
	PrintFolded(f.stderr, width, "usage: ", len("usage: "), f.usageLine())
	fmt.Fprintf(f.stderr, "'agent %s --help' shows more\n", f.Name())
	return ExitUsage
}

func (f *Flags) failed(err error) int {
	if errors.Is(err, flag.ErrHelp) {
		f.printHelp()
		return ExitOK
	}
	return f.UsageError("%v", err)
}

// termColumn is the column at which the meaning of a term begins.
const termColumn = 11

// flagColumn is the column at which the description of a flag begins.
const flagColumn = 22

func (f *Flags) usageLine() string {
	return strings.TrimSpace("agent " + f.Name() + " " + f.help.Arguments)
}

func (f *Flags) printHelp() {
	if d, ok := f.stdout.(*Description); ok {
		f.describe(d)
		return
	}
	width := Width(f.stdout)
	PrintFolded(f.stdout, width, "usage: ", len("usage: "), f.usageLine())
	fmt.Fprintln(f.stdout)
	PrintFolded(f.stdout, width, "", 0, f.help.Purpose)
	for _, t := range f.help.Terms {
		PrintFolded(f.stdout, width, fmt.Sprintf("  %-*s", termColumn-2, t.Word), termColumn, t.Text)
	}
	PrintFlags(f.stdout, width, DescribeFlags(f.FlagSet))
	if len(f.help.Examples) > 0 {
		fmt.Fprintln(f.stdout, "\nexamples:")
		for _, e := range f.help.Examples {
			fmt.Fprintln(f.stdout, "  "+e)
		}
	}
}
