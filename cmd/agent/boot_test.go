package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/agent"
	"cambium/bootstrap"
	"cambium/bootstrap/engine"
	"cambium/cmd/agent/cli"
	"cambium/internal/secret"
	"cambium/internal/status"
	"cambium/internal/vcap"
	"cambium/jobs/monit"
	"cambium/mbus"
	"cambium/platform/device"
	"cambium/platform/resolver"
	"cambium/platform/unit"
	"cambium/settings"
	"cambium/settings/store"
)

// given are settings that came without asking.
type given struct{}

func (given) Load(context.Context) (store.Loaded, error) { return store.Loaded{}, nil }
func (given) Effective() settings.Effective {
	return settings.Effective{Settings: settings.Settings{AgentID: "a-1"},
		Bus: settings.Bus{URLs: []secret.URL{secret.NewURL("nats://director:4222")}}}
}
func (given) HostsConfigured() bool     { return true }
func (given) SetHostsConfigured() error { return nil }

// wire is a bus that can be switched on, and what was published over it.
type wire struct {
	agent.FixedBus
	mu        sync.Mutex
	onConnect func(string)
	up        bool
	published []string
}

func (w *wire) Connected() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.up
}

func (w *wire) Publish(_ context.Context, target, topic string, payload any) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.published = append(w.published, fmt.Sprintf("%s %s %+v", target, topic, payload))
	return nil
}

func (w *wire) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func (w *wire) connect() {
	w.mu.Lock()
	w.up = true
	onConnect := w.onConnect
	w.mu.Unlock()
	onConnect("director:4222")
	synctest.Wait()
}

func (w *wire) alerts() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.published)
}

// starter is a supervisor with a preset result of Start.
type starter func(context.Context) error

func (s starter) Plan(context.Context) ([]monit.Change, error)      { return nil, nil }
func (s starter) Start(ctx context.Context) ([]monit.Change, error) { return nil, s(ctx) }

// nameServers is a resolver with a preset result of Observe.
type nameServers func(context.Context) error

func (n nameServers) Observe(ctx context.Context, _ resolver.Desired) (resolver.State, error) {
	return resolver.State{}, n(ctx)
}

func (n nameServers) Apply(context.Context, []resolver.Change) ([]resolver.Change, error) {
	return nil, nil
}

// agentWithStep returns an agent whose only fatal step is run.
func agentWithStep(t *testing.T, ctx context.Context, first bool, run func(context.Context) error) (*booting, *wire) {
	t.Helper()
	logger := logrus.New()
	logger.SetOutput(io.Discard)
	log := logrus.NewEntry(logger)
	dirs := vcap.New(t.TempDir())
	rec, err := status.Open(filepath.Join(t.TempDir(), "status.json"), "v")
	if err != nil {
		t.Fatal(err)
	}
	a := &booting{log: log, dirs: dirs, background: &sync.WaitGroup{},
		display: newDisplay(runOptions{platform: "dummy"}, "", rec, unit.Notifier{}, log)}
	a.display.announcer.Root = t.TempDir()
	t.Cleanup(func() { // before the directories go
		a.background.Wait()
		if err := rec.Flush(); err != nil {
			t.Error(err)
		}
	})
	marker := bootstrap.ReadyMarker{Dirs: dirs}
	if !first {
		if err := marker.Set("a-1"); err != nil {
			t.Fatal(err)
		}
	}
	a.dispatcher = agent.NewDispatcher(ctx, log)
	w := &wire{}
	a.bus = agent.NewBusClient(agent.BusOptions{Status: rec, Log: log, Transports: map[string]agent.TransportKind{
		"nats": {Reachable: status.BusConnected,
			New: func(_ settings.Effective, events agent.BusEvents) (agent.Transport, error) {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.onConnect = events.Connected
				return w, nil
			}}}})
	a.spawn(func() { _ = a.bus.Run(ctx) })
	a.alerts = agent.NewAlerts(log)
	a.bus.OnConnect(a.alerts.Wake)
	a.spawn(func() { a.alerts.Run(ctx, a.bus) })
	a.machine = &machine{runBackground: func(context.Context) {}, goingDown: func(context.Context) string { return "" },
		Machine: &bootstrap.Machine{Dirs: dirs, Log: log, Status: rec, Settings: given{}, Supervisor: starter(run),
			Deferred: &bootstrap.Deferred{},
			StartBus: a.bus.Start, First: func() bool { return marker.First("a-1") }}}
	return a, w
}

