// Package validate implements `agent validate`, which checks documents with the code that reads them at boot.
package validate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"cambium/agent"
	"cambium/cmd/agent/cli"
	"cambium/internal/jsondoc"
	"cambium/internal/report"
	"cambium/internal/secret"
	"cambium/internal/vcap"
	"cambium/mbus/natsbus"
	"cambium/settings"
	"cambium/settings/agentjson"
)

// The kinds of documents.
const (
	agentJSON      = "agent.json"
	settingsKind   = "settings"
	updateSettings = "update-settings"
)

// validators check each kind with the code that runs at boot.
var validators = map[string]func(name string, data []byte) report.Report{
	agentJSON: func(name string, data []byte) report.Report {
		_, rep := agentjson.Parse(name, data)
		return rep
	},
	settingsKind: checkSettings,
	updateSettings: func(name string, data []byte) report.Report {
		_, rep := settings.DecodeUpdate(name, secret.NewJSON(data))
		return rep
	},
}

// consequences has the effect of errors in a document, by kind.
var consequences = map[string]string{
	agentJSON:      "the agent would not start with it",
	settingsKind:   "a boot would not use it: it would wait for better settings, or use the cached copy",
	updateSettings: "update_settings would refuse it",
}

// passwordPath is the only key at which an error does not make a boot reject the document.
const passwordPath = "env.bosh.password"

// checkSettings checks a settings document. It also creates the bus that the document describes, as a boot does.
func checkSettings(name string, data []byte) report.Report {
	rep := settings.Validate(name, secret.NewJSON(data))
	if rep.Failed() {
		return rep
	}
	s, _ := settings.Decode(name, secret.NewJSON(data))
	e := settings.Merge(s, settings.Update{})
	if settings.IsPlaintextPassword(s.Env.Bosh.Password) {
		rep.Add(
			report.Entry{Severity: report.Error, File: name, Path: passwordPath, Message: "not a hash of crypt(3), " +
				"such as 'mkpasswd -m sha-512' prints: a boot goes on, but nobody can log in with it"},
		)
	}
	if len(e.Bus.URLs) == 0 || !strings.HasPrefix(e.Bus.URLs[0].Reveal(), "nats:") || s.AgentID == "" ||
		e.Bus.Cert.Empty() {
		return rep
	}
	if _, err := natsbus.New(natsbus.Options{AgentID: s.AgentID, Identity: agent.NATSIdentity(e.Bus)}); err != nil {
		rep.Add(
			report.Entry{
				Severity: report.Warning,
				File:     name,
				Path:     "mbus",
				Message:  err.Error() + "; the boot's step bus would fail",
			},
		)
	}
	return rep
}

// Kinds returns the kinds of documents that can be checked.
func Kinds() []string { return slices.Sorted(maps.Keys(validators)) }

// Run runs `agent validate`.
func Run(_ context.Context, args []string, stdout, stderr io.Writer) int {
	flags := cli.NewFlags(
		"validate",
		cli.Help{Arguments: "[--json] [--system] [" + strings.Join(Kinds(), "|") + "] FILE...", Words: Kinds(),
			Purpose: `Checks documents with the code that reads them at boot, and prints every finding with its
place: errors, which make the document unusable, and warnings. What keeps the document from being
read at all comes first. FILE "-" is the standard input. Without a kind it is guessed from the
content. Findings never show values. Exit codes: 0 no errors, 1 errors or unreadable, 2 usage.`,
			Examples: []string{"agent validate /var/vcap/bosh/agent.json", "agent validate settings user-data.json",
				"agent validate --json update-settings - < update.json", "agent validate --system"}},
		stdout,
		stderr,
	)
	asJSON := flags.Bool("json", false, "print the findings as a JSON list")
	system := flags.Bool("system", false,
		"check the files of this machine: agent.json and the cached settings and updates")
	base := flags.String("b", vcap.DefaultBase, "`BASE` directory of --system")
	if code, ok := flags.Parse(args, 0, -1); !ok {
		return code
	}
	documents, err := choose(flags.Args(), *system, vcap.New(*base))
	if err != nil {
		return flags.UsageError("%v", err)
	}
	var all report.Report
	code := cli.ExitOK
	for _, d := range documents {
		rep, err := d.check()
		if errors.Is(err, fs.ErrNotExist) && d.optional {
			continue
		}
		if err != nil {
			fmt.Fprintln(stderr, "agent validate:", cli.Advise(err))
			code = cli.ExitFailed
			continue
		}
		if rep.Failed() {
			code = cli.ExitFailed
		}
		if !*asJSON {
			d.print(stdout, rep)
		}
		all.Append(rep)
	}
	if !*asJSON {
		return code
	}
	if all.Entries == nil {
		all.Entries = []report.Entry{}
	}
	if err := cli.WriteJSON(stdout, all.Entries); err != nil {
		return cli.ExitFailed
	}
	return code
}

