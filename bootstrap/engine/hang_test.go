package engine

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/internal/status"
)

// verdictLog collects the verdicts of an engine, and when they came.
type verdictLog struct {
	begin time.Time
	lines []string
	after []time.Duration
}

func (l *verdictLog) listen(e *Engine) {
	l.begin = time.Now()
	e.Failing = func(v Verdict) {
		l.lines, l.after = append(l.lines, v.Line()), append(l.after, time.Since(l.begin))
	}
}

func fails(text string) func(context.Context, *Span) error {
	return func(context.Context, *Span) error { return errors.New(text) }
}

// hangs is a step that hangs in a system call: it ignores deadline and cancellation.
func hangs(d time.Duration) func(context.Context, *Span) error {
	return func(context.Context, *Span) error {
		time.Sleep(d)
		return nil
	}
}

// The way to the bus may take minutes, and the verdict is known long before.
func TestAVerdictIsToldWhileOtherStepsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := newEngine(t)
		var heard verdictLog
		heard.listen(e)
		var shown []string
		e.Notify = func(text string) {
			if len(heard.lines) > 0 {
				shown = append(shown, text)
			}
		}
		v, _, err := e.Run(t.Context(), []Step{
			{Name: "disk", Run: func(ctx context.Context, s *Span) error { time.Sleep(time.Second); return errors.New("refused") }},
			{Name: "network", Always: true, Run: func(ctx context.Context, s *Span) error {
				time.Sleep(2 * time.Second)
				s.Waiting("a lease")
				return pause(5*time.Minute)(ctx, s)
			}},
			{Name: "later", Needs: []string{"network"}, Run: fails("also")},
			{Name: "bus", Always: true, Needs: []string{"network"}, Run: fails("no bus either")},
		})
		if err != nil || v.Line() != "disk: refused: correct the cause, then run 'agent retry'" {
			t.Fatalf("got %q, %v; want the first failure", v.Line(), err)
		}
		if !slices.Equal(heard.lines, []string{"disk: refused: correct the cause, then run 'agent retry'"}) ||
			heard.after[0] != time.Second {
			t.Errorf("announced %q after %v, want the verdict once, after 1s", heard.lines, heard.after)
		}
		if len(shown) != 0 {
			t.Errorf("the service manager shows %q, want nothing over the verdict", shown)
		}
	})
}