// ping returns what a Director hears within its second.
func ping(a *booting) string {
	answer := make(chan string, 1)
	a.dispatcher.Handle(context.Background(), mbus.Request{Method: "ping"}, func(r mbus.Reply) {
		if r.Silent() {
			answer <- "silence"
			return
		}
		answer <- string(r.Encode(0))
	})
	return <-answer
}

// The Director deletes a new VM after a verdict, and of an old one it takes every answer for a sign of life.
func TestWhatADirectorHearsOfAFailedBoot(t *testing.T) {
	const restarting, verdict, silence = `{"exception":{"message":"restarting agent: `,
		`{"exception":{"message":"supervisor: `, "silence"
	late := fmt.Errorf("find disk: %w", device.ErrTimedOut)
	for _, c := range []struct {
		name    string
		first   bool
		cause   error
		at      map[time.Duration]string
		alertAt time.Duration // when the alert is sent
	}{
		{
			name: "refused at the first boot", first: true, cause: errors.New("refused"), alertAt: 40 * time.Second,
			at: map[time.Duration]string{40 * time.Second: verdict, time.Minute: verdict, 2 * time.Minute: verdict},
		},
		{
			name: "late at the first boot", first: true, cause: late, alertAt: 3 * time.Minute,
			at: map[time.Duration]string{
				time.Second: restarting, 40 * time.Second: restarting, 80 * time.Second: restarting,
				3 * time.Minute: verdict, 4 * time.Minute: verdict,
			},
		},
		{
			name: "refused later", first: false, cause: errors.New("refused"), alertAt: 40 * time.Second,
			at: map[time.Duration]string{
				40 * time.Second: silence, time.Minute: silence, 2 * time.Minute: silence, 5 * time.Minute: silence,
			},
		},
		{
			name: "late later", first: false, cause: late, alertAt: 40 * time.Second,
			at: map[time.Duration]string{40 * time.Second: silence, time.Minute: silence, 5 * time.Minute: silence},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				begin := time.Now()
				a, w := agentWithStep(t, ctx, c.first, func(ctx context.Context) error {
					select {
					case <-time.After(30 * time.Second): // as long as a disk is waited for
						return c.cause
					case <-ctx.Done():
						return context.Cause(ctx)
					}
				})
				a.spawn(func() { _ = a.boot(ctx) })
				time.Sleep(time.Millisecond)
				w.connect()
				for second := range 300 {
					at := time.Duration(second+1) * time.Second
					time.Sleep(time.Until(begin.Add(at)))
					if want, asked := c.at[at]; asked {
						if got := ping(a); !strings.HasPrefix(got, want) {
							t.Errorf("after %v: got %s, want %s", at, got, want)
						}
					}
					if at == 31*time.Second {
						// An operator at the console sees the verdict at once.
						d := a.display.rec.Snapshot()
						if d.State != status.Failed || !strings.Contains(d.Verdict, c.cause.Error()) {
							t.Errorf("status %s %q, want the verdict", d.State, d.Verdict)
						}
					}
					if sent := w.alerts(); at < 30*time.Second && sent != 0 || at >= c.alertAt && sent != 1 {
						t.Fatalf("after %v: %d alerts", at, sent)
					}
				}
				cancel()
				a.background.Wait()
			})
		})
	}
}

// The only alert is not sent to a bus that is down.
func TestTheAlertWaitsForTheBus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		a, w := agentWithStep(t, ctx, true, func(context.Context) error { return errors.New("refused") })
		a.spawn(func() { _ = a.boot(ctx) })
		time.Sleep(10 * time.Minute)
		if w.alerts() != 0 {
			t.Fatalf("published %q while the bus was down", w.published)
		}
		w.connect()
		if w.alerts() != 1 || !strings.Contains(w.published[0], "hm alert") || !strings.Contains(w.published[0], "refused") {
			t.Errorf("published %q, want the alert", w.published)
		}
		time.Sleep(10 * time.Minute)
		w.connect()
		if w.alerts() != 1 {
			t.Errorf("published %q, want one alert", w.published)
		}
		cancel()
		a.background.Wait()
	})
	synctest.Test(t, func(t *testing.T) {
		a, w := agentWithStep(t, t.Context(), true, nil)
		if err := a.bus.Start(t.Context(), given{}.Effective()); err != nil {
			t.Fatal(err)
		}
		a.failing(t.Context(), engine.Verdict{Step: "settings", Cause: errors.New("still waiting after 20s")})
		a.failing(t.Context(), engine.Verdict{}) // they have come
		w.connect()
		if w.alerts() != 0 {
			t.Errorf("a machine whose settings have come alerts: %q", w.published)
		}
	})
}

