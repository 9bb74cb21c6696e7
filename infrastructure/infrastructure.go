// Package infrastructure fetches the raw settings document and an SSH key from the sources in agent.json. It tries the
// sources concurrently, prefers earlier ones, and returns a result for each. It does not change the machine, configure
// networks or store anything.
//
// Each type of source has a package of its own. Only the table in table.go knows all of them.
package infrastructure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/infrastructure/internal/source"
	"cambium/infrastructure/registry"
	"cambium/internal/retry"
	"cambium/internal/secret"
	"cambium/settings/agentjson"
)

// Source provides settings and an SSH key. A source without the network it needs returns a *NeedNetwork; it never
// configures networks.
type Source interface {
	// Name returns the type and the location, without credentials.
	Name() string
	// Settings returns a JSON object: a settings document, or a pointer to a registry.
	Settings(ctx context.Context) (Answer, error)
	// PublicKey returns the SSH key for the vcap user. An empty key without an error means that there is none, and ends
	// the search.
	PublicKey(ctx context.Context) (string, error)
}

// Answer is a settings document, its origin, and a function to call once it is cached.
type Answer = source.Answer

// NeedNetwork is the error of Settings if a source needs a network, and none is up.
type NeedNetwork = source.NeedNetwork

// Time limits. cloudfoundry/bosh-agent tries each source ten times, a second apart, before the next one. These limits
// are similar, and bounded.
const (
	// holdFor bounds the time for which an earlier source that neither answers nor definitely fails holds back the
	// answers of later ones.
	holdFor = 15 * time.Second
	// DefaultCacheBudget bounds the time for all sources together if there is a cached copy.
	DefaultCacheBudget = 10 * time.Second
	// keyBudget bounds the search for the SSH key, which is optional.
	keyBudget = 30 * time.Second
)

// Options are the callbacks and limits of Sources.
type Options struct {
	// NetworkUp reports whether a usable network is up. If it is nil, there always is one.
	NetworkUp func(context.Context) bool
	// Connecting, if not nil, is called before each connection to a metadata service or a registry, from any goroutine.
	Connecting func(ctx context.Context, server netip.AddrPort)
	// Accept returns an error if a document cannot be used. Errors must not quote the document.
	Accept func(raw []byte) error
	// Status is called, from any goroutine, with a description of the current wait, and with "" at its end.
	Status func(ctx context.Context, text string)
	// Asked is called with the results of all sources: when Settings begins, whenever a result changes, and at the end.
	Asked func(ctx context.Context, began time.Time, v Results, over bool)
	// HasCache reports whether there is a usable cached copy. With a copy, Settings returns after CacheBudget at the
	// latest; without one, it keeps waiting.
	HasCache    func() bool
	CacheBudget time.Duration // 0 means DefaultCacheBudget
	// Once makes Settings return if all sources have definitely failed, even without a cached copy. Command-line
	// commands set it; a boot waits for sources to come up.
	Once bool
	// SideEffects permits Answer.Clear to eject media and erase originals.
	SideEffects bool
	Log         *logrus.Entry
	// Root is the directory that contains dev, sys and run; "/" if empty.
	Root string
}

// Sources holds the sources of an agent.json, in order.
type Sources struct {
	sources  []Source
	registry registry.Client
	o        Options
	asked    netAsked
}

// New creates the sources without contacting them.
func New(cfg agentjson.Config, o Options) (*Sources, error) {
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
	return &Sources{sources: list, o: o, registry: registry.Client{UseServerName: useServerName, NetworkUp: o.NetworkUp,
		Connecting: o.Connecting}}
}

// Settings fetches the settings document. The error is a *Failure if no source has a document, or the NeedNetwork of
// the source whose turn it is. Results are returned in all cases.
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
			p.budget = cmp.Or(s.o.CacheBudget, DefaultCacheBudget)
		}
		answer, results, err := ask(ctx, p, s.names(), s.settings)
		var failure *Failure
		switch {
		case needsNetwork(err):
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

// PublicKey fetches the SSH key of the vcap user, for at most keyBudget. A failure does not prevent a boot with
// settings.
func (s *Sources) PublicKey(ctx context.Context) (string, Results, error) {
	p := policy{what: "ssh key", began: time.Now(), asked: func(Results) {}, hold: holdFor, passOver: true,
		budget: keyBudget, status: s.o.Status, log: s.o.Log, logged: map[string]string{}, netTried: s.asked.key.Load}
	defer s.o.Status(ctx, "")
	key, results, err := ask(ctx, p, s.names(), func(ctx context.Context, i int) (string, error) {
		return s.sources[i].PublicKey(ctx)
	})
	if needsNetwork(err) {
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

// settings tries one source. With Once, a temporary error is final.
func (s *Sources) settings(ctx context.Context, i int) (Answer, error) {
	answer, err := s.answer(ctx, i)
	if err != nil && s.o.Once && source.KindOf(err) == source.NotYetThere {
		err = source.Final(err)
	}
	return answer, err
}

// answer tries one source once, follows its pointer to a registry, and checks the document.
func (s *Sources) answer(ctx context.Context, i int) (Answer, error) {
	src := s.sources[i]
	answer, err := src.Settings(ctx)
	if err != nil {
		return Answer{}, err
	}
	pointer, err := registry.ParsePointer(answer.Raw.Reveal())
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
				// A source with a pointer is the right one; the registry may not have the settings yet.
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

// Values of Result.Outcome.
const (
	Used         = "used"
	NotNeeded    = "not needed"    // an earlier source was used or takes precedence
	Failed       = "failed"        // definitely has no answer
	NoAnswer     = "no answer"     // did not answer in time
	NeedsNetwork = "needs network" // was not tried
)

// Result is the outcome of one source.
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

// Results holds one Result for each source, in order.
type Results []Result

func (v Results) String() string {
	lines := make([]string, len(v))
	for i := range v {
		lines[i] = v[i].String()
	}
	return strings.Join(lines, "; ")
}

// Failure is the error if no source has an answer.
type Failure struct {
	What    string // "settings" or "ssh key"
	Results Results
	causes  []error
}

func (f *Failure) Error() string { return "no source has " + f.What + ": " + f.Results.String() }

// Spent reports whether no source is expected to answer again: one was cleared after its settings were cached, and all
// others definitely have no answer.
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

// Unwrap returns the last error of each source.
func (f *Failure) Unwrap() []error { return f.causes }
