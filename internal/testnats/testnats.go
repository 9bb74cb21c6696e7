// Package testnats runs, inside a test, the NATS server of a BOSH deployment and plays the
// Director towards an agent. Nothing of it is linked into the agent.
package testnats

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"cambium/internal/eventually"
	"cambium/internal/secret"
	"cambium/internal/testca"
)

// Deployment is a server as a Director configures it: mutual TLS, users mapped from the
// certificates' subjects, and each user allowed exactly the subjects it needs.
type Deployment struct {
	CA     *testca.CA
	Server *server.Server

	t       testing.TB
	options *server.Options
	peers   []*Deployment // of a cluster, this one included
}

// User is an account that may publish and subscribe to the given subjects only.
func User(commonName string, publish, subscribe []string) *server.User {
	return &server.User{Username: testca.UserOf(commonName), Permissions: &server.Permissions{
		Publish:   &server.SubjectPermission{Allow: publish},
		Subscribe: &server.SubjectPermission{Allow: subscribe},
	}}
}

// Agent is the account of an agent, under its permanent or its bootstrap name.
func Agent(commonName, id string) *server.User {
	return User(commonName,
		[]string{"hm.agent.heartbeat." + id, "hm.agent.alert." + id, "hm.agent.shutdown." + id, "director.*." + id + ".*"},
		[]string{"agent." + id})
}

// others are the accounts of Director and Health Monitor.
func others() []*server.User {
	return []*server.User{
		User(testca.DirectorName, []string{"agent.*", "hm.director.alert"}, []string{"director.>"}),
		User(testca.HealthMonitorName, nil, []string{"hm.>"}),
	}
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

// Start runs a server on a free port, with the accounts of the given agents, Director and
// Health Monitor. change may adjust its options.
func Start(t testing.TB, change func(*server.Options), agents ...string) *Deployment {
	t.Helper()
	d := configured(t, must[*testca.CA](t)(testca.New("default.nats-ca.bosh-internal")), change, agents)
	d.Up()
	t.Cleanup(d.Down)
	return d
}

// configured is a server that does not run yet.
func configured(t testing.TB, ca *testca.CA, change func(*server.Options), agents []string) *Deployment {
	t.Helper()
	d := &Deployment{t: t, CA: ca}
	d.options = &server.Options{
		Host: "127.0.0.1", Port: -1, NoLog: true, NoSigs: true,
		PingInterval: 5 * time.Second, MaxPingsOut: 2,
		TLS: true, TLSVerify: true, TLSMap: true, TLSTimeout: 30,
	}
	d.SetServerCertificate(must[testca.Pair](t)(d.CA.Server("127.0.0.1", "localhost")))
	d.options.Users = others()
	for _, id := range agents {
		d.options.Users = append(d.options.Users, Agent(testca.AgentName(id), id))
	}
	if change != nil {
		change(d.options)
	}
	return d
}

// SetServerCertificate is in force from the next Up on.
func (d *Deployment) SetServerCertificate(p testca.Pair) {
	d.t.Helper()
	d.options.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{must[tls.Certificate](d.t)(p.TLS())},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: d.CA.Pool()}
}

// Up starts the server, always on the same port.
func (d *Deployment) Up() {
	d.t.Helper()
	copied := d.options.Clone()
	d.Server = must[*server.Server](d.t)(server.NewServer(copied))
	go d.Server.Start()
	if !d.Server.ReadyForConnections(10 * time.Second) {
		d.t.Fatal("nats-server does not accept connections")
	}
	d.options.Port = copied.Port
}

// Down kills the server.
func (d *Deployment) Down() {
	d.Server.Shutdown()
	d.Server.WaitForShutdown()
}

// SetUsers replaces all accounts but Director's and Health Monitor's in the running server, as
// the Director's synchronization does.
func (d *Deployment) SetUsers(agents ...*server.User) {
	d.t.Helper()
	d.options.Users = append(others(), agents...)
	// A reload looks at each connection as the server's login does, without its lock.
	eventually.True(d.t, "no connection logs in", func() bool {
		z, err := d.Server.Connz(&server.ConnzOptions{Username: true})
		return err == nil && !slices.ContainsFunc(z.Conns, func(c *server.ConnInfo) bool { return c.AuthorizedUser == "" })
	})
	if err := d.Server.ReloadOptions(d.options.Clone()); err != nil {
		d.t.Fatal(err)
	}
}

// Port returns the port at which the server listens.
func (d *Deployment) Port() int { return d.options.Port }

// Address returns host:port of the server.
func (d *Deployment) Address() string { return fmt.Sprintf("127.0.0.1:%d", d.options.Port) }

// URL returns the server's address as settings have it.
func (d *Deployment) URL() secret.URL { return secret.NewURL("nats://" + d.Address()) }

