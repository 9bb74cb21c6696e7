package natsbus

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"

	"cambium/internal/eventually"
	"cambium/internal/retry"
	"cambium/internal/secret"
	"cambium/internal/testca"
	"cambium/internal/testnats"
	"cambium/mbus"
)

// quick has short pauses, so that outages in tests are short.
func quick() *pace {
	p := usual
	p.ping = 200 * time.Millisecond
	for _, b := range []*retry.Backoff{&p.afterLoss, &p.atFirst, &p.afterAuth, &p.afterSlow} {
		b.Min, b.Max = 50*time.Millisecond, 50*time.Millisecond
	}
	return &p
}

// slowCallers gives callers more time to come back to the server: the test is the caller, and may be slow.
func slowCallers() *pace {
	p := quick()
	p.callersReturn = 5 * time.Second
	return p
}

func TestServerKilledAndBack(t *testing.T) {
	d := testnats.Start(t, nil, agentID)
	hold := make(chan struct{})
	var early atomic.Int64
	b := start(t, d, Options{pace: quick(),
		Handler: handler(func(ctx context.Context, r mbus.Request, reply func(mbus.Reply)) {
			if r.Method != "slow" {
				pong(ctx, r, reply)
				return
			}
			early.Add(1)
			go func() {
				<-hold
				reply(mbus.Value("kept"))
			}()
		})})
	eventually.True(t, "connected", b.Connected)
	r := d.Director()
	_, slow := r.Send(agentID, "slow")
	eventually.True(t, "request", func() bool { return early.Load() == 1 })
	for range 3 {
		d.Down()
		eventually.True(t, "loss noticed", func() bool { return !b.Connected() })
		d.Up()
		eventually.True(t, "connected again", b.Connected)
		eventually.True(t, "director connected again", r.Conn.IsConnected)
		if err := r.Conn.Flush(); err != nil {
			t.Fatal(err)
		}
		if got := r.Call(agentID, "ping"); got != pongReply {
			t.Fatalf("got %s", got)
		}
	}
	// The reply to a request from before the outage is still delivered.
	close(hold)
	if got := testnats.Receive(t, slow); got != `{"value":"kept"}` {
		t.Errorf("got %s", got)
	}
}

// TestAReplyWaitsForItsCaller: the agent comes back to a restarted server before the Director does, and the server drops the
// reply. It is sent once more when the Director is back.
func TestAReplyWaitsForItsCaller(t *testing.T) {
	d := testnats.Start(t, nil, agentID)
	replies := make(chan func(mbus.Reply), 1)
	b := start(t, d, Options{pace: slowCallers(),
		Handler: handler(func(_ context.Context, _ mbus.Request, reply func(mbus.Reply)) { replies <- reply })})
	eventually.True(t, "connected", b.Connected)
	asking := d.Connect(testca.DirectorName)
	const inbox = "director.7c1e." + agentID + ".held"
	if err := errors.Join(asking.Publish("agent."+agentID, testnats.Envelope("get_task", inbox)),
		asking.Flush()); err != nil {
		t.Fatal(err)
	}
	reply := <-replies
	asking.Close()
	d.Down()
	eventually.True(t, "loss noticed", func() bool { return !b.Connected() })
	d.Up()
	eventually.True(t, "connected again", b.Connected)
	reply(mbus.Value("ended"))
	time.Sleep(100 * time.Millisecond) // in which the server drops it
	back := d.Connect(testca.DirectorName)
	answers, err := back.SubscribeSync(inbox)
	if err != nil {
		t.Fatal(err)
	}
	m, err := answers.NextMsg(30 * time.Second)
	if err != nil || string(m.Data) != `{"value":"ended"}` {
		t.Fatalf("got %v, %v; want the reply", m, err)
	}
}

