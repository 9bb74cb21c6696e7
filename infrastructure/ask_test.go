package infrastructure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/infrastructure/internal/source"
	"cambium/internal/secret"
)

func quiet() *logrus.Entry {
	l := logrus.New()
	l.Out = io.Discard
	return logrus.NewEntry(l)
}

// complete returns options of a boot without a cache where none are set.
func complete(o Options) Options {
	if o.Accept == nil {
		o.Accept = func(raw []byte) error {
			var document struct {
				AgentID string `json:"agent_id"`
			}
			if json.Unmarshal(raw, &document) != nil || document.AgentID == "" {
				return errors.New("no agent_id")
			}
			return nil
		}
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
	if o.Log == nil {
		o.Log = quiet()
	}
	return o
}

// scripted is a source that returns settings after a number of errors, each after some time.
type scripted struct {
	name   string
	takes  time.Duration
	fails  int // before the answer; negative: for ever
	err    error
	answer string

	mu    sync.Mutex
	calls []time.Time
}

func (s *scripted) Name() string { return s.name }

func (s *scripted) Settings(ctx context.Context) (Answer, error) {
	s.mu.Lock()
	s.calls = append(s.calls, time.Now())
	n := len(s.calls)
	s.mu.Unlock()
	select {
	case <-time.After(s.takes):
	case <-ctx.Done():
		return Answer{}, ctx.Err()
	}
	if s.fails < 0 || n <= s.fails {
		return Answer{}, s.err
	}
	return Answer{Raw: secret.NewJSON([]byte(s.answer)), From: s.name, Clear: func(context.Context) error { return nil }},
		nil
}

func (s *scripted) PublicKey(ctx context.Context) (string, error) {
	a, err := s.Settings(ctx)
	return string(a.Raw.Reveal()), err
}

const never = -1

func good(id string) string { return fmt.Sprintf(`{"agent_id":%q}`, id) }

func idOf(t *testing.T, a Answer) string {
	t.Helper()
	if a.Raw.Empty() {
		return ""
	}
	var document struct {
		AgentID string `json:"agent_id"`
	}
	if err := json.Unmarshal(a.Raw.Reveal(), &document); err != nil {
		t.Fatal(err)
	}
	return document.AgentID
}

// Contract S.5, S.6.
func TestOrderDecidesAndSlowFailuresDoNotAddUp(t *testing.T) {
	absent := source.Final(errors.New("absent"))
	later := source.NotYet(errors.New("404 Not Found"))
	broken := errors.New("connection refused")
	cases := []struct {
		name    string
		sources []*scripted
		cached  bool
		budget  time.Duration
		want    string // agent_id; "" means failure
		atMost  time.Duration
		atLeast time.Duration
		outcome []string
	}{
		{name: "first wins although it is slower",
			sources: []*scripted{{takes: 3 * time.Second, answer: good("a")}, {answer: good("b")}},
			want:    "a", atLeast: 3 * time.Second, atMost: 3 * time.Second, outcome: []string{Used, NotNeeded}},
		{name: "three slow definite failures cost what one costs",
			sources: []*scripted{{takes: 5 * time.Second, fails: never, err: absent},
				{takes: 5 * time.Second, fails: never, err: absent}, {takes: 5 * time.Second, fails: never, err: absent},
				{takes: time.Second, answer: good("d")}},
			want: "d", atLeast: 5 * time.Second, atMost: 5 * time.Second, outcome: []string{Failed, Failed, Failed, Used}},
		{name: "not yet is asked again about every second",
			sources: []*scripted{{fails: 30, err: later, answer: good("a")}},
			want:    "a", atLeast: 25 * time.Second, atMost: 35 * time.Second, outcome: []string{Used}},
		{name: "an hour without answer is waited for",
			sources: []*scripted{{fails: 3600, err: later, answer: good("a")}},
			want:    "a", atLeast: 50 * time.Minute, atMost: 70 * time.Minute, outcome: []string{Used}},
		{name: "a later answer is held back, then used",
			sources: []*scripted{{fails: never, err: broken}, {answer: good("b")}},
			want:    "b", atLeast: holdFor, atMost: holdFor, outcome: []string{NoAnswer, Used}},
		{name: "an earlier source that recovers in time wins",
			sources: []*scripted{{fails: 5, err: later, answer: good("a")}, {answer: good("b")}},
			want:    "a", atMost: holdFor, outcome: []string{Used, NotNeeded}},
		{name: "an earlier source that hangs is passed over",
			sources: []*scripted{{takes: time.Hour, answer: good("a")}, {answer: good("b")}},
			want:    "b", atLeast: holdFor, atMost: holdFor, outcome: []string{NoAnswer, Used}},
		{name: "with a cached copy no source is passed over and the budget ends it",
			sources: []*scripted{{fails: never, err: broken}, {answer: good("b")}}, cached: true,
			want: "", atLeast: DefaultCacheBudget, atMost: DefaultCacheBudget, outcome: []string{NoAnswer, NotNeeded}},
		{name: "with a cached copy and a long budget neither",
			sources: []*scripted{{fails: never, err: broken}, {answer: good("b")}}, cached: true, budget: 2 * holdFor,
			want: "", atLeast: 2 * holdFor, atMost: 2 * holdFor, outcome: []string{NoAnswer, NotNeeded}},
		{name: "with a cached copy definite failures end it at once",
			sources: []*scripted{{fails: never, err: absent}, {fails: never, err: absent}}, cached: true,
			want: "", atMost: time.Second, outcome: []string{Failed, Failed}},
		{name: "without one, sources that have failed for good are asked again",
			sources: []*scripted{{fails: 3, err: absent, answer: good("a")}},
			want:    "a", atLeast: 5 * time.Second, atMost: 8 * time.Second, outcome: []string{Used}},
		{name: "an unusable document is asked for again",
			sources: []*scripted{{answer: `{"agent_id":""}`}, {fails: 20, err: later, answer: good("b")}},
			want:    "b", atLeast: holdFor, atMost: time.Minute, outcome: []string{NoAnswer, Used}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var list []Source
				for i, s := range c.sources {
					s.name = fmt.Sprintf("S%d place", i)
					list = append(list, s)
				}
				s := newSources(list, false, complete(Options{HasCache: func() bool { return c.cached }, CacheBudget: c.budget,
					SideEffects: true}))
				start := time.Now()
				answer, results, err := s.Settings(t.Context())
				took := time.Since(start)
				if got := idOf(t, answer); got != c.want || (err == nil) != (c.want != "") {
					t.Errorf("answer of %q, error %v; want answer of %q", got, err, c.want)
				}
				if took < c.atLeast || took > c.atMost {
					t.Errorf("took %v, want %v to %v", took, c.atLeast, c.atMost)
				}
				var outcomes []string
				for _, v := range results {
					outcomes = append(outcomes, v.Outcome)
				}
				if fmt.Sprint(outcomes) != fmt.Sprint(c.outcome) {
					t.Errorf("outcomes %v, want %v\n%v", outcomes, c.outcome, results)
				}
			})
		})
	}
}

