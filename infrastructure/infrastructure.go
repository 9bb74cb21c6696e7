// Package infrastructure asks the settings sources of agent.json: side by side, with the first
// in order winning, and with a result for each. It yields a raw settings document and an SSH
// key; it changes nothing on the machine, configures no network and keeps nothing.
//
// Sources live in packages of their own and have one shape; the table in table.go is the only
// place that knows them all.
package infrastructure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/infrastructure/internal/source"
	"cambium/infrastructure/registry"
	"cambium/internal/neednet"
	"cambium/internal/retry"
	"cambium/internal/secret"
	"cambium/settings/agentjson"
)

// Source answers two questions. A source that needs a network, and has none, returns an error
// that is neednet.Err; sources never configure networks.
type Source interface {
	// Name is the type and the place that is asked, without credentials.
	Name() string
	// Settings returns a JSON object: a settings document, or a pointer to a registry.
	Settings(ctx context.Context) (Answer, error)
	// PublicKey returns the SSH key for the vcap user. An empty key without an error means
	// that there is none, and ends the search.
	PublicKey(ctx context.Context) (string, error)
}

// Answer is a settings document, where it came from, and what to do once it is cached.
type Answer = source.Answer

// NeedNetwork is the error of a source that waits for a network; find it with errors.As. Its
// Networks, if any, is the network to bring up: the "networks" of the user data that points to
// a registry. Otherwise a minimal DHCP network is wanted.
type NeedNetwork = source.NeedNetwork

// Times of the asking. cloudfoundry/bosh-agent tries each source ten times, a second apart,
// before it goes on to the next; these are of that order, and bounded.
const (
	// holdFor bounds the time for which the answer of a later source is held back while an earlier one neither
	// answers nor definitely fails.
	holdFor = 15 * time.Second
	// DefaultCacheBudget bounds the time for all sources together when a cached copy can serve.
	DefaultCacheBudget = 10 * time.Second
	// keyBudget bounds the search for the SSH key, which is optional.
	keyBudget = 30 * time.Second
)

// Options connect the sources to the rest of the agent. The zero value asks as a boot without
// a cache does.
type Options struct {
	// NetworkUp reports whether there is a usable network; nil means that there is.
	NetworkUp func(context.Context) bool
	// Connecting, if not nil, is called before each connection to a metadata service or a registry, from any goroutine.
	Connecting func(ctx context.Context, server netip.AddrPort)
	// Accept says whether a document can be used; nil only asks for an agent_id. Its errors
	// must not show the document.
	Accept func(raw []byte) error
	// Status is called with what is being waited for, and with "" when the wait is over, from any
	// goroutine.
	Status func(ctx context.Context, text string)
	// Asked is called with the result of each source: when the asking for settings begins, whenever a result
	// changes, and at the end.
	Asked func(ctx context.Context, began time.Time, v Results, over bool)
	// HasCache reports whether a good cached copy can serve; nil means that there is none. With
	// one, CacheBudget bounds the asking; without, Settings waits on.
	HasCache    func() bool
	CacheBudget time.Duration
	// Once makes Settings return when every source has definitely failed, also without a
	// cached copy: for the command line. A boot waits for sources to come up.
	Once bool
	// SideEffects allows Answer.Clear to eject media and erase originals.
	SideEffects bool
	Log         *logrus.Entry
	// Root is the directory that contains dev, sys and run; "/" if empty.
	Root string
}

// Sources are the sources of one agent.json, in order.
type Sources struct {
	sources  []Source
	registry registry.Client
	o        Options
	asked    netAsked
}

