// Package validate is `agent validate`: documents checked with the code that reads them at boot.
package validate

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"cambium/cmd/agent/cli"
	"cambium/internal/jsontree"
	"cambium/internal/report"
	"cambium/internal/secret"
	"cambium/settings"
	"cambium/settings/agentjson"
)

// validators are the documents that `agent validate` knows, decoded by the code that runs at
// boot.
var validators = map[string]func(name string, data []byte) report.Report{
	"agent.json": func(name string, data []byte) report.Report {
		_, rep := agentjson.Parse(name, data)
		return rep
	},
	"settings": func(name string, data []byte) report.Report {
		return settings.Validate(name, secret.NewJSON(data))
	},
	"update-settings": func(name string, data []byte) report.Report {
		_, rep := settings.DecodeUpdate(name, secret.NewJSON(data))
		return rep
	},
}

// Kinds are the names of the documents that can be checked.
func Kinds() []string { return slices.Sorted(maps.Keys(validators)) }

// Run is `agent validate`.
func Run(_ context.Context, args []string, stdout, stderr io.Writer) int {
	flags := cli.NewFlags("validate", cli.Help{Arguments: "[--json] " + strings.Join(Kinds(), "|") + " FILE...",
		Purpose: `Checks documents with the code that reads them at boot, and prints every finding with its
place: errors, which make the document unusable, and warnings. FILE "-" is the standard input.
Findings never show values. Exit codes: 0 no errors, 1 errors or unreadable, 2 usage.`,
		Examples: []string{"agent validate agent.json /var/vcap/bosh/agent.json",
			"agent validate settings user-data.json",
			"agent validate --json update-settings - < update.json"}}, stdout, stderr)
	asJSON := flags.Bool("json", false, "print the findings as a JSON list")
	if code, ok := flags.Parse(args, 2, -1); !ok {
		return code
	}
	check, known := validators[flags.Arg(0)]
	if !known {
		return flags.Misused("unknown kind of document %q; want one of %q", flags.Arg(0), Kinds())
	}
	var all report.Report
	code := cli.ExitOK
	for _, name := range flags.Args()[1:] {
		data, err := readInput(name)
		if err != nil {
			fmt.Fprintln(stderr, "agent validate:", err)
			code = cli.ExitFailed
			continue
		}
		if name == "-" {
			name = "stdin"
		}
		rep := check(name, data)
		if rep.Failed() {
			code = cli.ExitFailed
		}
		if !*asJSON && len(rep.Entries) == 0 {
			fmt.Fprintf(stdout, "%s: good\n", name)
		}
		all.Append(rep)
	}
	if *asJSON {
		if all.Entries == nil {
			all.Entries = []report.Entry{}
		}
		if err := cli.WriteJSON(stdout, all.Entries); err != nil {
			return cli.ExitFailed
		}
		return code
	}
	for _, e := range all.Entries {
		fmt.Fprintln(stdout, e)
	}
	return code
}

func readInput(name string) ([]byte, error) {
	in := os.Stdin
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer func() { _ = file.Close() }() // only read from
		in = file
	}
	return io.ReadAll(io.LimitReader(in, jsontree.MaxSize+1))
}