// A step that ignores its deadline fails; a second run of it never overlaps the first.
func TestAStepThatCannotBeStoppedIsJudged(t *testing.T) {
	const deadline = time.Minute
	synctest.Test(t, func(t *testing.T) {
		e, path := newEngine(t)
		var heard verdictLog
		heard.listen(e)
		v, _, err := e.Run(t.Context(), []Step{{Name: "disk", Deadline: deadline, Advice: "look at it",
			Run: hangs(time.Hour)}})
		if err != nil || v.State != status.Failed || time.Since(heard.begin) != time.Hour {
			t.Errorf("got %s, %v after %v; want the failure when the step has ended", v.State, err, time.Since(heard.begin))
		}
		want := "disk: still running after its deadline of 1m0s, and cannot be interrupted: look at it, then run 'agent retry'"
		if !slices.Equal(heard.lines, []string{want}) || heard.after[0] != deadline+hangGrace {
			t.Errorf("announced %q after %v, want %q after %v", heard.lines, heard.after, want, deadline+hangGrace)
		}
		if d, _ := status.Read(path); d.Verdict != want {
			t.Errorf("status %q, want %q", d.Verdict, want)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		e, _ := newEngine(t)
		begin := time.Now()
		var running, most, begun atomic.Int32
		table := []Step{
			{Name: "passwords", Optional: true, Deadline: deadline, Run: func(ctx context.Context, s *Span) error {
				begun.Add(1)
				most.Store(max(most.Load(), running.Add(1)))
				defer running.Add(-1)
				return hangs(time.Hour)(ctx, s)
			}},
			{Name: "disk", Needs: []string{"passwords"}, Run: pause(time.Second)},
		}
		v, rest, err := e.Run(t.Context(), table)
		if err != nil || v.State != status.Degraded || time.Since(begin) != deadline+hangGrace+time.Second {
			t.Errorf("got %s, %v after %v; want degraded without the optional step", v.State, err, time.Since(begin))
		}
		second, _, err := e.Run(t.Context(), table)
		if err != nil || second.State != status.Degraded || begun.Load() != 1 ||
			!strings.Contains(strings.Join(second.Warnings, ""), errStillRunning.Error()) {
			t.Errorf("again: %s %q, %v, begun %d times; want a warning and no second copy", second.State, second.Warnings, err,
				begun.Load())
		}
		rest()
		if time.Since(begin) != time.Hour {
			t.Errorf("the rest ended after %v, want the step waited for", time.Since(begin))
		}
		if v, _, _ := e.Run(t.Context(), table[:1]); begun.Load() != 2 || v.State != status.Degraded || most.Load() != 1 {
			t.Errorf("when it has ended: begun %d times, %d at once, %s; want it begun again", begun.Load(), most.Load(),
				v.State)
		}
		time.Sleep(2 * time.Hour)
	})
}

// What a background step of an earlier try finds out is not said of the present one.
func TestAnEarlierTrySaysNothingOfThePresentOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, path := newEngine(t)
		table := func(background func(context.Context, *Span) error) []Step {
			return []Step{{Name: "disk", Run: pause(0)}, {Name: "time", Background: true, Run: background}}
		}
		old, cancel := context.WithCancel(t.Context())
		_, before, _ := e.Run(old, table(func(_ context.Context, s *Span) error {
			time.Sleep(time.Minute)
			s.Evidence("old")
			s.Waiting("something")
			s.Warn("old")
			return errors.New("old")
		}))
		synctest.Wait()
		v, rest, err := e.Run(t.Context(), []Step{{Name: "disk", Run: pause(0)},
			{Name: "time", If: func() bool { return false }, Run: pause(0)}})
		if err != nil || v.State != status.Ready {
			t.Fatalf("got %s %q, %v; want ready", v.State, v.Warnings, err)
		}
		before()
		rest()
		cancel()
		if err := e.Status.Flush(); err != nil {
			t.Fatal(err)
		}
		if d, _ := status.Read(path); d.State != status.Ready || len(d.Warnings) != 0 ||
			d.Steps[1].Outcome != status.Skipped || len(d.Steps[1].Evidence) != 0 || len(d.Steps[1].Waits) != 0 {
			t.Errorf("%s, warnings %q, step %+v; want nothing of the earlier try", d.State, d.Warnings, d.Steps[1])
		}
	})
}

// Short steps share a line, after the verdict; a long one has its own.
func TestAStepsEvidenceIsInTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := newEngine(t)
		var log bytes.Buffer
		logger := logrus.New()
		logger.SetOutput(&log)
		e.Log = logrus.NewEntry(logger)
		step := func(name, evidence string, lasts time.Duration) Step {
			return Step{Name: name, Run: func(_ context.Context, s *Span) error {
				s.Evidence("%s", evidence)
				s.Evidence("two")
				time.Sleep(lasts)
				return nil
			}}
		}
		_, rest, err := e.Run(t.Context(), []Step{step("keys", "made 1", longStep/2), step("users", "made 2", longStep/4),
			step("disk", "made 3", longStep)})
		if err != nil {
			t.Fatal(err)
		}
		if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, `evidence="made 3; two"`) ||
			!strings.Contains(text, "step=disk") || !strings.Contains(text, "began=") || !strings.Contains(text, "took=1s") {
			t.Errorf("%q, want one line of the long step, with times and evidence", text)
		}
		log.Reset()
		rest()
		if text := log.String(); strings.Count(text, "\n") != 1 ||
			!strings.Contains(text, `steps="users 0s..250ms done (made 2; two), keys 0s..500ms done (made 1; two)"`) {
			t.Errorf("%q, want one line of the short ones", text)
		}
	})
}
