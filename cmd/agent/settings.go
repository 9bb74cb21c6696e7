package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/infrastructure"
	"cambium/internal/neednet"
	"cambium/internal/report"
	"cambium/internal/vcap"
	"cambium/settings"
	"cambium/settings/agentjson"
	"cambium/settings/store"
)

func runSettings(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := newFlags("settings", "-C AGENT_JSON [-b BASE] [--explain] [--json] [--timeout DURATION]",
		`Asks the settings sources as a boot would and prints the effective settings without secrets.
Nothing is changed: no medium is ejected, nothing is erased or written, no network is brought
up. Exit codes: 0 settings found (also in the cache), 1 none or bad agent.json, 2 usage.`, stderr,
		"agent settings -C /var/vcap/bosh/agent.json",
		"agent settings -C /var/vcap/bosh/agent.json --explain")
	path := flags.String("C", "", "`AGENT_JSON` that names the sources")
	base := flags.String("b", vcap.DefaultBase, "`BASE` directory with the cached state")
	explain := flags.Bool("explain", false, "show where each value came from, and what became of each source")
	asJSON := flags.Bool("json", false, "print a JSON document")
	timeout := flags.Duration("timeout", 30*time.Second, "how long to wait for sources")
	if code, ok := parse(flags, args, 0, 0); !ok {
		return code
	}
	if *path == "" {
		fmt.Fprintln(stderr, "agent settings: -C AGENT_JSON is needed")
		return exitUsage
	}
	config, rep, err := agentjson.Load(*path)
	if err != nil {
		fmt.Fprintln(stderr, "agent settings:", err)
		return exitBad
	}
	printFindings(stderr, rep)
	if rep.Failed() {
		return exitBad
	}
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	found, err := askForSettings(ctx, config, vcap.New(*base), *timeout)
	if *asJSON {
		if writeJSON(stdout, found.document(err)) != nil {
			return exitBad
		}
	} else {
		found.print(stdout, stderr, *explain, err)
	}
	if err != nil {
		return exitBad
	}
	return exitGood
}

func printFindings(w io.Writer, rep report.Report) {
	for _, e := range rep.Entries {
		fmt.Fprintln(w, e)
	}
}

// asked is what came of asking.
type asked struct {
	loaded    store.Loaded
	effective settings.Effective
	verdicts  infrastructure.Verdicts
}

// askForSettings is the boot's way to settings, with everything that leaves a trace switched
// off.
func askForSettings(ctx context.Context, config agentjson.Config, dirs vcap.Dirs, budget time.Duration) (a asked, err error) {
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	log := logrus.NewEntry(quiet)
	var (
		current *store.Current
		sources *infrastructure.Sources
	)
	current, err = store.Open(dirs, store.Options{ReadOnly: true, Log: log, Fetch: func(ctx context.Context) (store.Fetched, error) {
		answer, verdicts, err := sources.Settings(ctx)
		if errors.Is(err, neednet.Err) {
			// A boot would bring up a network. Asked again, the sources that need none have their turn.
			answer, verdicts, err = sources.Settings(ctx)
		}
		a.verdicts = verdicts
		return store.Fetched{Raw: answer.Raw, From: answer.From}, err
	}})
	if err != nil {
		return a, err
	}
	sources, err = infrastructure.New(config, infrastructure.Options{
		NetworkUp: networkUp, Accept: current.Check, HasCache: current.Present, CacheBudget: budget, Once: true, Log: log,
	})
	if err != nil {
		return a, err
	}
	a.loaded, err = current.Load(ctx)
	a.effective = current.Effective()
	return a, err
}

// networkUp reports an address that is not loopback's.
func networkUp(context.Context) bool {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			return true
		}
	}
	return false
}

func (a asked) print(stdout, stderr io.Writer, explain bool, err error) {
	if err != nil {
		printVerdicts(stderr, a.verdicts)
		if len(a.verdicts) > 0 && errors.Is(err, store.ErrNoSettings) {
			err = errors.New("no source has settings, and there is no cached copy")
		}
		fmt.Fprintln(stderr, "agent settings:", err)
		return
	}
	if a.loaded.Cached {
		fmt.Fprintf(stderr, "agent settings: this is the cached copy: %v\n", a.loaded.Why)
	}
	if a.loaded.Foreign != "" {
		fmt.Fprintln(stderr, "agent settings: the state in the base directory belongs to another agent id; a boot would set it aside")
	}
	printFindings(stderr, a.loaded.Report)
	if explain {
		printVerdicts(stdout, a.verdicts)
	}
	for _, line := range a.effective.Explain() {
		if explain {
			fmt.Fprintln(stdout, line)
		} else {
			fmt.Fprintf(stdout, "%s = %s\n", line.Path, line.Value)
		}
	}
}

// printVerdicts tells of each source what it was asked, how long it took and why it lost.
func printVerdicts(w io.Writer, verdicts infrastructure.Verdicts) {
	for _, v := range verdicts {
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

// document is the form for machines.
func (a asked) document(err error) any {
	d := struct {
		From     string                  `json:"from,omitempty"`
		Cached   bool                    `json:"cached"`
		Why      string                  `json:"why,omitempty"`
		Error    string                  `json:"error,omitempty"`
		Sources  infrastructure.Verdicts `json:"sources"`
		Findings []report.Entry          `json:"findings"`
		Values   []settings.Line         `json:"effective"`
		Document json.RawMessage         `json:"document,omitempty"`
	}{From: a.loaded.From, Cached: a.loaded.Cached && err == nil, Sources: a.verdicts, Findings: a.loaded.Report.Entries, Values: []settings.Line{}}
	if d.Findings == nil {
		d.Findings = []report.Entry{}
	}
	if d.Sources == nil {
		d.Sources = infrastructure.Verdicts{}
	}
	if err != nil {
		d.Error = err.Error()
		return d
	}
	if a.loaded.Why != nil {
		d.Why = a.loaded.Why.Error()
	}
	d.Values = a.effective.Explain()
	d.Document = a.effective.Settings.Redacted()
	return d
}