// What was handed to a connection that died with it is sent again: no client asks for it a second
// time.
func TestReplyDuringAnOutageArrives(t *testing.T) {
	d := testnats.Start(t, nil, agentID)
	log, logged := test.NewNullLogger()
	b := start(t, d, Options{pace: slowCallers(), Log: logrus.NewEntry(log)})
	eventually.True(t, "connected", b.Connected)
	r := d.Director()
	subject, replies := r.Inbox(agentID)
	d.Down()
	// Perhaps the loss has not been noticed yet, perhaps it has; both must do.
	b.active().send(message{subject: subject, data: []byte(`{"value":1}`), reply: true})
	eventually.True(t, "loss noticed", func() bool { return !b.Connected() })
	other, more := r.Inbox(agentID)
	b.active().send(message{subject: other, data: []byte(`{"value":2}`), reply: true})
	b.active().send(message{subject: other, data: []byte(`{"value":"stale"}`), reply: true,
		at: time.Now().Add(-2 * outboxAge)})
	d.Up()
	got := map[string]bool{}
	for len(got) < 2 {
		select {
		case m := <-replies:
			got[string(m)] = true
		case m := <-more:
			got[string(m)] = true
		case <-time.After(30 * time.Second):
			t.Fatalf("got %v, want both", got)
		}
	}
	if got[`{"value":"stale"}`] {
		t.Error("a message was sent whose caller has given up")
	}
	if got := drops(logged); len(got) != 1 || !strings.HasPrefix(got[0], other+": it has waited") {
		t.Errorf("the log has %q dropped, want the stale one", got)
	}
}

// drops are the messages that were given up, according to the log, and why.
func drops(logged *test.Hook) (all []string) {
	for _, e := range logged.AllEntries() {
		if e.Message == "message dropped" {
			all = append(all, fmt.Sprintf("%s: %s", e.Data["subject"], e.Data["reason"]))
		}
	}
	return all
}

func TestUnconfirmedIsSentAgain(t *testing.T) {
	d := testnats.Start(t, nil, agentID)
	b := start(t, d, Options{pace: quick()})
	eventually.True(t, "connected", b.Connected)
	o := &b.active().outbox
	o.mu.Lock()
	o.confirming = true // none of its own may come in between
	o.mu.Unlock()
	b.active().send(message{subject: "director.7c1e." + agentID + ".x", data: []byte("1")})
	o.mu.Lock()
	waiting := len(o.unconfirmed)
	o.mu.Unlock()
	if waiting != 1 {
		t.Fatalf("%d unconfirmed messages, want 1", waiting)
	}
	o.detach()
	o.mu.Lock()
	waiting = len(o.waiting)
	o.mu.Unlock()
	if waiting != 1 {
		t.Errorf("%d messages wait for the next connection, want 1", waiting)
	}
}

func TestConfirmedIsForgotten(t *testing.T) {
	d := testnats.Start(t, nil, agentID)
	b := start(t, d, Options{})
	eventually.True(t, "connected", b.Connected)
	for range 100 {
		b.active().send(message{subject: "director.7c1e." + agentID + ".x", data: []byte("1")})
	}
	o := &b.active().outbox
	eventually.True(t, "confirmation", func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return len(o.unconfirmed) == 0 && o.bytes == 0 && !o.confirming
	})
}

func TestOutboxIsBounded(t *testing.T) {
	log, logged := test.NewNullLogger()
	o := outbox{log: logrus.NewEntry(log)}
	for i := range 100 {
		o.send(message{subject: fmt.Sprint(i), data: make([]byte, 1<<20), reply: true})
	}
	if o.bytes > outboxBytes || len(o.waiting) != outboxBytes>>20 {
		t.Errorf("%d messages of %d bytes wait", len(o.waiting), o.bytes)
	}
	got := drops(logged)
	if len(got) != 100-outboxBytes>>20 || got[0] != "0: too much waits for a connection" {
		t.Errorf("the log has %d messages dropped, want %d, the oldest first: %q", len(got), 100-outboxBytes>>20, got)
	}
}

