// Package testnats runs the NATS server of a BOSH deployment inside a test, and plays the Director. The agent does not
// link it.
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

// Deployment is a NATS server configured as by a Director: mutual TLS, users mapped from the subjects of certificates,
// and permissions only for the subjects that a user needs.
type Deployment struct {
	CA     *testca.CA
	Server *server.Server

	t       testing.TB
	options *server.Options
	peers   []*Deployment // all servers of the cluster
}

// User returns an account that may only publish and subscribe to the given subjects.
func User(commonName string, publish, subscribe []string) *server.User {
	return &server.User{Username: testca.UserOf(commonName), Permissions: &server.Permissions{
		Publish:   &server.SubjectPermission{Allow: publish},
		Subscribe: &server.SubjectPermission{Allow: subscribe},
	}}
}

// Agent returns the account of an agent under a common name: the permanent or the bootstrap one.
func Agent(commonName, id string) *server.User {
	return User(
		commonName,
		[]string{
			"hm.agent.heartbeat." + id,
			"hm.agent.alert." + id,
			"hm.agent.shutdown." + id,
			"director.*." + id + ".*",
		},
		[]string{"agent." + id},
	)
}

// others returns the accounts of Director and Health Monitor.
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

// Start starts a server on a free port, with accounts for the given agents, the Director and the Health Monitor.
// change, if set, may adjust its options.
func Start(t testing.TB, change func(*server.Options), agents ...string) *Deployment {
	t.Helper()
	d := configured(t, must[*testca.CA](t)(testca.New("default.nats-ca.bosh-internal")), change, agents)
	d.Up()
	t.Cleanup(d.Down)
	return d
}

// configured returns a server that is not started yet.
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

// SetServerCertificate sets the certificate to use from the next Up on.
func (d *Deployment) SetServerCertificate(p testca.Pair) {
	d.t.Helper()
	d.options.TLSConfig = &tls.Config{
		MinVersion:   tls.VersionTLS12,
		Certificates: []tls.Certificate{must[tls.Certificate](d.t)(p.TLS())},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    d.CA.Pool(),
	}
}

// Up starts the server. It always uses the same port.
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

// SetUsers replaces the accounts of agents in the running server, as the Director's synchronization does.
func (d *Deployment) SetUsers(agents ...*server.User) {
	d.t.Helper()
	d.options.Users = append(others(), agents...)
	// A reload looks at each connection as the server's login does, without its lock.
	eventually.True(d.t, "no connection logs in", func() bool {
		z, err := d.Server.Connz(&server.ConnzOptions{Username: true})
		return err == nil &&
			!slices.ContainsFunc(z.Conns, func(c *server.ConnInfo) bool { return c.AuthorizedUser == "" })
	})
	if err := d.Server.ReloadOptions(d.options.Clone()); err != nil {
		d.t.Fatal(err)
	}
}

// Port returns the port at which the server listens.
func (d *Deployment) Port() int { return d.options.Port }

// Address returns host:port of the server.
func (d *Deployment) Address() string { return fmt.Sprintf("127.0.0.1:%d", d.options.Port) }

// URL returns the server's URL as in the settings.
func (d *Deployment) URL() secret.URL { return secret.NewURL("nats://" + d.Address()) }

// Client issues a client certificate.
func (d *Deployment) Client(commonName string) testca.Pair {
	d.t.Helper()
	return must[testca.Pair](d.t)(d.CA.Client(commonName))
}

// Connect logs in with a common name. In a cluster, any server may be used.
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

// Director sends requests as a Director does. All replies arrive at one inbox, and are matched by the last token of
// their subject.
type Director struct {
	Conn *nats.Conn

	t       testing.TB
	mu      sync.Mutex
	waiting map[string]chan []byte
}

// Director returns a connected Director.
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

// inboxes numbers the inboxes of all Directors, so that their subjects differ.
var inboxes atomic.Int64

// Inbox returns a reply subject for an agent, and the channel that receives its replies.
func (r *Director) Inbox(agentID string) (subject string, replies <-chan []byte) {
	subject = fmt.Sprintf("director.7c1e.%s.req-%d", agentID, inboxes.Add(1))
	ch := make(chan []byte, 4)
	r.mu.Lock()
	r.waiting[subject] = ch
	r.mu.Unlock()
	return subject, ch
}

// Forget removes an inbox.
func (r *Director) Forget(subject string) {
	r.mu.Lock()
	delete(r.waiting, subject)
	r.mu.Unlock()
}

// Envelope encodes a request as a Director does.
func Envelope(method, replyTo string, arguments ...any) []byte {
	if arguments == nil {
		arguments = []any{}
	}
	// Values of tests always encode.
	data, _ := json.Marshal(
		map[string]any{"protocol": 3, "method": method, "arguments": arguments, "reply_to": replyTo})
	return data
}

// Send sends a request without waiting for the reply.
func (r *Director) Send(agentID, method string, arguments ...any) (subject string, replies <-chan []byte) {
	r.t.Helper()
	subject, replies = r.Inbox(agentID)
	if err := r.Conn.Publish("agent."+agentID, Envelope(method, subject, arguments...)); err != nil {
		r.t.Fatal(err)
	}
	return subject, replies
}

// Call sends a request and waits for the reply.
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

// Task sends a request that starts a task, and polls the task until it ends, as the Director does but faster.
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
