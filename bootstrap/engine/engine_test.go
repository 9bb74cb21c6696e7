package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"cambium/internal/status"
)

func newEngine(t *testing.T) (*Engine, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "status.json")
	rec, err := status.Open(path, "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // before the directory goes
		if err := rec.Flush(); err != nil {
			t.Error(err)
		}
	})
	logger := logrus.New()
	logger.SetOutput(io.Discard)
	return &Engine{Log: logrus.NewEntry(logger), Status: rec}, path
}

func pause(d time.Duration) func(context.Context, *Span) error {
	return func(ctx context.Context, _ *Span) error {
		select {
		case <-time.After(d):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func TestStepsRunSideBySideAndInOrderOfNeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, path := newEngine(t)
		start := time.Now()
		v, wait, err := e.Run(t.Context(), []Step{
			{Name: "settings", Run: pause(time.Second)},
			{Name: "network", Needs: []string{"settings"}, Run: pause(3 * time.Second)},
			{Name: "disk", Needs: []string{"settings"}, Run: pause(2 * time.Second)},
			{Name: "time", Needs: []string{"settings"}, Background: true, Run: pause(time.Hour)},
			{Name: "none", If: func() bool { return false }, Run: pause(time.Hour)},
			{Name: "monit", Needs: []string{"network", "disk", "none", "time"}, Run: pause(time.Second)},
		})
		if err != nil || v.State != status.Ready {
			t.Fatalf("got %+v, %v; want ready", v, err)
		}
		if took := time.Since(start); took != 5*time.Second {
			t.Errorf("took %v, want 5s: the longest chain, not the sum", took)
		}
		wait()
		if took := time.Since(start); took < time.Hour {
			t.Errorf("the background step ended after %v", took)
		}
		d, err := status.Read(path)
		if err != nil {
			t.Fatal(err)
		}
		outcomes := map[string]status.Outcome{}
		for _, s := range d.Steps {
			outcomes[s.Name] = s.Outcome
		}
		if outcomes["none"] != status.Skipped || outcomes["monit"] != status.Done || outcomes["time"] != status.Done {
			t.Errorf("outcomes %v", outcomes)
		}
	})
}

// A step may wait without a deadline. When it is overdue there is a verdict, which is taken back if
// the step ends well.
func TestOverdueStepAnnouncesVerdict(t *testing.T) {
	wait := func(d time.Duration, fails error) func(context.Context, *Span) error {
		return func(ctx context.Context, s *Span) error {
			s.Waiting("a file")
			return errors.Join(pause(d)(ctx, s), fails)
		}
	}
	for _, c := range []struct {
		name         string
		run          func(context.Context, *Span) error
		wantVerdicts []string
		after        status.State
	}{
		{"in time", wait(19*time.Second, nil), nil, status.Ready},
		{"late", wait(time.Hour, nil), []string{"settings: still waiting after 20s for a file: put it there", ""}, status.Ready},
		{"late without a word", pause(time.Hour), []string{"settings: still running after 20s: put it there", ""}, status.Ready},
		{"late for another reason", func(ctx context.Context, s *Span) error {
			s.Waiting("a file")
			time.Sleep(25 * time.Second)
			for range 20 { // which is said once
				s.Waiting("a server")
				time.Sleep(time.Second)
			}
			return wait(time.Hour, nil)(ctx, s)
		}, []string{"settings: still waiting after 20s for a file: put it there",
			"settings: still waiting after 40s for a server: put it there",
			"settings: still waiting after 1m0s for a file: put it there", ""}, status.Ready},
		{"never", wait(time.Hour, errors.New("gone")), []string{"settings: still waiting after 20s for a file: put it there", "settings: gone: put it there, then run 'agent retry'"}, status.Failed},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e, path := newEngine(t)
				var verdicts, shown []string
				e.Failing = func(v Verdict) {
					if v.Cause == nil {
						verdicts = append(verdicts, "")
					} else {
						verdicts = append(verdicts, v.Line())
					}
				}
				e.Notify = func(text string) { shown = append(shown, text) }
				go func() {
					time.Sleep(30 * time.Second)
					synctest.Wait()
					if len(c.wantVerdicts) > 0 && len(shown) > 2 {
						t.Errorf("the service manager shows %q over the verdict", shown)
					}
				}()
				v, _, err := e.Run(t.Context(), []Step{{Name: "settings", AnnounceAfter: 20 * time.Second, Advice: "put it there",
					Run: c.run}})
				if err != nil || v.State != c.after || !slices.Equal(verdicts, c.wantVerdicts) {
					t.Errorf("got %s, %v, verdicts %q; want %s, verdicts %q", v.State, err, verdicts, c.after, c.wantVerdicts)
				}
				if d, err := status.Read(path); err != nil || d.State != c.after || (d.Verdict == "") != (c.after == status.Ready) {
					t.Errorf("status %s %q, %v; want %s", d.State, d.Verdict, err, c.after)
				}
				time.Sleep(time.Minute) // the watcher ends
			})
		})
	}
}

