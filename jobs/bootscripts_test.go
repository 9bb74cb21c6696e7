package jobs

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cambium/jobs/monit"
)

// booted is a machine with the job a, which the Director has started, after a boot that holds it back.
type booted struct {
	*machine
	fail  map[string]int // number of times that a script of that name still fails
	hang  func(ctx context.Context)
	mu    sync.Mutex // guards shown
	shown []string
	done  chan struct{} // closed when Run has returned
}

func boot(t *testing.T) *booted {
	t.Helper()
	b := &booted{machine: newMachine(t), fail: map[string]int{}, done: make(chan struct{})}
	spec := b.spec(t, map[string]string{"a": "1"}, map[string]string{"a/": "", "a/monit": "check"}, nil)
	if err := errors.Join(b.Apply(t.Context(), spec), b.Start(t.Context())); err != nil {
		t.Fatal(err)
	}
	if removed, err := HoldBack(b.Dirs, true); err != nil || len(removed) != 1 {
		t.Fatalf("held back %q, %v, want one file", removed, err)
	}
	b.sup.calls = nil
	b.Boot = &BootScripts{Instance: b.Instance,
		Alone: func(ctx context.Context, f func(context.Context)) { f(ctx) },
		Show: func(why error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			if why != nil {
				b.shown = append(b.shown, why.Error())
			} else {
				b.shown = append(b.shown, "")
			}
		},
		RunAll: func(ctx context.Context, jobs []string, name string, _ map[string]string) error {
			b.sup.calls = append(b.sup.calls, name+" "+strings.Join(jobs, ","))
			if b.hang != nil {
				b.hang(ctx)
			}
			if b.fail[name]--; b.fail[name] >= 0 {
				return errors.New("no peer")
			}
			return nil
		}}
	return b
}

func (b *booted) run(ctx context.Context) {
	go func() {
		defer close(b.done)
		b.Boot.Run(ctx)
	}()
}

func (b *booted) calls() string { return strings.Join(b.sup.calls, " ") }

func TestBootScripts(t *testing.T) {
	for _, c := range []struct {
		name string
		fail map[string]int
		want string
	}{
		{"a good start", nil, "pre-start a reload start post-start a"},
		{"pre-start fails twice", map[string]int{preStart: 2}, "pre-start a pre-start a pre-start a reload start post-start a"},
		{"post-start fails", map[string]int{postStart: 1}, "pre-start a reload start post-start a post-start a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := boot(t)
				maps.Copy(b.fail, c.fail)
				if got := b.JobState(t.Context()); got != monit.StateStarting {
					t.Errorf("before: got %s", got)
				}
				b.run(t.Context())
				synctest.Wait()
				if got := b.JobState(t.Context()); c.fail[preStart] > 0 && got != monit.StateFailing {
					t.Errorf("after a failure of pre-start: got %s", got)
				}
				<-b.done
				if got := b.calls(); got != c.want {
					t.Errorf("got %q, want %q", got, c.want)
				}
				if got := b.JobState(t.Context()); got != monit.StateRunning || b.shown[len(b.shown)-1] != "" {
					t.Errorf("in the end: got %s, shown %q", got, b.shown)
				}
				if files, _ := filepath.Glob(b.Dirs.MonitFiles()); len(files) != 1 {
					t.Errorf("got monit files %q", files)
				}
				// Another process of the same boot has nothing to do.
				if b.Boot.settled.Store(false); b.Boot.stage() != "" {
					t.Error("a stage is left")
				}
			})
		})
	}
}

