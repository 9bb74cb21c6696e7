// Package showsettings implements `agent settings`, which asks the settings sources as a boot does, but changes
// nothing, and shows the effective settings without secrets.
package showsettings

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/bootstrap/fetch"
	"cambium/cmd/agent/cli"
	"cambium/infrastructure"
	"cambium/internal/jsondoc"
	"cambium/internal/report"
	"cambium/internal/vcap"
	"cambium/platform/network"
	"cambium/settings"
	"cambium/settings/agentjson"
	"cambium/settings/store"
)

// Run runs `agent settings`.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := cli.NewFlags(
		"settings",
		cli.Help{Arguments: "[-C AGENT_JSON] [-b BASE] [--explain] [--query PATH] [--json] [--timeout DURATION]",
			Purpose: `Asks the settings sources as a boot would and prints the effective settings without secrets.
Nothing is changed: no medium is ejected, nothing is erased or written, no network is brought
up. Exit codes: 0 settings found (also in the cache), 1 none, no such value or bad agent.json,
2 usage.`,
			Examples: []string{
				"agent settings",
				"agent settings --explain",
				"agent settings --query disks.persistent",
				"agent settings --query agent_id",
			}},
		stdout,
		stderr,
	)
	path := flags.String("C", "", "`AGENT_JSON` that names the sources; bosh/agent.json below BASE if not given")
	base := flags.String("b", vcap.DefaultBase, "`BASE` directory with the cached state")
	explain := flags.Bool("explain", false, "show where each value came from, and the outcome of each source")
	query := flags.String("query", "",
		"print only the value at `PATH`, as 'agent settings' names it; objects and lists as JSON")
	asJSON := flags.Bool("json", false, "print a JSON document")
	timeout := flags.Duration("timeout", 30*time.Second, "how long to wait for sources")
	if code, ok := flags.Parse(args, 0, 0); !ok {
		return code
	}
	dirs := vcap.New(*base)
	config, rep, err := agentjson.Load(cmp.Or(*path, dirs.AgentJSON()))
	if err != nil {
		fmt.Fprintln(stderr, "agent settings:", cli.Advise(err))
		return cli.ExitFailed
	}
	printFindings(stderr, rep)
	if rep.Failed() {
		return cli.ExitFailed
	}
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	var waiting cli.Waiting
	end := waiting.Say(stderr)
	found, err := Ask(ctx, config, dirs, *timeout, waiting.Set)
	end()
	if *query != "" && err == nil {
		return found.printValue(*query, stdout, stderr)
	}
	if *asJSON {
		if cli.WriteJSON(stdout, found.document(err)) != nil {
			return cli.ExitFailed
		}
	} else {
		found.Print(stdout, stderr, *explain, err)
	}
	if err != nil {
		return cli.ExitFailed
	}
	return cli.ExitOK
}

func printFindings(w io.Writer, rep report.Report) {
	for _, e := range rep.Entries {
		fmt.Fprintln(w, e)
	}
}

// Answer holds the results of the sources and the cached copy.
type Answer struct {
	Loaded    store.Loaded
	Effective settings.Effective
	results   infrastructure.Results
}

// Ask loads the settings as a boot does, without side effects. If a cached copy exists, the sources are asked for at
// most budget. waiting is called with what they wait for.
func Ask(ctx context.Context, config agentjson.Config, dirs vcap.Dirs, budget time.Duration,
	waiting func(string)) (a Answer, err error) {
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	log := logrus.NewEntry(quiet)
	current, err := store.Open(dirs, store.Options{ReadOnly: true, Log: log})
	if err != nil {
		return a, err
	}
	up := fetch.NewNetwork(&network.Kernel{Root: "/", Log: log}, true, nil, log)
	sources, err := infrastructure.New(config, infrastructure.Options{
		NetworkUp: up.IsUp, Accept: current.Check, HasCache: current.Present, CacheBudget: budget, Once: true, Log: log,
		Status: func(_ context.Context, text string) { waiting(text) },
		Asked:  func(_ context.Context, _ time.Time, v infrastructure.Results, _ bool) { a.results = v },
	})
	if err != nil {
		return a, err
	}
	current.SetFetch((&fetch.Fetcher{Sources: sources, Network: up, HasCache: current.Present}).Fetch)
	a.Loaded, err = current.Load(ctx)
	a.Effective = current.Effective()
	return a, err
}

