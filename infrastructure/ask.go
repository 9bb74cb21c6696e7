package infrastructure

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/infrastructure/internal/source"
	"cambium/internal/retry"
)

// Pauses between attempts at a source.
var (
	notYetPause    = retry.Backoff{Min: 1100 * time.Millisecond, Jitter: 0.2}
	transportPause = retry.Backoff{Min: 250 * time.Millisecond, Max: 5 * time.Second, Jitter: 0.5}
)

// netAsked records for which questions the caller was asked to bring up a network. If there is no network at the next
// attempt either, sources that need none come first.
type netAsked struct{ settings, key atomic.Bool }

type policy struct {
	what     string
	began    time.Time
	asked    func(Results) // called if a result changes
	hold     time.Duration // time for which answers of later sources wait for an earlier source
	passOver bool          // after hold, use a later answer instead of waiting
	budget   time.Duration // for all sources; 0 means no limit
	netTried func() bool
	status   func(context.Context, string)
	log      *logrus.Entry
	// logged holds the last logged error of each source, so that a source that fails for hours does not fill the log.
	logged map[string]string
}

// state tracks a source until the question is answered.
type state struct {
	answered bool
	err      error // of the last attempt
	attempts int
	at       time.Time // of the last attempt's end
}

func (s state) failed() bool {
	return s.err != nil && !needsNetwork(s.err) && source.KindOf(s.err) == source.Definite
}

func needsNetwork(err error) bool {
	_, needs := errors.AsType[*NeedNetwork](err)
	return needs
}

type step int

const (
	wait step = iota
	use
	bringUpNetwork
	giveUp
)

// decide returns the next step, and the source that it concerns:
//
//  1. The first source with an answer wins, once all sources before it have definitely failed.
//  2. A source that neither answers nor fails holds back the answers of later sources. With passOver it does so only
//     until expired is set; it is still tried after that.
//  3. A source that needs a network gets it when its turn comes, even if a later source has an answer. If the caller
//     was already asked for a network (netTried), the source holds back later ones as in rule 2, and asks for the
//     network again once expired is set and no other source has answered.
//  4. If all sources have definitely failed, there is no answer.
func decide(states []state, expired, passOver, netTried bool) (step, int) {
	held, open, network := false, false, -1
	for i, s := range states {
		switch {
		case s.answered:
			if held {
				return wait, 0
			}
			return use, i
		case s.failed():
		case needsNetwork(s.err) && !netTried:
			if held {
				return wait, 0
			}
			return bringUpNetwork, i
		default:
			open = true
			if needsNetwork(s.err) && network < 0 {
				network = i
			}
			if !expired || !passOver {
				held = true
			}
		}
	}
	switch {
	case network >= 0 && expired:
		return bringUpNetwork, network
	case !open:
		return giveUp, 0
	}
	return wait, 0
}

// event is the result of one attempt at a source.
type event[T any] struct {
	i      int
	answer T // valid if err is nil
	err    error
	at     time.Time
}

// ask tries all sources concurrently and returns the winning answer. Its goroutines have ended when it returns.
func ask[T any](ctx context.Context, p policy, names []string,
	get func(context.Context, int) (T, error)) (T, Results, error) {
	var none T
	start := p.began
	budget := p.budget
	if budget == 0 {
		budget = math.MaxInt64
	}
	inner, cancel := context.WithTimeout(ctx, budget)
	events := make(chan event[T])
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	for i := range names {
		running.Go(func() { repeat(inner, i, get, events) })
	}
	hold := time.NewTimer(p.hold)
	defer hold.Stop()

	states, answers := make([]state, len(names)), make([]T, len(names))
	expired, said := false, ""
	for {
		next, i := decide(states, expired, p.passOver, p.netTried())
		switch next {
		case use:
			return answers[i], results(names, states, start, i), nil
		case bringUpNetwork:
			return none, results(names, states, start, -1), fmt.Errorf("%s: %w", names[i], states[i].err)
		case giveUp:
			return none, results(names, states, start, -1), failure(p.what, names, states, start)
		}
		if text := waitingFor(names, states); text != said {
			said = text
			p.status(ctx, p.what+": "+text)
			p.asked(results(names, states, start, -1))
		}
		select {
		case e := <-events:
			s := &states[e.i]
			if e.err != nil && p.logged[names[e.i]] != e.err.Error() {
				p.logged[names[e.i]] = e.err.Error()
				p.log.WithError(e.err).
					WithFields(logrus.Fields{"source": names[e.i], "attempt": s.attempts + 1, "question": p.what}).
					Warn("source failed")
			}
			answers[e.i] = e.answer
			s.answered, s.err, s.at = e.err == nil, e.err, e.at
			s.attempts++
		case <-hold.C:
			expired = true
		case <-inner.Done():
			err := failure(p.what, names, states, start)
			if ctx.Err() != nil {
				err.causes = append(err.causes, context.Cause(ctx))
			} else {
				err.causes = append(err.causes, context.DeadlineExceeded)
			}
			return none, err.Results, err
		}
	}
}

// repeat tries a source until it answers or fails for good.
func repeat[T any](ctx context.Context, i int, get func(context.Context, int) (T, error), events chan<- event[T]) {
	transport := 0
	for {
		answer, err := get(ctx, i)
		if ctx.Err() != nil {
			return // err is due to the end of ctx
		}
		select {
		case events <- event[T]{i: i, answer: answer, err: err, at: time.Now()}:
		case <-ctx.Done():
			return
		}
		needs := needsNetwork(err)
		if err == nil || !needs && source.KindOf(err) == source.Definite {
			return
		}
		pause := notYetPause.Pause(0)
		if !needs && source.KindOf(err) == source.Transport {
			pause = transportPause.Pause(transport)
			transport++
		} else {
			transport = 0
		}
		if retry.Sleep(ctx, pause) != nil {
			return
		}
	}
}

// waitingFor lists the sources that are still tried, with their last errors.
func waitingFor(names []string, states []state) string {
	text := ""
	for i, s := range states {
		if s.answered || s.failed() {
			continue
		}
		if text != "" {
			text += "; "
		}
		text += names[i]
		if s.err != nil {
			text += ": " + why(names[i], s.err)
		}
	}
	return text
}

// why formats an error without its location, which the name of the source already contains.
func why(name string, err error) string {
	_, place, _ := strings.Cut(name, " ")
	return strings.TrimPrefix(err.Error(), place+": ")
}

func results(names []string, states []state, start time.Time, winner int) Results {
	list := make(Results, len(names))
	for i, s := range states {
		v := Result{Source: names[i], Attempts: s.attempts, Took: time.Since(start)}
		if s.answered || s.failed() {
			v.Took = s.at.Sub(start)
		}
		if s.err != nil {
			v.Why = why(names[i], s.err)
		}
		switch {
		case i == winner:
			v.Outcome = Used
		case s.failed():
			v.Outcome = Failed
		case needsNetwork(s.err):
			v.Outcome, v.Why = NeedsNetwork, ""
		case winner >= 0 && i > winner:
			v.Outcome = NotNeeded
		case s.answered:
			v.Outcome, v.Why = NotNeeded, "an earlier source takes precedence"
		default:
			v.Outcome = NoAnswer
		}
		list[i] = v
	}
	return list
}

func failure(what string, names []string, states []state, start time.Time) *Failure {
	f := &Failure{What: what, Results: results(names, states, start, -1)}
	for _, s := range states {
		if s.err != nil {
			f.causes = append(f.causes, s.err)
		}
	}
	return f
}