// The server learns of a new agent only at its next synchronization; until then it refuses, for
// as long as it takes.
func TestAuthRefusedThenGranted(t *testing.T) {
	d := testnats.Start(t, nil)
	b := start(t, d, Options{pace: quick()})
	eventually.True(t, "a refusal", func() bool { return refused(b.LastError()) })
	refusedAgain := func() {
		t.Helper()
		seen, last := 0, error(nil)
		eventually.True(t, "five refusals", func() bool {
			if err := b.LastError(); err != last && err != nil {
				last, seen = err, seen+1
			}
			return seen >= 5
		})
	}
	refusedAgain()
	d.SetUsers(testnats.Agent(testca.AgentName(agentID), agentID))
	eventually.True(t, "connected", b.Connected)
	// Revoked and granted once more.
	d.SetUsers()
	eventually.True(t, "thrown out", func() bool { return !b.Connected() })
	refusedAgain()
	d.SetUsers(testnats.Agent(testca.AgentName(agentID), agentID))
	eventually.True(t, "connected again", b.Connected)
	if got := d.Director().Call(agentID, "ping"); got != pongReply {
		t.Errorf("got %s", got)
	}
}

// What one server of a cluster refuses, the others would refuse, too; a log-in is dear to a server with many users.
func TestARefusalEndsThePass(t *testing.T) {
	all := testnats.StartCluster(t, 3, nil)
	id := identity(all[0], testca.AgentName(agentID))
	id.URLs = nil
	for _, d := range all {
		id.URLs = append(id.URLs, d.URL())
	}
	never := *quick()
	never.afterAuth = retry.Backoff{Min: time.Hour}
	var failures atomic.Int64
	paused, log := make(chan struct{}, 1), quiet()
	log.Logger.AddHook(whenLogged(func(e *logrus.Entry) {
		if e.Message == "not connected to nats" {
			paused <- struct{}{}
		}
	}))
	start(t, all[0], Options{pace: &never, Identity: id, Log: log, OnFailure: func(Failure) { failures.Add(1) }})
	<-paused
	if n := failures.Load(); n != 1 {
		t.Errorf("the agent was refused %d times before it paused, want once", n)
	}
}

// whenLogged is called with each line.
type whenLogged func(*logrus.Entry)

func (whenLogged) Levels() []logrus.Level       { return logrus.AllLevels }
func (w whenLogged) Fire(e *logrus.Entry) error { w(e); return nil }

// A server that greets and then takes too long is slow, whatever the library says; one that rejects is not.
func TestSlowServers(t *testing.T) {
	overtaken := errors.New("nats: expected 'PONG', got 'PING'")
	for _, c := range []struct {
		greeted bool
		took    time.Duration
		err     error
		want    bool
	}{
		{true, connectTime, nats.ErrTimeout, true},
		{true, 2100 * time.Millisecond, overtaken, true},
		{true, time.Millisecond, overtaken, false},
		{true, connectTime, explain(nats.ErrAuthorization), false},
		{false, connectTime, io.EOF, false},
	} {
		if got := errors.As(late(c.greeted, c.took, c.err), new(*slow)); got != c.want {
			t.Errorf("%v after %v, greeted %v: slow %v, want %v", c.err, c.took, c.greeted, got, c.want)
		}
	}
}

// An agent that may log in but not subscribe does not count as connected.
func TestSubscriptionRefusedThenGranted(t *testing.T) {
	d := testnats.Start(t, nil)
	d.SetUsers(testnats.User(testca.AgentName(agentID), []string{"hm.>"}, []string{"nothing"}))
	b := start(t, d, Options{pace: quick()})
	eventually.True(t, "a refusal", func() bool { return refused(b.LastError()) })
	if b.Connected() {
		t.Error("the agent takes itself for connected")
	}
	d.SetUsers(testnats.Agent(testca.AgentName(agentID), agentID))
	eventually.True(t, "connected", b.Connected)
}