func TestPauses(t *testing.T) {
	cases := []struct {
		name      string
		err       error
		low, high time.Duration // mean pause over a minute
	}{
		{"not yet: about a second", source.NotYet(errors.New("x")), 800 * time.Millisecond, 1100 * time.Millisecond},
		{"transport: grows to seconds", errors.New("x"), 2 * time.Second, 5 * time.Second},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &scripted{name: "S", fails: never, err: c.err}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				_, results, err := newSources([]Source{s}, false, complete(Options{})).Settings(ctx)
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("error %v, want the end of the context", err)
				}
				if got := time.Minute / time.Duration(len(s.calls)); got < c.low || got > c.high {
					t.Errorf("asked %d times in a minute, every %v; want %v to %v", len(s.calls), got, c.low, c.high)
				}
				if results[0].Attempts < len(s.calls)-1 {
					t.Errorf("result counts %d attempts, there were %d", results[0].Attempts, len(s.calls))
				}
			})
		})
	}
}

func TestNetworkIsAskedForWhenItIsTheSourcesTurn(t *testing.T) {
	absent := source.Final(errors.New("absent"))
	needNet := &source.NeedNetwork{Networks: json.RawMessage(`{"a":{}}`)}

	t.Run("after earlier ones have definitely failed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSources([]Source{
				&scripted{name: "drive", takes: 4 * time.Second, fails: never, err: absent},
				&scripted{name: "http", fails: never, err: needNet},
				&scripted{name: "file", answer: good("late")},
			}, false, complete(Options{}))
			start := time.Now()
			_, results, err := s.Settings(t.Context())
			var need *NeedNetwork
			if !errors.As(err, &need) || string(need.Networks) != `{"a":{}}` {
				t.Fatalf("error %v, want the need of a network with its networks", err)
			}
			if took := time.Since(start); took != 4*time.Second {
				t.Errorf("network asked for after %v, want 4s: when the drive is known to be absent", took)
			}
			if results[1].Outcome != NeedsNetwork {
				t.Errorf("result %v, want needs network", results[1])
			}
		})
	})
	t.Run("never when an earlier one answers", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSources([]Source{
				&scripted{name: "file", takes: 4 * time.Second, answer: good("f")},
				&scripted{name: "http", fails: never, err: needNet},
			}, false, complete(Options{}))
			if answer, _, err := s.Settings(t.Context()); err != nil || idOf(t, answer) != "f" {
				t.Errorf("got %v, want the file's answer", err)
			}
		})
	})
	t.Run("a network that does not come lets later sources answer", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSources([]Source{
				&scripted{name: "http", fails: never, err: needNet},
				&scripted{name: "file", answer: good("f")},
			}, false, complete(Options{}))
			if _, _, err := s.Settings(t.Context()); !needsNetwork(err) {
				t.Fatalf("first call: error %v, want need of a network", err)
			}
			if answer, _, err := s.Settings(t.Context()); err != nil || idOf(t, answer) != "f" {
				t.Errorf("second call: %v, want the file's answer", err)
			}
		})
	})
	t.Run("is asked for again where nothing else answers", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSources([]Source{&scripted{name: "http", fails: never, err: needNet}}, false, complete(Options{}))
			for range 3 {
				if _, _, err := s.Settings(t.Context()); !needsNetwork(err) {
					t.Fatalf("error %v, want need of a network", err)
				}
			}
		})
	})
}

func TestStatusSaysWhatIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var said []string
		s := newSources([]Source{
			&scripted{name: "drive", fails: never, err: source.Final(errors.New("absent"))},
			&scripted{name: "HTTP http://m/u", fails: 5, err: source.NotYet(errors.New("http://m/u: 404 Not Found")),
				answer: good("a")},
		}, false, complete(Options{Status: func(_ context.Context, text string) {
			mu.Lock()
			said = append(said, text)
			mu.Unlock()
		}}))
		if _, _, err := s.Settings(t.Context()); err != nil {
			t.Fatal(err)
		}
		all := strings.Join(said, "\n")
		if !strings.Contains(all, "settings: HTTP http://m/u: 404 Not Found") {
			t.Errorf("status %q, want what is waited for and why", said)
		}
		if said[len(said)-1] != "" {
			t.Errorf("last status %q, want none after the wait", said[len(said)-1])
		}
	})
}

// TestAskedReportsResultsMeanwhile: Asked is also called before the end, with the time at which Settings began.
func TestAskedReportsResultsMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var statuses []string
		var start time.Time
		s := newSources([]Source{
			&scripted{name: "drive", takes: time.Second, fails: never, err: source.Final(errors.New("absent"))},
			&scripted{name: "HTTP", fails: 2, err: source.NotYet(errors.New("404 Not Found")), answer: good("a")},
		}, false, complete(Options{Asked: func(_ context.Context, began time.Time, v Results, over bool) {
			if start.IsZero() {
				start = began
			}
			if !began.Equal(start) {
				t.Errorf("Asked got two start times, %v and %v", start, began)
			}
			statuses = append(statuses, fmt.Sprintf("%s %s, %s %s, over %v", v[0].Source, v[0].Outcome, v[1].Source,
				v[1].Outcome, over))
		}}))
		if _, _, err := s.Settings(t.Context()); err != nil {
			t.Fatal(err)
		}
		const first, last = "drive no answer, HTTP no answer, over false", "drive failed, HTTP used, over true"
		if len(statuses) < 2 || statuses[0] != first || statuses[len(statuses)-1] != last {
			t.Errorf("reported %q, want %q first and %q last", statuses, first, last)
		}
	})
}