// New makes the sources; it touches nothing.
func New(cfg agentjson.Config, o Options) (*Sources, error) {
	o = o.withDefaults()
	var list []Source
	var problems []error
	for i, c := range cfg.Infrastructure.Settings.Sources {
		s, err := construct(c, cfg.Infrastructure.Settings, o)
		if err != nil {
			problems = append(problems, fmt.Errorf("source %d: %w", i+1, err))
			continue
		}
		list = append(list, s)
	}
	if len(list) == 0 && len(problems) == 0 {
		problems = append(problems, errors.New("agent.json names no settings source"))
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	return newSources(list, cfg.Infrastructure.Settings.UseServerName, o), nil
}

func newSources(list []Source, useServerName bool, o Options) *Sources {
	o = o.withDefaults()
	return &Sources{sources: list, o: o, registry: registry.Client{UseServerName: useServerName, NetworkUp: o.NetworkUp,
		Connecting: o.Connecting}}
}

func (o Options) withDefaults() Options {
	if o.NetworkUp == nil {
		o.NetworkUp = func(context.Context) bool { return true }
	}
	if o.Accept == nil {
		o.Accept = hasAgentID
	}
	if o.Status == nil {
		o.Status = func(context.Context, string) {}
	}
	if o.Asked == nil {
		o.Asked = func(context.Context, time.Time, Results, bool) {}
	}
	if o.HasCache == nil {
		o.HasCache = func() bool { return false }
	}
	if o.CacheBudget <= 0 {
		o.CacheBudget = DefaultCacheBudget
	}
	if o.Log == nil {
		o.Log = logrus.NewEntry(logrus.StandardLogger())
	}
	o.Log = o.Log.WithField("component", "sources")
	if o.Root == "" {
		o.Root = "/"
	}
	return o
}

func hasAgentID(raw []byte) error {
	var document struct {
		AgentID string `json:"agent_id"`
	}
	if err := json.Unmarshal(raw, &document); err != nil || document.AgentID == "" {
		return errors.New("no agent_id")
	}
	return nil
}

// Settings asks all sources for the settings document. The error is a *Failure when no source
// had one, or the NeedNetwork of the source whose turn it is; both come with the results.
func (s *Sources) Settings(ctx context.Context) (Answer, Results, error) {
	began := time.Now()
	answer, results, err := s.askForSettings(ctx, began)
	s.o.Asked(ctx, began, results, true)
	return answer, results, err
}

func (s *Sources) askForSettings(ctx context.Context, began time.Time) (Answer, Results, error) {
	p := policy{what: "settings", began: began, hold: holdFor,
		asked: func(v Results) { s.o.Asked(ctx, began, v, false) }, status: s.o.Status,
		log: s.o.Log, logged: map[string]string{}, netTried: s.asked.settings.Load}
	backoff := retry.Backoff{Min: time.Second, Max: 5 * time.Second, Jitter: 0.2}
	defer s.o.Status(ctx, "")
	for round := 0; ; round++ {
		cached := s.o.HasCache()
		p.passOver, p.budget = !cached, 0
		if cached {
			p.budget = s.o.CacheBudget
		}
		answer, results, err := ask(ctx, p, s.names(), s.settings)
		var failure *Failure
		switch {
		case errors.Is(err, neednet.Err):
			s.asked.settings.Store(true)
			return Answer{}, results, err
		case err == nil, cached, s.o.Once, ctx.Err() != nil, !errors.As(err, &failure):
			return answer, results, err
		}
		if round == 0 {
			s.o.Log.WithError(err).Warn("no source has settings, retrying")
		}
		s.o.Status(ctx, "settings: "+failure.Results.String())
		if ended := retry.Sleep(ctx, backoff.Pause(round)); ended != nil {
			return Answer{}, results, err
		}
	}
}

// PublicKey asks all sources for the SSH key of the vcap user. It takes keyBudget at most;
// its failure is not a reason to stop a boot that has settings.
func (s *Sources) PublicKey(ctx context.Context) (string, Results, error) {
	p := policy{what: "ssh key", began: time.Now(), asked: func(Results) {}, hold: holdFor, passOver: true,
		budget: keyBudget, status: s.o.Status, log: s.o.Log, logged: map[string]string{}, netTried: s.asked.key.Load}
	defer s.o.Status(ctx, "")
	key, results, err := ask(ctx, p, s.names(), func(ctx context.Context, i int) (string, error) {
		return s.sources[i].PublicKey(ctx)
	})
	if errors.Is(err, neednet.Err) {
		s.asked.key.Store(true)
	}
	return key, results, err
}

func (s *Sources) names() []string {
	names := make([]string, len(s.sources))
	for i, src := range s.sources {
		names[i] = src.Name()
	}
	return names
}

// settings asks one source. Who only looks does not wait for a better answer than the first.
func (s *Sources) settings(ctx context.Context, i int) (Answer, error) {
	answer, err := s.answer(ctx, i)
	if err != nil && s.o.Once && source.KindOf(err) == source.NotYetThere {
		err = source.Final(err)
	}
	return answer, err
}

// answer asks one source once, follows its pointer to a registry, and checks the document.
func (s *Sources) answer(ctx context.Context, i int) (Answer, error) {
	src := s.sources[i]
	answer, err := src.Settings(ctx)
	if err != nil {
		return Answer{}, err
	}
	pointer, err := registry.Read(answer.Raw.Reveal())
	if err != nil {
		return Answer{}, source.NotYet(err)
	}
	if pointer != nil {
		var instanceID func(context.Context) (string, error)
		if known, ok := src.(interface {
			InstanceID(context.Context) (string, error)
		}); ok {
			instanceID = known.InstanceID
		}
		document, from, err := s.registry.Settings(ctx, *pointer, instanceID)
		if err != nil {
			if source.KindOf(err) == source.Definite {
				// The pointer is there, so this is the source; what it points to may come.
				err = source.NotYet(err)
			}
			return Answer{}, err
		}
		answer.Raw = secret.NewJSON(document)
		answer.From = from + ", named by " + answer.From
	}
	if err := s.o.Accept(answer.Raw.Reveal()); err != nil {
		return Answer{}, source.NotYet(fmt.Errorf("not usable: %w", err))
	}
	if !s.o.SideEffects {
		answer.Clear = nil
	}
	return answer, nil
}

// Outcomes of a result.
const (
	Used         = "used"
	NotNeeded    = "not needed"    // an earlier source was used, or waited for
	Failed       = "failed"        // definitely has nothing
	NoAnswer     = "no answer"     // asked until the end, or passed over
	NeedsNetwork = "needs network" // not asked
)

// Result is the outcome of asking one source.
type Result struct {
	Source   string        `json:"source"`
	Outcome  string        `json:"outcome"`
	Took     time.Duration `json:"took"`
	Why      string        `json:"why,omitempty"`
	Attempts int           `json:"attempts"`
}

func (v Result) String() string {
	text := v.Source + ": " + v.Outcome
	if v.Why != "" {
		text += ": " + v.Why
	}
	if v.Attempts > 1 {
		text += fmt.Sprintf(" (asked %d times in %s)", v.Attempts, v.Took.Round(100*time.Millisecond))
	}
	return text
}

// Results has one result per source, in order.
type Results []Result

func (v Results) String() string {
	lines := make([]string, len(v))
	for i := range v {
		lines[i] = v[i].String()
	}
	return strings.Join(lines, "; ")
}

// Failure means that no source answered.
type Failure struct {
	What    string // "settings" or "ssh key"
	Results Results
	causes  []error
}

func (f *Failure) Error() string { return "no source has " + f.What + ": " + f.Results.String() }

// Spent reports whether no source is to be expected to answer again: one of them was cleared
// once its settings had been cached, and all others definitely have nothing.
func (f *Failure) Spent() bool {
	spent := false
	for _, cause := range f.causes {
		if source.KindOf(cause) != source.Definite {
			return false
		}
		spent = spent || source.IsSpent(cause)
	}
	return spent && len(f.causes) == len(f.Results)
}

// Unwrap gives the last failure of each source.
func (f *Failure) Unwrap() []error { return f.causes }