func TestServerCertificateSwapped(t *testing.T) {
	d := testnats.Start(t, nil, agentID)
	b := start(t, d, Options{pace: quick()})
	eventually.True(t, "connected", b.Connected)
	foreign, err := testca.New("foreign")
	if err != nil {
		t.Fatal(err)
	}
	bad, err := foreign.Server("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	good, err := d.CA.Server("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	d.Down()
	d.SetServerCertificate(bad)
	d.Up()
	eventually.True(t, "refusal of the foreign server", func() bool {
		return b.LastError() != nil && strings.Contains(b.LastError().Error(), "unknown authority")
	})
	d.Down()
	d.SetServerCertificate(good)
	d.Up()
	eventually.True(t, "connected again", b.Connected)
}

func TestRotation(t *testing.T) {
	d := testnats.Start(t, nil)
	bootstrap, permanent := testca.BootstrapName(agentID), testca.AgentName(agentID)
	d.SetUsers(testnats.Agent(bootstrap, agentID))
	var handled sync.Map
	var total atomic.Int64
	hold := make(chan struct{})
	b := start(t, d, Options{pace: quick(), Identity: identity(d, bootstrap),
		Handler: handler(func(ctx context.Context, r mbus.Request, reply func(mbus.Reply)) {
			total.Add(1)
			if _, twice := handled.LoadOrStore(r.ReplyTo, true); twice && r.Method != "repeated" {
				t.Errorf("%s was delivered twice", r.Method)
			}
			if r.Method == "slow" {
				go func() {
					<-hold
					reply(mbus.Value("slow"))
				}()
				return
			}
			pong(ctx, r, reply)
		})})
	eventually.True(t, "connected", b.Connected)
	r := d.Director()
	_, slow := r.Send(agentID, "slow")
	if got := r.Call(agentID, "ping"); got != pongReply {
		t.Fatalf("got %s", got)
	}

	// An identity that the server does not know leaves everything as it was.
	short, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := b.Rotate(short, identity(d, permanent))
		failed <- err
	}()
	eventually.True(t, "the refusal", func() bool {
		b.mu.Lock()
		next := b.next
		b.mu.Unlock()
		return next != nil && refused(next.lastError())
	})
	cancel()
	if err := <-failed; err == nil || !refused(errors.Unwrap(err)) {
		t.Fatalf("got %v, want the refusal", err)
	}
	// The server's reload of its users races with its own refusal of a connection.
	eventually.True(t, "the refused connection's end", func() bool { return d.Server.NumClients() == 2 })
	if got := r.Call(agentID, "ping"); got != pongReply {
		t.Fatalf("after a failed rotation: %s", got)
	}

	// One that it learns of meanwhile works.
	d.SetUsers(testnats.Agent(bootstrap, agentID), testnats.Agent(permanent, agentID))
	eventually.True(t, "connected", b.Connected)
	long, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	rotation, err := b.Rotate(long, identity(d, permanent))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Rotate(long, identity(d, permanent)); err == nil {
		t.Error("two rotations at a time")
	}
	before := total.Load()
	if got := r.Call(agentID, "ping"); got != pongReply {
		t.Fatalf("while both are subscribed: %s", got)
	}
	// The same bytes published three times are three requests, although two links deliver each.
	envelope := testnats.Envelope("repeated", "")
	for range 3 {
		if err := r.Conn.Publish("agent."+agentID, envelope); err != nil {
			t.Fatal(err)
		}
	}
	if got := r.Call(agentID, "ping"); got != pongReply {
		t.Fatalf("while both are subscribed: %s", got)
	}
	b.mu.Lock()
	twice := b.duplicates
	b.mu.Unlock()
	eventually.True(t, "both links have delivered the three copies", func() bool {
		twice.mu.Lock()
		defer twice.mu.Unlock()
		counts := twice.copies[maphash.Bytes(twice.seed, envelope)]
		return len(counts) == 2 && counts[rotation.old] == 3 && counts[rotation.new] == 3
	})
	eventually.True(t, "they are handled", func() bool { return total.Load()-before >= 5 })
	if got := total.Load() - before; got != 5 {
		t.Errorf("%d requests were handled, want two pings and three repeated ones", got)
	}
	rotation.Commit(t.Context())
	eventually.True(t, "the old connection's end", func() bool { return d.Server.NumClients() == 2 })
	// Now the old identity may go.
	d.SetUsers(testnats.Agent(permanent, agentID))
	eventually.True(t, "connected", b.Connected)
	if got := r.Call(agentID, "ping"); got != pongReply {
		t.Fatalf("after the rotation: %s", got)
	}
	// A request that came in before it is answered after it.
	close(hold)
	if got := testnats.Receive(t, slow); got != `{"value":"slow"}` {
		t.Errorf("got %s", got)
	}
}