// Client makes a client certificate.
func (d *Deployment) Client(commonName string) testca.Pair {
	d.t.Helper()
	return must[testca.Pair](d.t)(d.CA.Client(commonName))
}

// Connect logs in under a common name, at any server of a cluster.
func (d *Deployment) Connect(commonName string) *nats.Conn {
	d.t.Helper()
	urls := d.URL().Reveal()
	for _, peer := range d.peers {
		urls += "," + peer.URL().Reveal()
	}
	pair := must[tls.Certificate](d.t)(d.Client(commonName).TLS())
	nc := must[*nats.Conn](d.t)(nats.Connect(urls, nats.Timeout(20*time.Second), nats.MaxReconnects(-1),
		nats.ReconnectWait(20*time.Millisecond), nats.ReconnectJitter(0, 0), nats.IgnoreDiscoveredServers(),
		nats.Secure(&tls.Config{RootCAs: d.CA.Pool(), Certificates: []tls.Certificate{pair}})))
	d.t.Cleanup(nc.Close)
	return nc
}

// Director sends requests as a Director does: one inbox for all replies, which are matched by the
// last token of their subject.
type Director struct {
	Conn *nats.Conn

	t       testing.TB
	mu      sync.Mutex
	waiting map[string]chan []byte
}

// Director connects one.
func (d *Deployment) Director() *Director {
	d.t.Helper()
	r := &Director{t: d.t, Conn: d.Connect(testca.DirectorName), waiting: map[string]chan []byte{}}
	must[*nats.Subscription](d.t)(r.Conn.Subscribe("director.7c1e.>", func(m *nats.Msg) {
		r.mu.Lock()
		ch := r.waiting[m.Subject]
		r.mu.Unlock()
		if ch != nil {
			select {
			case ch <- m.Data:
			default:
			}
		}
	}))
	if err := r.Conn.Flush(); err != nil {
		d.t.Fatal(err)
	}
	return r
}

// inboxes counts the inboxes of all Directors: the subjects of a second Director differ, as UUIDs do.
var inboxes atomic.Int64

// Inbox returns a reply subject for an agent and the channel on which its replies arrive.
func (r *Director) Inbox(agentID string) (subject string, replies <-chan []byte) {
	subject = fmt.Sprintf("director.7c1e.%s.req-%d", agentID, inboxes.Add(1))
	ch := make(chan []byte, 4)
	r.mu.Lock()
	r.waiting[subject] = ch
	r.mu.Unlock()
	return subject, ch
}

// Forget closes an inbox.
func (r *Director) Forget(subject string) {
	r.mu.Lock()
	delete(r.waiting, subject)
	r.mu.Unlock()
}

// Envelope is a request as a Director writes it.
func Envelope(method, replyTo string, arguments ...any) []byte {
	if arguments == nil {
		arguments = []any{}
	}
	// Values of tests always encode.
	data, _ := json.Marshal(map[string]any{"protocol": 3, "method": method, "arguments": arguments, "reply_to": replyTo})
	return data
}

// Send asks without waiting.
func (r *Director) Send(agentID, method string, arguments ...any) (subject string, replies <-chan []byte) {
	r.t.Helper()
	subject, replies = r.Inbox(agentID)
	if err := r.Conn.Publish("agent."+agentID, Envelope(method, subject, arguments...)); err != nil {
		r.t.Fatal(err)
	}
	return subject, replies
}

// Call asks and waits for the reply.
func (r *Director) Call(agentID, method string, arguments ...any) string {
	r.t.Helper()
	subject, replies := r.Send(agentID, method, arguments...)
	defer r.Forget(subject)
	return Receive(r.t, replies)
}

// Receive waits for one reply.
func Receive(t testing.TB, replies <-chan []byte) string {
	t.Helper()
	select {
	case data := <-replies:
		return string(data)
	case <-time.After(30 * time.Second):
		t.Fatal("no reply")
		return ""
	}
}

// Task asks for a task and polls it to its end, as the Director does but faster.
func (r *Director) Task(agentID, method string, arguments ...any) string {
	r.t.Helper()
	reply := r.Call(agentID, method, arguments...)
	var handle struct {
		Value struct {
			ID    string `json:"agent_task_id"`
			State string `json:"state"`
		} `json:"value"`
	}
	if json.Unmarshal([]byte(reply), &handle) != nil || handle.Value.ID == "" {
		return reply
	}
	running := must[[]byte](r.t)(json.Marshal(map[string]any{"value": handle.Value}))
	eventually.True(r.t, "the end of "+method, func() bool {
		reply = r.Call(agentID, "get_task", handle.Value.ID)
		return reply != string(running)
	})
	return reply
}
