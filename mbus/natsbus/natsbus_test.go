package natsbus

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"

	"cambium/internal/eventually"
	"cambium/internal/secret"
	"cambium/internal/testca"
	"cambium/internal/testnats"
	"cambium/mbus"
)

const agentID = "6c3f1a52-agent-1"

func quiet() *logrus.Entry {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return logrus.NewEntry(l)
}

func identity(d *testnats.Deployment, commonName string) Identity {
	return identityWith(d, d.Client(commonName))
}

func identityWith(d *testnats.Deployment, pair testca.Pair) Identity {
	return Identity{URLs: []secret.URL{d.URL()}, CA: string(d.CA.PEM), Certificate: string(pair.Certificate),
		PrivateKey: secret.New(string(pair.PrivateKey))}
}

// handler answers with a function.
type handler func(ctx context.Context, r mbus.Request, reply func(mbus.Reply))

func (h handler) Handle(ctx context.Context, r mbus.Request, reply func(mbus.Reply)) {
	h(ctx, r, reply)
}

var pong = handler(func(_ context.Context, r mbus.Request, reply func(mbus.Reply)) {
	if r.Method == "ping" {
		reply(mbus.Value("pong"))
		return
	}
	reply(mbus.Exception("unknown message " + r.Method))
})

const pongReply = `{"value":"pong"}`

// start runs a bus and stops it with the test.
func start(t testing.TB, d *testnats.Deployment, o Options) *Bus {
	t.Helper()
	if o.AgentID == "" {
		o.AgentID = agentID
	}
	if len(o.Identity.URLs) == 0 {
		o.Identity = identity(d, testca.AgentName(o.AgentID))
	}
	if o.Handler == nil {
		o.Handler = pong
	}
	if o.Log == nil {
		o.Log = quiet()
	}
	b, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			t.Error("Run does not end")
		}
	})
	return b
}