// What a try to boot has left running ends before the next, or is not begun again.
func TestTriesDoNotOverlap(t *testing.T) {
	for _, c := range []struct {
		name  string
		heeds bool
	}{{"heeds", true}, {"hangs", false}} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				var tries, begun, running, most atomic.Int32
				a, _ := agentWithStep(t, ctx, true, func(context.Context) error { tries.Add(1); return errors.New("refused") })
				a.machine.Resolver = nameServers(func(within context.Context) error {
					begun.Add(1)
					most.Store(max(most.Load(), running.Add(1)))
					defer running.Add(-1)
					if c.heeds {
						<-within.Done()
						time.Sleep(time.Second) // it takes a moment
					} else {
						<-ctx.Done()
					}
					return errors.New("ended")
				})
				a.spawn(func() { _ = a.boot(ctx) })
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				want := int32(1)
				if c.heeds {
					want = tries.Load() // each anew
				}
				if begun.Load() != want || most.Load() != 1 || tries.Load() < 5 {
					t.Errorf("%d tries, background step begun %d times, %d at once; want at least 5 tries, %d times, one at once",
						tries.Load(), begun.Load(), most.Load(), want)
				}
				cancel()
				a.background.Wait()
			})
		})
	}
}

// hangsAfter answers so many requests.
type hangsAfter struct {
	answers int
	blocks  bool // in Handle itself
}

func (h *hangsAfter) Handle(ctx context.Context, _ mbus.Request, reply func(mbus.Reply)) {
	if h.answers--; h.answers >= 0 {
		reply(mbus.Value("pong"))
		return
	}
	if h.blocks {
		<-ctx.Done()
	}
}

// The watchdog is fed only while the agent serves requests.
func TestTheWatchdogStarvesWhenTheAgentHangs(t *testing.T) {
	const period = 20 * time.Second
	for _, blocks := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			logger := logrus.New()
			logger.SetOutput(io.Discard)
			begin := time.Now()
			var fed []time.Duration
			feedWatchdog(ctx, period, &hangsAfter{answers: 4, blocks: blocks},
				func() error { fed = append(fed, time.Since(begin)); return nil }, logrus.NewEntry(logger))
			if len(fed) != 4 || fed[3] != 3*period {
				t.Errorf("blocks %v: fed after %v, want four times, every %v", blocks, fed, period)
			}
		})
	}
}

// An agent that is silent or not ready is alive all the same.
func TestTheWatchdogIsFedThroughTheDispatcher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		a, _ := agentWithStep(t, ctx, true, nil)
		go func() {
			time.Sleep(30 * time.Minute)
			a.dispatcher.FailBoot("lost", false)
		}()
		fed := 0
		feedWatchdog(ctx, 20*time.Second, a.dispatcher, func() error { fed++; return nil }, a.log)
		if fed < 3*60-1 {
			t.Errorf("fed %d times in an hour, want every 20s", fed)
		}
	})
}

// An agent whose start configuration is broken does not end before there is a reason to try again.
func TestABrokenStartConfigurationIsWaitedFor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.json")
	put := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Error(err)
		}
	}
	put("{")
	begin := time.Now()
	untilChanged(t.Context(), path, 100*time.Millisecond)
	if took := time.Since(begin); took < 100*time.Millisecond {
		t.Errorf("ended after %v, want the whole time", took)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		untilChanged(t.Context(), path, time.Hour)
	}()
	for i := 0; ; i++ {
		select {
		case <-ended:
			return
		case <-time.After(20 * time.Millisecond): // it may have looked before or after this change
			put(strings.Repeat("{", i%7))
		case <-t.Context().Done():
			return
		}
	}
}

// A stop is not a failure, whatever the agent was doing.
func TestASignalEndsTheAgentCleanly(t *testing.T) {
	for name, cause := range map[string]error{"booting": context.Canceled, "serving": nil} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				a, _ := agentWithStep(t, ctx, true, nil)
				if code := a.run(ctx, cancel, func(context.Context) error { cancel(); return cause }); code != cli.ExitOK {
					t.Errorf("exit code %d, want %d", code, cli.ExitOK)
				}
			})
		})
	}
}

// A boot that cannot be begun ends the agent, with everything that was begun beside it.
func TestAnAgentThatCannotBootEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		a, _ := agentWithStep(t, ctx, true, nil)
		a.spawn(func() { <-ctx.Done() }) // such as the bus
		if code := a.run(ctx, cancel, func(context.Context) error { return errors.New("no table") }); code != cli.ExitFailed {
			t.Errorf("exit code %d, want %d", code, cli.ExitFailed)
		}
	})
}