// A reply that is late for the old connection goes out over the new one. BeforeConnect is called
// with the servers' addresses during a rotation: old and new ones before the new are used, and then
// only those that stay.
func TestRotationTellsAddresses(t *testing.T) {
	old, next := testnats.Start(t, nil, agentID), testnats.Start(t, nil)
	var mu sync.Mutex
	var addresses []netip.AddrPort
	b := start(t, old, Options{pace: quick(), BeforeConnect: func(_ context.Context, servers []netip.AddrPort) {
		mu.Lock()
		defer mu.Unlock()
		addresses = servers
	}})
	expect := func(when string, servers ...*testnats.Deployment) {
		t.Helper()
		var want []netip.AddrPort
		for _, d := range servers {
			want = append(want, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(d.Port())))
		}
		slices.SortFunc(want, netip.AddrPort.Compare)
		eventually.True(t, when, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return slices.Equal(addresses, want)
		})
	}
	eventually.True(t, "connected", b.Connected)
	expect("only the first", old)
	short, cancel := context.WithCancel(t.Context())
	failed := make(chan error)
	go func() {
		_, err := b.Rotate(short, identity(next, testca.AgentName(agentID)))
		failed <- err
	}()
	expect("both while the second is tried", old, next)
	cancel()
	if err := <-failed; err == nil {
		t.Fatal("a server that does not know the agent was rotated to")
	}
	expect("only the first again", old)
	next.SetUsers(testnats.Agent(testca.AgentName(agentID), agentID))
	rotation, err := b.Rotate(t.Context(), identity(next, testca.AgentName(agentID)))
	if err != nil {
		t.Fatal(err)
	}
	expect("both while both are in use", old, next)
	rotation.Commit(t.Context())
	expect("only the second", next)
	if got := next.Director().Call(agentID, "ping"); got != pongReply {
		t.Errorf("got %s", got)
	}
}

func TestHandOver(t *testing.T) {
	var old, next outbox
	old.send(message{subject: "a"})
	old.handOver(&next)
	old.send(message{subject: "b"})
	if len(old.waiting) != 0 || len(next.waiting) != 2 {
		t.Errorf("%d messages stayed and %d went over, want 0 and 2", len(old.waiting), len(next.waiting))
	}
}

// Not one of the requests that arrive during a rotation is lost or answered twice.
func TestRotationUnderLoad(t *testing.T) {
	d := testnats.Start(t, nil, agentID)
	var handled sync.Map
	b := start(t, d, Options{pace: quick(),
		Handler: handler(func(ctx context.Context, r mbus.Request, reply func(mbus.Reply)) {
			if _, twice := handled.LoadOrStore(r.ReplyTo, true); twice {
				t.Errorf("%s was delivered twice", r.Method)
			}
			pong(ctx, r, reply)
		})})
	eventually.True(t, "connected", b.Connected)
	r := d.Director()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					r.Call(agentID, "ping")
				}
			}
		})
	}
	for range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		rotation, err := b.Rotate(ctx, identity(d, testca.AgentName(agentID)))
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		rotation.Commit(t.Context())
	}
	close(stop)
	wg.Wait()
}

