package cli

import (
	"context"
	"flag"
	"fmt"
	"io"
	"strings"
)

// Description is the --help of a command as data, from which shell completions and manual pages are made.
type Description struct {
	Command
	Help
	Usage string            `json:"usage"`
	Flags []FlagDescription `json:"flags,omitempty"`
}

// FlagDescription describes a flag of a command.
type FlagDescription struct {
	Name     string `json:"name"`               // with dashes
	Argument string `json:"argument,omitempty"` // placeholder of the value; "" for a boolean flag
	Usage    string `json:"usage"`
	Default  string `json:"default,omitempty"` // "" if there is none worth showing
}

// Write discards what a command prints while it describes itself.
func (d *Description) Write(p []byte) (int, error) { return len(p), nil }

// describe runs --help of a command. If the standard output is a Description, the parts of the help are stored in it
// and not printed.
func (c Command) describe(ctx context.Context) Description {
	d := Description{Command: c}
	c.Run(ctx, []string{"--help"}, &d, io.Discard)
	return d
}

// describe stores the help in d.
func (f *Flags) describe(d *Description) {
	d.Help, d.Usage, d.Flags = f.help, f.usageLine(), DescribeFlags(f.FlagSet)
}

// DescribeFlags describes the flags of a command.
func DescribeFlags(set *flag.FlagSet) (all []FlagDescription) {
	set.VisitAll(func(each *flag.Flag) {
		argument, usage := flag.UnquoteUsage(each)
		described := FlagDescription{Name: dashed(each.Name), Argument: argument, Usage: usage, Default: each.DefValue}
		if isSwitch(each) {
			described.Argument = ""
		}
		if described.Default == "false" || described.Default == "0" {
			described.Default = ""
		}
		all = append(all, described)
	})
	return all
}

// PrintFlags prints the flags for a command's help.
func PrintFlags(w io.Writer, width int, all []FlagDescription) {
	if len(all) > 0 {
		fmt.Fprintln(w, "\nflags:")
	}
	for _, each := range all {
		lead := "  " + strings.TrimSpace(each.Name+" "+each.Argument)
		text := each.Usage
		if each.Default != "" {
			text += " (default " + each.Default + ")"
		}
		if columns(lead) >= flagColumn {
			fmt.Fprintln(w, lead)
			lead = ""
		}
		PrintFolded(w, width, fmt.Sprintf("%-*s", flagColumn, lead), flagColumn, text)
	}
}

func isSwitch(f *flag.Flag) bool {
	b, ok := f.Value.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag() && f.DefValue == "false"
}

// dashed returns the name of a flag with its dashes.
func dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + strings.TrimPrefix(name, "-")
}