// What the Director does ends the start of the boot, and its next process does not take it up again.
func TestDirectorTakesOver(t *testing.T) {
	for name, act := range map[string]func(context.Context, *booted) error{
		"start":     func(ctx context.Context, b *booted) error { return b.Start(ctx) },
		"stop":      func(ctx context.Context, b *booted) error { return b.Stop(ctx, true) },
		"drain":     func(ctx context.Context, b *booted) error { return b.Unmonitor(ctx) },
		"pre-start": func(_ context.Context, b *booted) error { return b.TakeOver() },
		"apply": func(ctx context.Context, b *booted) error {
			return b.Apply(ctx, b.spec(t, map[string]string{"a": "1"}, map[string]string{"a/": "", "a/monit": "check"}, nil))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := boot(t)
				b.fail[preStart] = 1
				b.run(t.Context())
				synctest.Wait() // in the pause after a failure
				if err := act(t.Context(), b); err != nil {
					t.Fatal(err)
				}
				<-b.done
				if got := b.calls(); strings.Count(got, preStart) != 1 || strings.Contains(got, postStart) {
					t.Errorf("got %q", got)
				}
				b.Boot.settled.Store(false)
				if got := b.Boot.State(); got != "" {
					t.Errorf("the next process finds %s", got)
				}
				removed, err := HoldBack(b.Dirs, true)
				if err != nil || (len(removed) > 0) != (name == "start") || (b.Boot.stage() != "") != (name == "start") {
					t.Errorf("the next boot holds back %q, %v", removed, err)
				}
			})
		})
	}
}

// A request that does not decide about the jobs interrupts the scripts, which are run again afterwards.
func TestRequestInterruptsBootScripts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := boot(t)
		b.hang = func(ctx context.Context) { <-ctx.Done() }
		b.Boot.Alone = func(ctx context.Context, f func(context.Context)) {
			ctx, interrupt := context.WithCancelCause(ctx)
			defer interrupt(nil)
			time.AfterFunc(time.Second, func() { interrupt(ErrRequest) })
			f(ctx)
			b.hang = nil
		}
		b.fail[preStart] = 1
		b.run(t.Context())
		<-b.done
		if got := b.calls(); got != "pre-start a pre-start a reload start post-start a" || len(b.shown) == 0 ||
			b.shown[0] != "" {
			t.Errorf("got %q, shown %q", got, b.shown)
		}
	})
}

func TestBootScriptsEndWithTheAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := boot(t)
		ctx, cancel := context.WithCancel(t.Context())
		b.hang = func(ctx context.Context) { <-ctx.Done() }
		b.fail[preStart] = 1
		b.run(ctx)
		synctest.Wait()
		cancel()
		<-b.done
		if len(b.shown) != 0 || b.Boot.State() != monit.StateStarting {
			t.Errorf("shown %q, state %q; want a start that the next process goes on with", b.shown, b.Boot.State())
		}
	})
}

// Without a store nothing runs, and the state is that of a machine whose jobs are withheld.
func TestBootScriptsAreWithheld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := boot(t)
		var mounted atomic.Bool
		b.Withheld = func() string {
			if mounted.Load() {
				return ""
			}
			return "the store is not mounted"
		}
		b.run(t.Context())
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := b.calls(); got != "" {
			t.Errorf("got %q", got)
		}
		mounted.Store(true)
		<-b.done
		if got := b.calls(); !strings.HasPrefix(got, "pre-start a reload start") {
			t.Errorf("got %q", got)
		}
	})
}

func TestHoldBack(t *testing.T) {
	m := newMachine(t)
	held := func(what string, want bool) {
		t.Helper()
		files, err := HeldBack(m.Dirs, true)
		removed, errHold := HoldBack(m.Dirs, true)
		if errors.Join(err, errHold) != nil || len(files) != len(removed) {
			t.Errorf("%s: planned %q, %v; removed %q, %v", what, files, err, removed, errHold)
		}
		if record, err := m.startRequest().read(); err != nil || (record.Pending == preStart) != want {
			t.Errorf("%s: got %+v, %v", what, record, err)
		}
	}
	held("a new machine", false)
	if err := os.MkdirAll(m.Dirs.MonitJobs(), 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(m.Dirs.MonitJobs(), "0000_a.monitrc")
	write := func(path string) {
		t.Helper()
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(file)
	held("jobs that another agent has started", true)
	held("jobs that a boot before has held back", true)
	write(file)
	write(m.Dirs.MonitStopped())
	if err := m.startRequest().forget(); err != nil {
		t.Fatal(err)
	}
	held("stopped jobs", false)
}