func TestPingPong(t *testing.T) {
	d := testnats.Start(t, nil, agentID)
	var mu sync.Mutex
	var addresses []netip.AddrPort
	b := start(t, d, Options{BeforeConnect: func(_ context.Context, servers []netip.AddrPort) {
		mu.Lock()
		defer mu.Unlock()
		addresses = servers
	}})
	eventually.True(t, "connected", b.Connected)
	r := d.Director()
	if got := r.Call(agentID, "ping"); got != pongReply {
		t.Errorf("got %s, want %s", got, pongReply)
	}
	if got, want := r.Call(agentID, "hop"), `{"exception":{"message":"unknown message hop"}}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	mu.Lock()
	defer mu.Unlock()
	if want := fmt.Sprintf("[127.0.0.1:%d]", d.Port()); fmt.Sprint(addresses) != want {
		t.Errorf("BeforeConnect got %v, want %s", addresses, want)
	}
}

func TestBadIdentitiesAreRefused(t *testing.T) {
	ca, err := testca.New("ca")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Client(testca.AgentName(agentID))
	if err != nil {
		t.Fatal(err)
	}
	good := Identity{URLs: []secret.URL{secret.NewURL("nats://127.0.0.1:1")}, CA: string(ca.PEM),
		Certificate: string(pair.Certificate), PrivateKey: secret.New(string(pair.PrivateKey))}
	for _, c := range []struct {
		name   string
		change func(*Identity)
		want   string
	}{
		{"no certificate", func(i *Identity) { i.Certificate = "" }, "client certificate"},
		{"no key", func(i *Identity) { i.PrivateKey = secret.String{} }, "client certificate"},
		{"unreadable authority", func(i *Identity) { i.CA = "nonsense" }, "the CA's PEM"},
		{"no address", func(i *Identity) { i.URLs = nil }, "no server address"},
		{"https", func(i *Identity) { i.URLs = []secret.URL{secret.NewURL("https://a:s3cret@b:1")} }, "not a NATS server's address"},
		{"malformed", func(i *Identity) { i.URLs = []secret.URL{secret.NewURL("nats://u:s3cret@%zz")} }, "malformed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			id := good
			c.change(&id)
			_, err := New(Options{AgentID: agentID, Identity: id, Handler: pong, Log: quiet()})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "s3cret") {
				t.Errorf("the error tells the password: %v", err)
			}
		})
	}
	if _, err := New(Options{AgentID: agentID, Identity: good, Handler: pong, Log: quiet()}); err != nil {
		t.Errorf("the good identity: %v", err)
	}
	good.URLs = []secret.URL{secret.NewURL("nats://10.0.0.1")}
	b, err := New(Options{AgentID: agentID, Identity: good, Handler: pong, Log: quiet()})
	if err != nil || b.current.servers[0].Host != "10.0.0.1:4222" {
		t.Errorf("address without port: %v, %v", b, err)
	}
}

func TestServerWithoutTLSIsRefused(t *testing.T) {
	d := testnats.Start(t, nil, agentID)
	withoutTLS, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoLog: true, NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	go withoutTLS.Start()
	t.Cleanup(withoutTLS.Shutdown)
	if !withoutTLS.ReadyForConnections(10 * time.Second) {
		t.Fatal("no server")
	}
	id := identity(d, testca.AgentName(agentID))
	id.URLs = []secret.URL{secret.NewURL(withoutTLS.ClientURL())}
	b := start(t, d, Options{Identity: id})
	eventually.True(t, "a refusal", func() bool { return b.LastError() != nil })
	if b.Connected() || !strings.Contains(b.LastError().Error(), "secure connection not available") {
		t.Errorf("got %v, want a refusal", b.LastError())
	}
}

func TestSeveralServers(t *testing.T) {
	d := testnats.Start(t, nil, agentID)
	id := identity(d, testca.AgentName(agentID))
	id.URLs = append([]secret.URL{secret.NewURL("nats://127.0.0.1:1")}, id.URLs...)
	b := start(t, d, Options{Identity: id})
	eventually.True(t, "the one that is there", b.Connected)
}

func TestPayloadLimitIsTheServers(t *testing.T) {
	const limit = 64 << 10
	d := testnats.Start(t, func(o *server.Options) { o.MaxPayload = limit }, agentID)
	b := start(t, d, Options{Handler: handler(func(_ context.Context, r mbus.Request, reply func(mbus.Reply)) {
		switch r.Method {
		case "value":
			reply(mbus.Value(strings.Repeat("v", limit)))
		default:
			reply(mbus.Exception("begin" + strings.Repeat("e", limit) + "end"))
		}
	})})
	eventually.True(t, "connected", b.Connected)
	r := d.Director()
	if got, want := r.Call(agentID, "value"), `{"exception":{"message":"`+mbus.TooLong+`"}}`; got != want {
		t.Errorf("got %d bytes, want %s", len(got), want)
	}
	got := r.Call(agentID, "exception")
	if len(got) != limit || !strings.Contains(got, `begine`) || !strings.Contains(got, `eend`) ||
		!strings.Contains(got, `\n...[truncated]...\n`) {
		t.Errorf("got %d bytes, want %d with beginning and end", len(got), limit)
	}
	if err := b.Publish(t.Context(), "hm", "alert", strings.Repeat("a", limit)); err == nil {
		t.Error("a report beyond the limit was accepted")
	}
}

func TestReports(t *testing.T) {
	d := testnats.Start(t, nil, agentID)
	hm := d.Connect(testca.HealthMonitorName)
	reports, err := hm.SubscribeSync("hm.agent.>")
	if err != nil {
		t.Fatal(err)
	}
	if err := hm.Flush(); err != nil {
		t.Fatal(err)
	}
	b := start(t, d, Options{})
	eventually.True(t, "connected", b.Connected)
	for _, topic := range []string{"heartbeat", "alert", "shutdown"} {
		if err := b.Publish(t.Context(), "hm", topic, nil); err != nil {
			t.Fatal(err)
		}
		m, err := reports.NextMsg(10 * time.Second)
		if err != nil {
			t.Fatalf("%s: %v", topic, err)
		}
		if want := "hm.agent." + topic + "." + agentID; m.Subject != want || string(m.Data) != "null" {
			t.Errorf("got %s %q, want %s null", m.Subject, m.Data, want)
		}
	}
}

// TestDeliveredReports: a report counts as delivered when the server has confirmed it, and a reply is not a report.
func TestDeliveredReports(t *testing.T) {
	d := testnats.Start(t, nil, agentID)
	delivered := make(chan string, 10)
	b, err := New(Options{AgentID: agentID, Identity: identity(d, testca.AgentName(agentID)), Handler: pong, Log: quiet(),
		OnDelivered: func(subject string) { delivered <- subject }})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Publish(t.Context(), "hm", "heartbeat", nil); err != nil {
		t.Fatal(err)
	}
	if len(delivered) > 0 {
		t.Errorf("%s was delivered without a connection", <-delivered)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	if got, want := <-delivered, "hm.agent.heartbeat."+agentID; got != want {
		t.Errorf("delivered %s, want %s", got, want)
	}
	d.Director().Call(agentID, "ping")
	if err := b.Publish(t.Context(), "hm", "alert", nil); err != nil {
		t.Fatal(err)
	}
	if got, want := <-delivered, "hm.agent.alert."+agentID; got != want {
		t.Errorf("delivered %s, want %s", got, want)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestGarbageIsDropped(t *testing.T) {
	d := testnats.Start(t, func(o *server.Options) { o.MaxPayload = 16 << 20 }, agentID)
	b := start(t, d, Options{})
	eventually.True(t, "connected", b.Connected)
	r := d.Director()
	// The small kinds are in the conformance table.
	for _, garbage := range []string{strings.Repeat("\xff\x00", 4<<20), strings.Repeat("[", 8<<20),
		`{"method":"` + strings.Repeat("x", 8<<20)} {
		if err := r.Conn.Publish("agent."+agentID, []byte(garbage)); err != nil {
			t.Fatal(err)
		}
	}
	if got := r.Call(agentID, "ping"); got != pongReply {
		t.Errorf("after garbage: got %s, want %s", got, pongReply)
	}
}

