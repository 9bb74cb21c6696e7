package cli

import (
	"context"
	"fmt"
	"io"

	"cambium/internal/spelling"
)

// RunFunc runs a command with the arguments that follow its name, and returns the exit code.
type RunFunc func(ctx context.Context, args []string, stdout, stderr io.Writer) int

// Command is a command of the agent, such as status.
type Command struct {
	Name    string  `json:"name"`
	Summary string  `json:"summary"` // in one line
	Run     RunFunc `json:"-"`
}

// Table is the list of commands, in the order of the help.
type Table []Command

// Find returns the command of that name.
func (t Table) Find(name string) (Command, bool) {
	for _, c := range t {
		if c.Name == name {
			return c, true
		}
	}
	return Command{}, false
}

// Unknown prints an error for a word that is not a command, and suggests the most similar command.
func (t Table) Unknown(word string, stderr io.Writer) int {
	var names []string
	for _, c := range t {
		names = append(names, c.Name)
	}
	hint := ""
	if near, edits := spelling.Nearest(word, names); near != "" && edits <= maxEdits && edits < len(word) {
		hint = fmt.Sprintf("; did you mean %q?", near)
	}
	fmt.Fprintf(stderr, "agent: unknown command %q%s\n'agent help' lists the commands\n", word, hint)
	return ExitUsage
}

// maxEdits is the largest edit distance at which a command is suggested for a misspelled word. Swapping two neighboring
// letters counts as two edits.
const maxEdits = 2

// PrintHelp prints the program's usage and its commands.
func (t Table) PrintHelp(w io.Writer) {
	fmt.Fprint(w, `agent: the BOSH-compatible VM agent

usage:
  agent COMMAND [flags] [arguments]
  agent -P PLATFORM -C AGENT_JSON [flags]    'agent run' as stemcells start it

commands:
`)
	for _, c := range t {
		fmt.Fprintf(w, "  %-11s %s\n", c.Name, c.Summary)
	}
	fmt.Fprint(w, `
'agent COMMAND --help' shows the flags of a command, with examples.
exit codes: 0 success, 1 bad input or failure, 2 usage error
`)
}

// Describe describes all commands.
func (t Table) Describe(ctx context.Context) (all []Description) {
	for _, c := range t {
		all = append(all, c.describe(ctx))
	}
	return all
}