func TestAStepYieldsToWhatReadyWaitsFor(t *testing.T) {
	const telling = time.Second // what telling the verdict takes
	begins := func(disk, monit func(context.Context, *Span) error) (dns time.Duration, v Verdict) {
		synctest.Test(t, func(t *testing.T) {
			e, path := newEngine(t)
			start := time.Now()
			var wait func()
			var err error
			v, wait, err = e.Run(t.Context(), []Step{
				{Name: "directories", Run: pause(time.Second)},
				{Name: "disk", Run: disk},
				{Name: "monit", Needs: []string{"directories", "disk"}, Run: monit},
				{Name: "dns", Needs: []string{"directories"}, Yields: []string{"monit"}, Always: true, Background: true, Run: func(context.Context, *Span) error {
					dns = time.Since(start)
					return nil
				}},
			})
			if err != nil {
				t.Fatal(err)
			}
			begun := dns != 0
			if d, err := status.Read(path); err != nil || (d.Steps[3].Outcome == status.Pending) == begun {
				t.Errorf("at the verdict the step has begun: %v, and is %s, %v", begun, d.Steps[3].Outcome, err)
			}
			time.Sleep(telling)
			wait()
		})
		return dns, v
	}
	broken := func(context.Context, *Span) error { return errors.New("broken") }
	late := func(ctx context.Context, s *Span) error {
		time.Sleep(2 * time.Second)
		return broken(ctx, s)
	}
	for _, c := range []struct {
		name        string
		disk, monit func(context.Context, *Span) error
		want        time.Duration
		state       status.State
	}{
		{"after a step that can begin", pause(0), pause(2 * time.Second), 3*time.Second + telling, status.Ready},
		{"after one that must wait itself", pause(3 * time.Second), pause(time.Second), 4*time.Second + telling,
			status.Ready},
		{"not after one that waits long", pause(time.Minute), pause(time.Second), time.Second + yieldLimit,
			status.Ready},
		{"not after one that can never begin", late, pause(time.Second), 2*time.Second + telling, status.Failed},
		{"after one that fails", pause(0), broken, time.Second + telling, status.Failed},
	} {
		if got, v := begins(c.disk, c.monit); got != c.want || v.State != c.state {
			t.Errorf("%s: began after %v, %s; want %v, %s", c.name, got, v.State, c.want, c.state)
		}
	}
}