// The library's PONG and the agent's answers must not wait for one another: a handler may be
// slow to reply, and Handle itself is trusted to return.
func TestSlowRepliesKeepTheConnection(t *testing.T) {
	d := testnats.Start(t, func(o *server.Options) { o.PingInterval, o.MaxPingsOut = 250*time.Millisecond, 4 }, agentID)
	release := make(chan struct{})
	connects := make(chan struct{}, 10)
	b := start(t, d, Options{OnConnect: func(string) { connects <- struct{}{} },
		Handler: handler(func(ctx context.Context, r mbus.Request, reply func(mbus.Reply)) {
			if r.Method == "slow" {
				go func() {
					<-release
					reply(mbus.Value("done"))
				}()
				return
			}
			pong(ctx, r, reply)
		})})
	eventually.True(t, "connected", b.Connected)
	r := d.Director()
	_, slow := r.Send(agentID, "slow")
	// Longer than the server waits for a PONG.
	for range 10 {
		if got := r.Call(agentID, "ping"); got != pongReply {
			t.Fatalf("got %s", got)
		}
		time.Sleep(200 * time.Millisecond)
	}
	close(release)
	if got := testnats.Receive(t, slow); got != `{"value":"done"}` {
		t.Errorf("got %s", got)
	}
	if len(connects) != 1 {
		t.Errorf("connected %d times, want once", len(connects))
	}
}

func TestSubjects(t *testing.T) {
	for s, want := range map[string]bool{
		"director.7c1e.a.b": true, "a": true, "": false, "a..b": false, "a.*": false, "a.>": false,
		"a b": false, "a\r\nPUB": false, "a.": false, ".a": false,
		"*": false, ">.a": false, "a*.b>": true, "ä.b": true, "a\x7f": false, "a.\tb": false,
		strings.Repeat("a", 2000): false,
	} {
		if got := validSubject(s); got != want {
			t.Errorf("%q: got %v, want %v", s, got, want)
		}
	}
}

func TestRefusedErrors(t *testing.T) {
	for _, err := range []error{nats.ErrAuthorization, fmt.Errorf("subscribe: %w", nats.ErrPermissionViolation),
		nats.ErrAuthRevoked} {
		if !refused(err) {
			t.Errorf("%v is not taken for a refusal", err)
		}
	}
	for _, err := range []error{nil, nats.ErrNoServers, io.EOF} {
		if refused(err) {
			t.Errorf("%v is taken for a refusal", err)
		}
	}
}

func TestAgentIDsThatAreNoSubject(t *testing.T) {
	d := testnats.Start(t, nil)
	for _, id := range []string{"", "*", ">", "a*", "a>", "a b", "a\tb", "a\r\nPUB x 0", "a..b", ".a", "a."} {
		if _, err := New(Options{AgentID: id, Identity: identity(d, "x"), Handler: pong, Log: quiet()}); err == nil {
			t.Errorf("agent id %q was accepted", id)
		}
	}
	for _, id := range []string{"6c3f1a52-agent-1", "agent.with.dots", "UPPER_lower-0"} {
		if _, err := New(Options{AgentID: id, Identity: identity(d, "x"), Handler: pong, Log: quiet()}); err != nil {
			t.Errorf("agent id %q: %v", id, err)
		}
	}
}
