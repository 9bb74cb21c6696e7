package natsbus

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"

	"cambium/internal/secret"
	"cambium/internal/testca"
	"cambium/mbus"
)

const agentID = "6c3f1a52-agent-1"

func quiet() *logrus.Entry {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return logrus.NewEntry(l)
}

// deployment is a NATS server as a BOSH Director configures it: mutual TLS, users mapped from
// certificate subjects, and the permission set of agents.
type deployment struct {
	t      testing.TB
	ca     *testca.CA
	server *server.Server
	opts   *server.Options
}

func user(name string, publish, subscribe []string) *server.User {
	return &server.User{Username: testca.UserOf(name), Permissions: &server.Permissions{
		Publish:   &server.SubjectPermission{Allow: publish},
		Subscribe: &server.SubjectPermission{Allow: subscribe},
	}}
}

func agentUser(name, id string) *server.User {
	return user(name,
		[]string{"hm.agent.heartbeat." + id, "hm.agent.alert." + id, "hm.agent.shutdown." + id, "director.*." + id + ".*"},
		[]string{"agent." + id})
}

func directorUser() *server.User {
	return user(testca.DirectorName, []string{"agent.*", "hm.director.alert"}, []string{"director.>"})
}

func healthMonitorUser() *server.User {
	return user(testca.HealthMonitorName, nil, []string{"hm.>"})
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func newDeployment(t testing.TB) *deployment {
	t.Helper()
	d := &deployment{t: t, ca: must[*testca.CA](t)(testca.New("default.nats-ca.bosh-internal"))}
	pair := must[tls.Certificate](t)(must[testca.Pair](t)(d.ca.Server("127.0.0.1", "localhost")).TLS())
	d.opts = &server.Options{
		Host: "127.0.0.1", Port: -1, NoLog: true, NoSigs: true,
		PingInterval: 5 * time.Second, MaxPingsOut: 2,
		TLS: true, TLSVerify: true, TLSMap: true, TLSTimeout: 30,
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: d.ca.Pool()},
		Users:     []*server.User{agentUser(testca.AgentName(agentID), agentID), directorUser(), healthMonitorUser()},
	}
	d.start()
	t.Cleanup(func() { d.stop() })
	return d
}

func (d *deployment) start() {
	d.t.Helper()
	copied := d.opts.Clone()
	d.server = must[*server.Server](d.t)(server.NewServer(copied))
	go d.server.Start()
	if !d.server.ReadyForConnections(10 * time.Second) {
		d.t.Fatal("nats-server does not accept connections")
	}
	// The next start uses the same port: agents know no other.
	d.opts.Port = copied.Port
}

func (d *deployment) stop() {
	d.server.Shutdown()
	d.server.WaitForShutdown()
}

func (d *deployment) url() secret.URL {
	return secret.NewURL(fmt.Sprintf("nats://127.0.0.1:%d", d.opts.Port))
}

func (d *deployment) identity(commonName string) Identity {
	d.t.Helper()
	pair := must[testca.Pair](d.t)(d.ca.Client(commonName))
	return Identity{URLs: []secret.URL{d.url()}, CA: string(d.ca.PEM), Certificate: string(pair.Certificate), PrivateKey: secret.New(string(pair.PrivateKey))}
}

func (d *deployment) connect(commonName string) *nats.Conn {
	d.t.Helper()
	pair := must[tls.Certificate](d.t)(must[testca.Pair](d.t)(d.ca.Client(commonName)).TLS())
	nc := must[*nats.Conn](d.t)(nats.Connect(d.url().Reveal(), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond),
		nats.Secure(&tls.Config{RootCAs: d.ca.Pool(), Certificates: []tls.Certificate{pair}})))
	d.t.Cleanup(nc.Close)
	return nc
}

// director asks like a Director: one inbox, replies told apart by the last token.
type director struct {
	t       testing.TB
	nc      *nats.Conn
	mu      sync.Mutex
	next    int
	waiting map[string]chan []byte
}

func (d *deployment) director() *director {
	r := &director{t: d.t, nc: d.connect(testca.DirectorName), waiting: map[string]chan []byte{}}
	must[*nats.Subscription](d.t)(r.nc.Subscribe("director.7c1e.>", func(m *nats.Msg) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if ch := r.waiting[m.Subject]; ch != nil {
			ch <- m.Data
		}
	}))
	if err := r.nc.Flush(); err != nil {
		d.t.Fatal(err)
	}
	return r
}

// send returns the channel on which replies arrive and the subject.
func (r *director) send(method string, arguments ...any) (<-chan []byte, string) {
	r.t.Helper()
	r.mu.Lock()
	r.next++
	subject := fmt.Sprintf("director.7c1e.%s.req-%d", agentID, r.next)
	ch := make(chan []byte, 4)
	r.waiting[subject] = ch
	r.mu.Unlock()
	if arguments == nil {
		arguments = []any{}
	}
	data := must[[]byte](r.t)(json.Marshal(map[string]any{"protocol": 3, "method": method, "arguments": arguments, "reply_to": subject}))
	if err := r.nc.Publish("agent."+agentID, data); err != nil {
		r.t.Fatal(err)
	}
	return ch, subject
}

func (r *director) call(method string, arguments ...any) string {
	r.t.Helper()
	ch, _ := r.send(method, arguments...)
	return receive(r.t, ch)
}

func receive(t testing.TB, ch <-chan []byte) string {
	t.Helper()
	select {
	case data := <-ch:
		return string(data)
	case <-time.After(20 * time.Second):
		t.Fatal("no reply")
		return ""
	}
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

// run starts a bus and stops it with the test.
func (d *deployment) run(o Options) *Bus {
	d.t.Helper()
	if o.AgentID == "" {
		o.AgentID = agentID
	}
	if len(o.Identity.URLs) == 0 {
		o.Identity = d.identity(testca.AgentName(agentID))
	}
	if o.Handler == nil {
		o.Handler = pong
	}
	if o.Log == nil {
		o.Log = quiet()
	}
	b := must[*Bus](d.t)(New(o))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	d.t.Cleanup(func() {
		cancel()
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			d.t.Error("Run does not end")
		}
	})
	return b
}

// until waits for a condition.
func until(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !condition(); {
		if time.Now().After(deadline) {
			t.Fatalf("waited too long: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestPingPong(t *testing.T) {
	d := newDeployment(t)
	var mu sync.Mutex
	var told []netip.AddrPort
	b := d.run(Options{BeforeConnect: func(_ context.Context, servers []netip.AddrPort) {
		mu.Lock()
		defer mu.Unlock()
		told = servers
	}})
	until(t, "connected", b.Connected)
	r := d.director()
	if got, want := r.call("ping"), `{"value":"pong"}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, want := r.call("hop"), `{"exception":{"message":"unknown message hop"}}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	mu.Lock()
	defer mu.Unlock()
	if want := fmt.Sprintf("[127.0.0.1:%d]", d.opts.Port); fmt.Sprint(told) != want {
		t.Errorf("BeforeConnect was told %v, want %s", told, want)
	}
}