func TestFirstFailureCancelsTheRestAndIsTheVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, path := newEngine(t)
		var mu sync.Mutex
		var ran []string
		note := func(name string, f func(context.Context, *Span) error) func(context.Context, *Span) error {
			return func(ctx context.Context, s *Span) error {
				mu.Lock()
				ran = append(ran, name)
				mu.Unlock()
				return f(ctx, s)
			}
		}
		v, _, err := e.Run(t.Context(), []Step{
			{Name: "settings", Run: note("settings", pause(0))},
			{Name: "ephemeral-disk", Needs: []string{"settings"}, Advice: "attach it", Run: note("ephemeral-disk", func(context.Context, *Span) error {
				time.Sleep(time.Second)
				return errors.New("No ephemeral disk found\nlooked for /dev/sdb")
			})},
			{Name: "network", Needs: []string{"settings"}, Run: note("network", pause(time.Hour))},
			{Name: "monit", Needs: []string{"ephemeral-disk"}, Run: note("monit", pause(0))},
			{Name: "links", Always: true, Run: note("links", pause(2*time.Second))},
			{Name: "bus", Always: true, Needs: []string{"links"}, Run: note("bus", pause(time.Second))},
		})
		if !slices.Contains(ran, "bus") {
			t.Error("the verdict has no way to travel: the bus was not started after the failure")
		}
		if err != nil || v.State != status.Failed {
			t.Fatalf("got %+v, %v; want failed", v, err)
		}
		if got, want := v.Line(), "ephemeral-disk: No ephemeral disk found; looked for /dev/sdb: attach it, then run 'agent retry'"; got != want {
			t.Errorf("verdict %q, want %q", got, want)
		}
		if slices.Contains(ran, "monit") {
			t.Error("a step ran although what it needs had failed")
		}
		d, _ := status.Read(path)
		if d.Verdict != v.Line() || d.State != status.Failed {
			t.Errorf("status says %q %q", d.State, d.Verdict)
		}
		for _, s := range d.Steps {
			if (s.Name == "network" || s.Name == "monit") && s.Outcome != status.Canceled {
				t.Errorf("%s is %s, want canceled", s.Name, s.Outcome)
			}
		}
	})
}

func TestOptionalStepsWarnPanicsAndDeadlinesAreVerdicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, path := newEngine(t)
		v, _, err := e.Run(t.Context(), []Step{
			{Name: "audit", Optional: true, Run: func(context.Context, *Span) error { return errors.New("auditd is missing") }},
			{Name: "after", Needs: []string{"audit"}, Run: func(_ context.Context, s *Span) error { s.Warn("clock is off"); return nil }},
		})
		if err != nil || v.State != status.Degraded || len(v.Warnings) != 2 {
			t.Errorf("got %+v, %v; want degraded with two warnings", v, err)
		}
		if d, _ := status.Read(path); d.State != status.Degraded || len(d.Warnings) != 2 {
			t.Errorf("status: %s %v", d.State, d.Warnings)
		}
		// The value of a panic may contain secrets, which must not get into a verdict.
		v, _, _ = e.Run(t.Context(), []Step{{Name: "x", Run: func(context.Context, *Span) error { panic("boom") }}})
		if v.State != status.Failed || !strings.Contains(v.Line(), "internal error") || strings.Contains(v.Line(), "boom") {
			t.Errorf("panic: got %+v", v)
		}
		v, _, _ = e.Run(t.Context(), []Step{{Name: "slow", Deadline: time.Minute,
			Run: func(ctx context.Context, s *Span) error {
				s.Waiting("/dev/sdb")
				<-ctx.Done()
				return context.Cause(ctx)
			}}})
		if !strings.Contains(v.Line(), "did not finish within 1m0s") {
			t.Errorf("deadline: got %q", v.Line())
		}
		if d, _ := status.Read(path); len(d.Steps[0].Waits) != 1 || d.Steps[0].Waits[0].For != "/dev/sdb" ||
			d.Steps[0].Waits[0].End == 0 {
			t.Errorf("waits: %+v", d.Steps[0].Waits)
		}
	})
}