// document is a file to check.
type document struct {
	path     string
	kind     string // guessed if ""
	guessed  bool
	optional bool // the machine may lack it
}

// choose returns the documents that the arguments name. A word is a kind only if a file follows it, since a file may be
// called agent.json, too.
func choose(args []string, system bool, dirs vcap.Dirs) (documents []document, err error) {
	if system {
		if len(args) > 0 {
			return nil, fmt.Errorf("--system names the files; unexpected argument %q", args[0])
		}
		documents = append(documents, document{path: dirs.AgentJSON(), kind: agentJSON})
		for _, place := range dirs.Places() {
			documents = append(documents, document{path: place.Settings(), kind: settingsKind, optional: true},
				document{path: place.UpdateSettings(), kind: updateSettings, optional: true})
		}
		return documents, nil
	}
	kind := ""
	if len(args) > 0 && validators[args[0]] != nil {
		if _, err := os.Lstat(args[0]); len(args) > 1 || err != nil {
			kind, args = args[0], args[1:]
		}
	}
	if len(args) == 0 {
		return nil, errors.New("missing argument")
	}
	for _, path := range args {
		documents = append(documents, document{path: path, kind: kind})
	}
	return documents, nil
}

func (d *document) check() (report.Report, error) {
	data, err := readInput(d.path)
	if err != nil {
		return report.Report{}, err
	}
	if d.path == "-" {
		d.path = "stdin"
	}
	if d.kind == "" {
		d.kind, d.guessed = guess(d.path, data), true
	}
	rep := validators[d.kind](d.path, data)
	unreadableFirst(&rep)
	return rep, nil
}

// unreadableFirst moves syntax errors, which have no path, before errors that may be their consequence.
func unreadableFirst(rep *report.Report) {
	syntax := func(e report.Entry) int {
		if e.Severity == report.Error && e.Path == "" {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(rep.Entries, func(a, b report.Entry) int { return syntax(a) - syntax(b) })
}

func (d *document) print(w io.Writer, rep report.Report) {
	for _, e := range rep.Entries {
		fmt.Fprintln(w, e)
	}
	kind := ""
	if d.guessed {
		kind = " (assumed to be " + d.kind + ")"
	}
	switch {
	case rep.Failed():
		consequence := consequences[d.kind]
		if !slices.ContainsFunc(rep.Entries,
			func(e report.Entry) bool { return e.Severity == report.Error && e.Path != passwordPath }) {
			consequence = "a boot would use it, and nobody could log in with the password"
		}
		cli.PrintFolded(w, cli.Width(w), "", 0, d.path+kind+": "+consequence)
	case len(rep.Entries) == 0:
		fmt.Fprintf(w, "%s%s: good\n", d.path, kind)
	case d.guessed:
		fmt.Fprintf(w, "%s%s: usable\n", d.path, kind)
	}
}

// typical lists keys at the top of a document by which its kind is recognized, the most reliable first.
var typical = []struct {
	kind string
	keys []string
}{
	{agentJSON, []string{"Platform", "Infrastructure"}},
	{settingsKind, []string{"agent_id", "networks", "disks", "env", "vm", "registry", "server"}},
	{updateSettings, []string{"trusted_certs", "disk_associations", "blobstores", "mbus"}},
}

// guess recognizes the kind of a document by its keys, or by its file name if it cannot be parsed.
func guess(path string, data []byte) string {
	values := jsondoc.Read(path, data).Values()
	for _, t := range typical {
		for _, key := range t.keys {
			if slices.ContainsFunc(values, func(v jsondoc.Value) bool { return strings.EqualFold(v.Path, key) }) {
				return t.kind
			}
		}
	}
	switch name := filepath.Base(path); {
	case name == agentJSON:
		return agentJSON
	case strings.Contains(name, "update"):
		return updateSettings
	}
	return settingsKind
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
	return io.ReadAll(io.LimitReader(in, jsondoc.MaxSize+1))
}
