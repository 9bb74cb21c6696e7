package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

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

func runValidate(_ context.Context, args []string, stdout, stderr io.Writer) int {
	flags := newFlags("validate", "[--json] agent.json|settings|update-settings FILE...",
		`Checks documents with the code that reads them at boot, and prints every finding with its
place: errors, which make the document unusable, and warnings. FILE "-" is the standard input.
Findings never show values. Exit codes: 0 no errors, 1 errors or unreadable, 2 usage.`, stderr,
		"agent validate agent.json /var/vcap/bosh/agent.json",
		"agent validate settings user-data.json",
		"agent validate --json update-settings - < update.json")
	asJSON := flags.Bool("json", false, "print the findings as a JSON list")
	if code, ok := parse(flags, args, 2, -1); !ok {
		return code
	}
	check, known := validators[flags.Arg(0)]
	if !known {
		fmt.Fprintf(stderr, "agent validate: unknown kind of document; want agent.json, settings or update-settings\n")
		return exitUsage
	}
	var all report.Report
	code := exitGood
	for _, name := range flags.Args()[1:] {
		data, err := readInput(name)
		if err != nil {
			fmt.Fprintln(stderr, "agent validate:", err)
			code = exitBad
			continue
		}
		if name == "-" {
			name = "stdin"
		}
		rep := check(name, data)
		if rep.Failed() {
			code = exitBad
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
		if err := writeJSON(stdout, all.Entries); err != nil {
			return exitBad
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

func writeJSON(w io.Writer, v any) error {
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	out.SetIndent("", "  ")
	return out.Encode(v)
}