func TestStoppingTheAgentIsNoWarning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, path := newEngine(t)
		ctx, cancel := context.WithCancel(t.Context())
		v, wait, err := e.Run(ctx, []Step{{Name: "a", Run: pause(0)},
			{Name: "time", Background: true, Deadline: time.Hour, Run: pause(time.Minute)}})
		if err != nil || v.State != status.Ready {
			t.Fatalf("got %+v, %v; want ready", v, err)
		}
		synctest.Wait()
		cancel()
		wait()
		if err := e.Status.Flush(); err != nil {
			t.Error(err)
		}
		if d, _ := status.Read(path); d.State != status.Ready || d.Steps[1].Outcome != status.Canceled {
			t.Errorf("after the stop: %s, step %s; want ready and canceled", d.State, d.Steps[1].Outcome)
		}
	})
}

// A stop in the middle of a boot leaves the verdict as it was, and announces none: neither of the step that was stopped
// nor of one that takes long to obey.
func TestStoppingTheAgentIsNotAVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, path := newEngine(t)
		e.Failing = func(v Verdict) { t.Errorf("announced: %s", v.Line()) }
		const earlier = "network: of the last try"
		if err := e.Status.Update(func(d *status.Document) { d.Verdict = earlier }); err != nil {
			t.Fatal(err)
		}
		cause := errors.New("the agent stops")
		ctx, cancel := context.WithCancelCause(t.Context())
		slow := func(context.Context, *Span) error {
			time.Sleep(time.Minute)
			return errors.New("stopped late")
		}
		time.AfterFunc(time.Second, func() { cancel(cause) })
		v, wait, err := e.Run(ctx, []Step{
			{Name: "settings", Run: pause(0)},
			{Name: "network", Always: true, Needs: []string{"settings"}, Deadline: time.Hour, Run: pause(time.Hour)},
			{Name: "time", Optional: true, Deadline: time.Hour, Run: pause(time.Hour)},
			{Name: "disk", Deadline: 10 * time.Second, AnnounceAfter: 20 * time.Second, Run: slow},
			{Name: "bus", Needs: []string{"network"}, Run: pause(0)},
		})
		wait()
		if err != nil || !errors.Is(v.Cause, cause) || v.State != status.Starting {
			t.Errorf("the verdict is %+v, %v; want none but the cause of the stop", v, err)
		}
		if err := e.Status.Flush(); err != nil {
			t.Error(err)
		}
		d, err := status.Read(path)
		if err != nil || d.State != status.Starting || d.Verdict != earlier || len(d.Warnings) > 0 {
			t.Errorf("the status is %s, verdict %q, warnings %q, %v; want starting, with the earlier verdict",
				d.State, d.Verdict, d.Warnings, err)
		}
		for _, s := range d.Steps[1:] {
			if s.Outcome != status.Canceled {
				t.Errorf("step %s is %s, want canceled", s.Name, s.Outcome)
			}
		}
	})
}

func TestWrongTablesAreRefused(t *testing.T) {
	e, _ := newEngine(t)
	for name, steps := range map[string][]Step{
		"unknown need": {{Name: "a", Needs: []string{"b"}, Run: pause(0)}},
		"circle":       {{Name: "a", Needs: []string{"a"}, Run: pause(0)}},
		"twice":        {{Name: "a", Run: pause(0)}, {Name: "a", Run: pause(0)}},
		"no function":  {{Name: "a"}},
	} {
		if _, _, err := e.Run(t.Context(), steps); !errors.Is(err, errTable) {
			t.Errorf("%s: got %v, want ErrTable", name, err)
		}
	}
}

