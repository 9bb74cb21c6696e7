package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/internal/secret"
	"cambium/internal/status"
	"cambium/settings"
)

// fakeTransport is a transport that becomes reachable when the test says so.
type fakeTransport struct {
	FixedBus
	events BusEvents
	fail   chan error

	mu        sync.Mutex
	running   bool
	up        bool
	published []string
}

func (f *fakeTransport) Run(ctx context.Context) error {
	f.set(func() { f.running = true })
	defer f.set(func() { f.running = false })
	select {
	case err := <-f.fail:
		return err
	case <-ctx.Done():
		return nil
	}
}

func (f *fakeTransport) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fakeTransport) connect() {
	f.set(func() { f.up = true })
	f.events.Connected("h:4222")
	synctest.Wait()
}

func (f *fakeTransport) lose(why string, refused bool) {
	f.set(func() { f.up = false })
	f.events.Failed("h:4222", errors.New(why), refused)
	synctest.Wait()
}

func (f *fakeTransport) Connected() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.up
}

func (f *fakeTransport) Publish(_ context.Context, target, topic string, payload any) error {
	f.set(func() { f.published = append(f.published, fmt.Sprintf("%s %s %+v", target, topic, payload)) })
	return nil
}

func (f *fakeTransport) sent() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.published
}

// clientUnderTest is a running BusClient whose transports are fakes; made are those it has made.
type clientUnderTest struct {
	*BusClient
	made   []*fakeTransport
	status *status.Recorder
	ended  chan error
}