// A name that moves to another address is followed, and BeforeConnect is called with it.
func TestNamesAreResolvedAtEachAttempt(t *testing.T) {
	d := testnats.Start(t, nil, agentID)
	id := identity(d, testca.AgentName(agentID))
	id.URLs = []secret.URL{secret.NewURL(strings.Replace(d.URL().Reveal(), "127.0.0.1", "localhost", 1))}
	var asked atomic.Int64
	var addresses sync.Map
	lookup := func(context.Context, string) ([]netip.Addr, error) {
		switch asked.Add(1) {
		case 1:
			return nil, errors.New("no such host")
		case 2:
			return []netip.Addr{netip.MustParseAddr("127.0.0.2")}, nil // no server listens there
		}
		return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
	}
	b, err := New(Options{pace: quick(), lookup: lookup, AgentID: agentID, Identity: id, Handler: pong, Log: quiet(),
		BeforeConnect: func(_ context.Context, servers []netip.AddrPort) {
			addresses.Store(servers[0].Addr().String(), true)
		}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- b.Run(ctx) }()
	eventually.True(t, "connected at the third address", b.Connected)
	cancel()
	<-ended
	for _, address := range []string{"127.0.0.2", "127.0.0.1"} {
		if _, ok := addresses.Load(address); !ok {
			t.Errorf("BeforeConnect was not called with %s", address)
		}
	}
}

// About once a second for the first minute of refusals, then with growing pauses, but without end.
func TestPauses(t *testing.T) {
	p := pauses{pace: usual}
	now := time.Now()
	begin := now
	for tries := 0; now.Sub(begin) < authRetryTime; tries++ {
		pause := p.next(nats.ErrAuthorization, now)
		if pause < 500*time.Millisecond || pause > 1500*time.Millisecond {
			t.Fatalf("try %d: %v, want about a second", tries, pause)
		}
		now = now.Add(pause)
	}
	limit := func(want time.Duration, err error) {
		t.Helper()
		if pause := p.next(err, now); pause < 0 || pause > want {
			t.Errorf("got %v, want at most %v", pause, want)
		}
	}
	for _, want := range []time.Duration{200 * time.Millisecond, 400 * time.Millisecond, 800 * time.Millisecond} {
		limit(want, nats.ErrAuthorization)
	}
	for range 100 {
		limit(8*time.Second, nats.ErrAuthorization)
	}
	// A connection, and then a loss that all others have too: full jitter.
	p.connected()
	var sum time.Duration
	for range 1000 {
		p.connected()
		sum += p.next(io.EOF, now)
	}
	if mean := sum / 1000; mean < 800*time.Millisecond || mean > 1200*time.Millisecond {
		t.Errorf("mean of first pauses: %v, want about half of two seconds", mean)
	}
	limit(4*time.Second, io.EOF)
	// A slow server is left alone for longer and longer.
	sum = 0
	for range 1000 {
		sum += p.next(&slow{nats.ErrTimeout}, now)
	}
	if mean := sum / 1000; mean < 25*time.Second || mean > 35*time.Second {
		t.Errorf("mean of pauses: %v, want about half a minute", mean)
	}
	p.connected()
	limit(4*time.Second, &slow{nats.ErrTimeout})
	// A refusal after that is a new one.
	if pause := p.next(nats.ErrAuthRevoked, now.Add(time.Hour)); pause < 500*time.Millisecond ||
		pause > 1500*time.Millisecond {
		t.Errorf("got %v, want about a second", pause)
	}
}

// The last messages of a stopping agent still arrive.
func TestLastRepliesOfAStoppingAgent(t *testing.T) {
	d := testnats.Start(t, nil, agentID)
	b, err := New(Options{AgentID: agentID, Identity: identity(d, testca.AgentName(agentID)), Handler: pong, Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- b.Run(ctx) }()
	eventually.True(t, "connected", b.Connected)
	r := d.Director()
	var all []<-chan []byte
	for range 500 {
		subject, replies := r.Inbox(agentID)
		all = append(all, replies)
		b.active().send(message{subject: subject, data: make([]byte, 10<<10)})
	}
	cancel()
	<-ended
	for _, replies := range all {
		testnats.Receive(t, replies)
	}
}