// A try that follows a failed one keeps its verdict until it has ended, and says which one it is.
func TestARetriedBootKeepsItsVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := newEngine(t)
		fails := errors.New("no disk")
		table := []Step{{Name: "disk", Run: func(context.Context, *Span) error {
			d := e.Status.Snapshot()
			if d.State != status.Starting || d.NextTry != nil ||
				(d.Try == 2) != (d.Verdict == "disk: no disk: correct the cause, then run 'agent retry'") {
				t.Errorf("while try %d runs: %s, verdict %q, next try at %v", d.Try, d.State, d.Verdict, d.NextTry)
			}
			return fails
		}}}
		run := func() {
			t.Helper()
			_, wait, err := e.Run(t.Context(), table)
			if err != nil {
				t.Fatal(err)
			}
			wait()
		}
		run()
		next := time.Now().Add(15 * time.Second)
		e.AnnounceNextTry(next)
		if d := e.Status.Snapshot(); d.State != status.Failed || d.Try != 1 || d.NextTry == nil || !d.NextTry.Equal(next) {
			t.Errorf("between two tries: %s, try %d, next at %v", d.State, d.Try, d.NextTry)
		}
		fails = nil
		run()
		if d := e.Status.Snapshot(); d.State != status.Ready || d.Try != 2 || d.Verdict != "" {
			t.Errorf("healed: %s, try %d, verdict %q", d.State, d.Try, d.Verdict)
		}
	})
}

// Alternating reasons to wait are logged once each, and the status stays small.
func TestWaitingDoesNotFloodTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := newEngine(t)
		var log strings.Builder
		e.Log.Logger.SetOutput(&log)
		_, wait, err := e.Run(t.Context(), []Step{{Name: "settings", Run: func(_ context.Context, s *Span) error {
			for n := range 600 {
				s.Waiting("settings: HTTP: 404")
				s.Waiting("settings: HTTP")
				if n == 300 {
					for i := range 100 { // each is another one
						s.Waiting("settings: port " + strconv.Itoa(i))
					}
				}
				time.Sleep(time.Second)
			}
			return nil
		}}})
		if err != nil {
			t.Fatal(err)
		}
		wait()
		if n := strings.Count(log.String(), "msg=waiting"); n < 3 || n > 2+freeWaits {
			t.Errorf("%d lines in ten minutes:\n%s", n, log.String())
		}
		if n := len(e.Status.Snapshot().Steps[0].Waits); n != maxWaits {
			t.Errorf("%d waits are kept, want %d", n, maxWaits)
		}
	})
}

// advised is an error with advice of its own.
type advised struct{ error }

func (advised) Advice() string  { return "remove the lock" }
func (a advised) Unwrap() error { return a.error }

// TestAdvice: an error's own advice comes first, then what a refusal by the kernel means, then the step's.
func TestAdvice(t *testing.T) {
	const readKernelLog = "look for errors of the disk in the kernel log ('journalctl -k'); repair or replace it, and reboot"
	for _, c := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("mount: %w", advised{unix.EPERM}), "remove the lock"},
		{fmt.Errorf("mount: %w", unix.EPERM), "if this is a container, run it privileged"},
		{fmt.Errorf("mkdir: %w", unix.ENOSPC), "make room on its file system"},
		{fmt.Errorf("mkdir: %w", unix.EROFS), readKernelLog},
		{fmt.Errorf("sync: %w", unix.EIO), readKernelLog},
		{fmt.Errorf("mount: %w", unix.ENOENT), "attach the disk"},
	} {
		if got := adviceFor(c.err, "attach the disk"); got != c.want {
			t.Errorf("%v: got %q, want %q", c.err, got, c.want)
		}
	}
}

// TestAdviceIsOnRecord: the doctor tells it of a step that waits, and of one that failed.
func TestAdviceIsOnRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := newEngine(t)
		row := func(n int) status.Step { return e.Status.Snapshot().Steps[n] }
		_, _, err := e.Run(t.Context(), []Step{
			{Name: "good", Advice: "nothing", Run: func(context.Context, *Span) error { return nil }},
			{Name: "disk", Needs: []string{"good"}, Advice: "attach it", Run: func(_ context.Context, s *Span) error {
				s.Waiting("a disk")
				if got := row(1); got.Advice != "attach it" || row(0).Advice != "" {
					t.Errorf("while it waits: %+v", got)
				}
				return advised{errors.New("locked")}
			}}})
		if got := row(1); err != nil || got.Advice != "remove the lock" {
			t.Errorf("after it failed: %+v, %v", got, err)
		}
	})
}