func newClientUnderTest(t *testing.T, ctx context.Context) *clientUnderTest {
	t.Helper()
	rec, err := status.Open(filepath.Join(t.TempDir(), "status.json"), "v")
	if err != nil {
		t.Fatal(err)
	}
	logger := logrus.New()
	logger.SetOutput(io.Discard)
	c := &clientUnderTest{status: rec, ended: make(chan error, 1)}
	c.BusClient = NewBusClient(BusOptions{Status: rec, Log: logrus.NewEntry(logger),
		Transports: map[string]TransportKind{
			"nats": {Reachable: status.BusConnected, New: func(_ settings.Effective, events BusEvents) (Transport, error) {
				f := &fakeTransport{events: events, fail: make(chan error, 1)}
				c.made = append(c.made, f)
				return f, nil
			}},
			"https": {Reachable: status.BusListening,
				New: func(settings.Effective, BusEvents) (Transport, error) { return nil, errors.New("no certificate") }},
		}})
	go func() { c.ended <- c.Run(ctx) }()
	t.Cleanup(func() {
		if err := rec.Flush(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func named(url string) (e settings.Effective) {
	if url != "" {
		e.Bus.URLs = []secret.URL{secret.NewURL(url)}
	}
	return e
}

func TestBusClientStartsOneBus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		c := newClientUnderTest(t, ctx)
		for url, want := range map[string]string{"": errNoBus.Error(), "nats://%zz": "is not valid",
			"amqp://u:hunter2@h": "want scheme nats or https", "https://h:1": "no certificate"} {
			if err := c.Start(ctx, named(url)); err == nil || !strings.Contains(err.Error(), want) ||
				strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%q: got %v, want %q in it", url, err, want)
			}
		}
		if err := c.Publish(ctx, "hm", "heartbeat", nil); !errors.Is(err, errNoBus) {
			t.Errorf("publishing without a bus: %v, want %v", err, errNoBus)
		}
		if _, err := c.Rotate(ctx, settings.Bus{}); !errors.Is(err, errNoBus) {
			t.Errorf("rotating without a bus: %v, want %v", err, errNoBus)
		}
		for range 2 { // a second try to boot finds the bus of the first
			if err := c.Start(ctx, named("nats://u:hunter2@h:4222")); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if len(c.made) != 1 || !c.made[0].running {
			t.Fatalf("%d transports, want one that runs", len(c.made))
		}
		if got := c.status.Snapshot().Bus; got.State != status.BusConnecting || got.Server != "h:4222" || c.Connected() {
			t.Errorf("status %s, connected %v before the connection", got, c.Connected())
		}
		c.made[0].connect()
		if got := c.status.Snapshot().Bus; got.State != status.BusConnected || !c.Connected() {
			t.Errorf("status %s, connected %v after the connection", got, c.Connected())
		}
		if err := c.Publish(ctx, "hm", "heartbeat", 1); err != nil || len(c.made[0].sent()) != 1 {
			t.Errorf("published %q, %v", c.made[0].sent(), err)
		}
		cancel()
		if err := <-c.ended; err != nil || c.made[0].running {
			t.Errorf("got %v, transport runs: %v; want the end of both", err, c.made[0].running)
		}
	})
}

// The status follows each try, and the agent is degraded when the bus has been away for too long.
func TestBusClientKeepsAccountOfTheBus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		c := newClientUnderTest(t, ctx)
		defer func() { cancel(); <-c.ended }()
		if err := c.status.Update(func(d *status.Document) { d.State = status.Ready }); err != nil {
			t.Fatal(err)
		}
		changes := 0
		c.options.Changed = func() { changes++ }
		if err := c.Start(ctx, named("nats://u:hunter2@h:4222")); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		bus := c.made[0]
		lose := func(why string, refused bool) func() { return func() { bus.lose(why, refused) } }
		const denied = "Authorization Violation"
		for n, step := range []struct {
			do     func()
			after  time.Duration
			state  status.BusState
			tries  int
			reason string
			agent  status.State
		}{
			{func() {}, 0, status.BusConnecting, 0, "", status.Ready},
			{lose("dial: refused", false), 20 * time.Second, status.BusConnecting, 1, "dial: refused", status.Ready},
			{lose(denied, true), 39 * time.Second, status.BusRefused, 2, denied, status.Ready},
			{func() {}, time.Second, status.BusRefused, 2, denied, status.Degraded}, // a minute in all
			{lose("dial: a\nb", false), time.Second, status.BusConnecting, 3, "dial: a; b", status.Degraded},
			{bus.connect, time.Hour, status.BusConnected, 0, "", status.Ready},
			{lose("EOF", false), 29 * time.Second, status.BusLost, 0, "EOF", status.Ready},
			{lose("dial: refused", false), 999 * time.Millisecond, status.BusLost, 1, "dial: refused", status.Ready},
			{func() {}, time.Millisecond, status.BusLost, 1, "dial: refused", status.Degraded}, // 30 seconds in all
			{lose("bad certificate", true), time.Second, status.BusRefused, 2, "bad certificate", status.Degraded},
			{bus.connect, 0, status.BusConnected, 0, "", status.Ready},
			{lose("EOF", false), 20 * time.Second, status.BusLost, 0, "EOF", status.Ready},
			{bus.connect, 20 * time.Second, status.BusConnected, 0, "", status.Ready}, // the earlier loss does not count
		} {
			step.do()
			time.Sleep(step.after)
			synctest.Wait()
			d := c.status.Snapshot()
			if d.Bus.State != step.state || d.Bus.Tries != step.tries || d.Bus.Reason != step.reason || d.State != step.agent ||
				d.Bus.Since.Before(begin.Add(-time.Second)) {
				t.Errorf("step %d: agent %s, bus %s; want %s, %s with %d tries because of %q", n, d.State, d.Bus, step.agent,
					step.state, step.tries, step.reason)
			}
		}
		if changes != 12 { // seven failures, three connections, and twice overdue
			t.Errorf("%d changes were announced", changes)
		}
	})
}

func TestBusClientTellsThatItsBusEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClientUnderTest(t, t.Context())
		if err := c.Start(t.Context(), named("nats://h:4222")); err != nil {
			t.Fatal(err)
		}
		broken := errors.New("cannot listen")
		c.made[0].fail <- broken
		if err := <-c.ended; !errors.Is(err, broken) {
			t.Errorf("got %v, want %v", err, broken)
		}
	})
}

// A listener learns of each connection, also if it registers after it.
func TestBusClientTellsOfConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		c := newClientUnderTest(t, ctx)
		defer func() { cancel(); <-c.ended }()
		early := c.Connections()
		if err := c.Start(ctx, named("nats://h:4222")); err != nil {
			t.Fatal(err)
		}
		c.made[0].connect()
		c.made[0].connect() // without a read in between
		late := c.Connections()
		for name, tokens := range map[string]<-chan struct{}{"early": early, "late": late} {
			if len(tokens) != 1 {
				t.Errorf("%s: %d tokens, want one", name, len(tokens))
			}
		}
	})
}
