package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
)

// newFlags returns a flag set whose --help shows usage line, purpose, flags and examples.
func newFlags(name, arguments, purpose string, stderr io.Writer, examples ...string) *flag.FlagSet {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprintf(flags.Output(), "usage: %s\n\n%s\n", strings.TrimSpace("agent "+name+" "+arguments), purpose)
		var any bool
		flags.VisitAll(func(*flag.Flag) { any = true })
		if any {
			fmt.Fprintln(flags.Output(), "\nflags:")
			flags.PrintDefaults()
		}
		if len(examples) > 0 {
			fmt.Fprintln(flags.Output(), "\nexamples:")
			for _, e := range examples {
				fmt.Fprintln(flags.Output(), "  "+e)
			}
		}
	}
	return flags
}

// parse parses args and checks how many are left over. When ok is false, code is what to exit
// with: 0 after --help.
func parse(flags *flag.FlagSet, args []string, least, most int) (code int, ok bool) {
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return exitGood, false
	case err != nil:
		return exitUsage, false
	}
	if n := flags.NArg(); n < least || most >= 0 && n > most {
		fmt.Fprintf(flags.Output(), "agent %s: wrong number of arguments\n", flags.Name())
		flags.Usage()
		return exitUsage, false
	}
	return exitGood, true
}