// Print shows the settings, or why there are none.
func (a Answer) Print(stdout, stderr io.Writer, explain bool, err error) {
	if err != nil {
		printResults(stderr, a.results)
		if len(a.results) > 0 && errors.Is(err, store.ErrNoSettings) {
			err = errors.New("no source has settings, and there is no cached copy")
			if os.Geteuid() != 0 {
				err = errors.New("no source has settings that this user may read, and the cached copy is " +
					cli.NotChecked)
			}
		}
		fmt.Fprintln(stderr, "agent settings:", err)
		return
	}
	if a.Loaded.Cached {
		fmt.Fprintf(stderr, "agent settings: this is the cached copy: %v\n", a.Loaded.Why)
	}
	if a.Loaded.Foreign != "" {
		fmt.Fprintln(stderr,
			"agent settings: the state in the base directory belongs to another agent id; a boot would set it aside")
	}
	printFindings(stderr, a.Loaded.Report)
	if explain {
		printResults(stdout, a.results)
	}
	for _, line := range a.Effective.Explain() {
		if explain {
			fmt.Fprintln(stdout, line)
		} else {
			fmt.Fprintf(stdout, "%s = %s\n", line.Path, line.Value)
		}
	}
}

// printValue prints the value at path.
func (a Answer) printValue(path string, stdout, stderr io.Writer) int {
	values := a.values(path)
	if len(values) == 0 {
		fmt.Fprintf(stderr, "agent settings: there is no %s; 'agent settings' lists the values\n", path)
		return cli.ExitFailed
	}
	for _, v := range values {
		fmt.Fprintln(stdout, v)
	}
	return cli.ExitOK
}

// values returns the values at path: one value, the elements of a merged list, or a part of the document as JSON.
func (a Answer) values(path string) (values []string) {
	for _, line := range a.Effective.Explain() {
		if line.Path == path {
			return []string{line.Value}
		}
	}
	for _, line := range a.Effective.Explain() {
		if rest, within := strings.CutPrefix(line.Path, path); within && element.MatchString(rest) {
			values = append(values, line.Value)
		}
	}
	if len(values) > 0 {
		return values
	}
	for _, v := range jsondoc.Read("", a.Effective.Settings.Redacted()).Values() {
		if v.Path == path && jsondoc.KindOf(v.Raw) != jsondoc.Null {
			return []string{v.Raw}
		}
	}
	return nil
}

// element matches the index after a list's path in the path of an element.
var element = regexp.MustCompile(`^\[[0-9]+\]$`)

// printResults prints the result of each source, how long it took and why it was not used.
func printResults(w io.Writer, results infrastructure.Results) {
	for _, v := range results {
		fmt.Fprintf(w, "source %s: %s after %s", v.Source, v.Outcome, v.Took.Round(time.Millisecond))
		if v.Attempts > 1 {
			fmt.Fprintf(w, " and %d attempts", v.Attempts)
		}
		if v.Why != "" {
			fmt.Fprintf(w, ": %s", v.Why)
		}
		fmt.Fprintln(w)
	}
}

// document returns the JSON form of the answer.
func (a Answer) document(err error) any {
	d := struct {
		From     string                 `json:"from,omitempty"`
		Cached   bool                   `json:"cached"`
		Why      string                 `json:"why,omitempty"`
		Error    string                 `json:"error,omitempty"`
		Sources  infrastructure.Results `json:"sources"`
		Findings []report.Entry         `json:"findings"`
		Values   []settings.Line        `json:"effective"`
		Document json.RawMessage        `json:"document,omitempty"`
	}{From: a.Loaded.From, Cached: a.Loaded.Cached && err == nil, Sources: a.results,
		Findings: a.Loaded.Report.Entries, Values: []settings.Line{}}
	if d.Findings == nil {
		d.Findings = []report.Entry{}
	}
	if d.Sources == nil {
		d.Sources = infrastructure.Results{}
	}
	if err != nil {
		d.Error = err.Error()
		return d
	}
	if a.Loaded.Why != nil {
		d.Why = a.Loaded.Why.Error()
	}
	d.Values = a.Effective.Explain()
	d.Document = a.Effective.Settings.Redacted()
	return d
}