// Contract S.7.
func TestFailureNamesEverySource(t *testing.T) {
	s := newSources([]Source{
		&scripted{name: "File /a", fails: never, err: source.Final(errors.New("/a: no such file or directory"))},
		&scripted{name: "CDROM /dev/sr0 env", fails: never, err: source.Final(errors.New("no medium"))},
	}, false, complete(Options{Once: true}))
	_, results, err := s.Settings(t.Context())
	want := "no source has settings: File /a: failed: no such file or directory; CDROM /dev/sr0 env: failed: no medium"
	if err == nil || err.Error() != want {
		t.Errorf("error %q\nwant  %q", err, want)
	}
	if len(results) != 2 {
		t.Errorf("%d results, want 2", len(results))
	}
}

// TestSpentSources: that no source has settings is expected if one was cleared after its settings were cached, and no
// other may still answer.
func TestSpentSources(t *testing.T) {
	ejected, absent, away := source.Spent(errors.New("no such medium")), source.Final(errors.New("not installed")),
		errors.New("connection refused")
	for name, c := range map[string]struct {
		failures []error
		want     bool
	}{
		"ejected":                 {[]error{ejected}, true},
		"one is not there at all": {[]error{absent, ejected}, true},
		"never there":             {[]error{absent}, false},
		"one may still answer":    {[]error{away, ejected}, false},
	} {
		f := &Failure{What: "settings", Results: make(Results, len(c.failures)), causes: c.failures}
		if f.Spent() != c.want {
			t.Errorf("%s: spent %v, want %v", name, f.Spent(), c.want)
		}
	}
}

func TestSideEffectsOnlyWhenAllowed(t *testing.T) {
	for _, allowed := range []bool{false, true} {
		s := newSources([]Source{&scripted{name: "S", answer: good("a")}}, false, complete(Options{SideEffects: allowed}))
		answer, _, err := s.Settings(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if (answer.Clear != nil) != allowed {
			t.Errorf("side effects allowed: %v, Clear given: %v", allowed, answer.Clear != nil)
		}
	}
}

func TestKeySearchEndsAtTheFirstSourceWithoutAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSources([]Source{
			&scripted{name: "File", fails: never, err: source.Final(errors.New("missing"))},
			&scripted{name: "CDROM", takes: time.Second, answer: ""},
			&scripted{name: "HTTP", answer: "ssh-rsa later"},
		}, false, complete(Options{}))
		key, results, err := s.PublicKey(t.Context())
		if err != nil || key != "" || results[1].Outcome != Used {
			t.Errorf("key %q, error %v, results %v; want no key, from the second source", key, err, results)
		}
	})
}

func TestKeyQuestionIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSources([]Source{&scripted{name: "HTTP", fails: never, err: errors.New("connection refused")}}, false,
			complete(Options{}))
		start := time.Now()
		if _, _, err := s.PublicKey(t.Context()); err == nil {
			t.Error("no error, want one")
		}
		if took := time.Since(start); took != keyBudget {
			t.Errorf("took %v, want %v", took, keyBudget)
		}
	})
}

func TestLongWaitsAreLoggedOnce(t *testing.T) {
	for name, err := range map[string]error{"asked again": source.NotYet(errors.New("404 Not Found")),
		"failed": source.Final(errors.New("no such file"))} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out strings.Builder
				l := logrus.New()
				l.Out = &out
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				_, _, _ = newSources([]Source{&scripted{name: "S", fails: never, err: err}}, false,
					complete(Options{Log: logrus.NewEntry(l)})).Settings(ctx)
				if lines := strings.Count(out.String(), "\n"); lines == 0 || lines > 3 {
					t.Errorf("%d lines in an hour, want one to three\n%s", lines, out.String())
				}
			})
		})
	}
}

// TestWhoOnlyLooksGetsTheFirstAnswer: a boot waits for a file to become valid JSON, a command reports it at once.
func TestWhoOnlyLooksGetsTheFirstAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		s := newSources([]Source{&scripted{name: "File /a", fails: never, err: source.NotYet(errors.New("/a: not JSON"))}},
			false, complete(Options{Once: true}))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, _, err := s.Settings(ctx)
		if want := "no source has settings: File /a: failed: not JSON"; err == nil || err.Error() != want ||
			time.Since(begun) > 0 {
			t.Errorf("error %v after %v, want %q at once", err, time.Since(begun), want)
		}
	})
}
