package natsbus

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"cambium/internal/eventually"
	"cambium/internal/secret"
	"cambium/internal/testca"
	"cambium/internal/testnats"
	"cambium/mbus"
)

// cluster is three servers, an agent that has a link to each, and a Director that asks for tasks all the time.
type cluster struct {
	t        *testing.T
	servers  []*testnats.Deployment
	links    []*testnats.Link
	names    names
	bus      *Bus
	director *testnats.Director
	work     worker
	identity Identity
}

// names is a DNS that can be changed.
type names struct {
	mu        sync.Mutex
	addresses map[string]netip.Addr
}

func (n *names) set(host, address string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.addresses[host] = netip.MustParseAddr(address)
}

func (n *names) lookup(_ context.Context, host string) ([]netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	a, ok := n.addresses[host]
	if !ok {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	return []netip.Addr{a}, nil
}

// worker is an agent's tasks: run begins one and is answered with its id, get_task with its result.
type worker struct {
	mu       sync.Mutex
	executed map[string]int // by the subject of the reply, of which each publication has its own
	results  map[string]string
}

func (w *worker) Handle(ctx context.Context, r mbus.Request, reply func(mbus.Reply)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch r.Method {
	case "run":
		w.executed[r.ReplyTo]++
		id := fmt.Sprintf("task-%d", len(w.results))
		w.results[id] = "result of " + r.ReplyTo
		reply(mbus.Value(map[string]string{"agent_task_id": id, "state": "running"}))
	case "get_task":
		var id string
		if len(r.Arguments) == 1 && json.Unmarshal(r.Arguments[0], &id) == nil && w.results[id] != "" {
			reply(mbus.Value(w.results[id]))
			return
		}
		reply(mbus.Exception("unknown task"))
	default:
		pong(ctx, r, reply)
	}
}

// askEvery is the pause between two requests of the Director.
const askEvery = 20 * time.Millisecond

// newCluster starts servers and agent.
func newCluster(t *testing.T, p *pace) *cluster {
	t.Helper()
	c := &cluster{t: t, names: names{addresses: map[string]netip.Addr{}}}
	c.work.executed, c.work.results = map[string]int{}, map[string]string{}
	c.servers = testnats.StartCluster(t, 3, func(o *server.Options) {
		o.LameDuckGracePeriod, o.LameDuckDuration = 200*time.Millisecond, time.Second
	}, agentID)
	id := identity(c.servers[0], testca.AgentName(agentID))
	id.URLs = nil
	for i, d := range c.servers {
		link := testnats.Listen(t, "127.0.0.1:0", d.Address())
		c.links = append(c.links, link)
		c.names.set(testnats.ClusterName(i), "127.0.0.1")
		_, port, err := net.SplitHostPort(link.Address())
		if err != nil {
			t.Fatal(err)
		}
		id.URLs = append(id.URLs, secret.NewURL("nats://"+net.JoinHostPort(testnats.ClusterName(i), port)))
	}
	c.identity = id
	c.bus = start(t, c.servers[0], Options{Identity: id, pace: p, lookup: c.names.lookup, Handler: &c.work})
	return c
}

// suffer has a fault happen while the Director asks for tasks, and returns how long the agent did not answer.
func (c *cluster) suffer(f fault) (time.Duration, outcome) {
	c.t.Helper()
	c.director = c.servers[0].Director() // under the certificates of now
	c.answers(time.Now())
	stop, sent := make(chan struct{}), map[string]<-chan []byte{}
	var asking sync.WaitGroup
	asking.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(askEvery):
				subject, replies := c.director.Send(agentID, "run")
				sent[subject] = replies
			}
		}
	})
	recovery := f.happen(c)
	c.answers(time.Now())
	close(stop)
	asking.Wait()
	o := c.settle(sent)
	c.director.Conn.Close()
	return recovery, o
}

// answers asks until a request of now or later is answered, and returns how long after begin that was.
func (c *cluster) answers(begin time.Time) time.Duration {
	c.t.Helper()
	subject, replies := c.director.Inbox(agentID)
	defer c.director.Forget(subject)
	deadline := time.After(4 * time.Minute)
	for {
		if err := c.director.Conn.Publish("agent."+agentID, testnats.Envelope("ping", subject)); err != nil {
			c.t.Fatal(err)
		}
		select {
		case <-replies:
			return time.Since(begin)
		case <-time.After(askEvery):
		case <-deadline:
			c.t.Fatal("the agent does not answer")
		}
	}
}

// current is the number of the server that the agent is connected to.
func (c *cluster) current() (at int) {
	c.t.Helper()
	eventually.True(c.t, "a connection", func() bool {
		at = slices.IndexFunc(c.bus.active().servers,
			func(s *url.URL) bool { return s.Host == c.bus.active().server() })
		return at >= 0 && c.bus.Connected()
	})
	return at
}

// outcome counts the Director's requests, and those that went wrong by the kind of loss.
type outcome struct {
	requests  int
	dropped   int // by a server, since no agent was subscribed
	silent    int // executed, but the reply did not arrive
	repeated  int // executed more than once
	lostTasks int // answered with an id that the agent does not know later
}

// settle counts what became of the requests, by the subjects of their replies.
func (c *cluster) settle(sent map[string]<-chan []byte) (o outcome) {
	c.t.Helper()
	// Replies may wait for the return of their caller.
	eventually.True(c.t, "the agent has sent everything", func() bool {
		l := c.bus.active()
		l.outbox.mu.Lock()
		defer l.outbox.mu.Unlock()
		return l.nc != nil && !l.callersAway && len(l.waiting) == 0 && len(l.unconfirmed) == 0
	})
	c.answers(time.Now())
	c.work.mu.Lock()
	executed := c.work.executed
	c.work.executed = map[string]int{}
	c.work.mu.Unlock()
	for subject, replies := range sent {
		o.requests++
		if executed[subject] > 1 {
			o.repeated++
		}
		c.director.Forget(subject)
		select {
		case reply := <-replies:
			var handle struct {
				Value struct {
					ID string `json:"agent_task_id"`
				} `json:"value"`
			}
			if err := json.Unmarshal(reply, &handle); err != nil {
				c.t.Errorf("%s: %v", reply, err)
			}
			result := c.director.Call(agentID, "get_task", handle.Value.ID)
			if result != `{"value":"result of `+subject+`"}` {
				c.t.Errorf("task %s: %s", handle.Value.ID, result)
				o.lostTasks++
			}
		default:
			if executed[subject] == 0 {
				o.dropped++
			} else {
				o.silent++
			}
		}
	}
	return o
}

// fault is something that happens to a cluster and its links.
type fault struct {
	name string
	// happen returns when the agent answers again and the fault is over, with the time from the fault, or from its end
	// if no server could be reached, to the first answer.
	happen func(c *cluster) time.Duration
	// harmless means that no server and no link fails: not a single request may be dropped.
	harmless bool
}

var faults = []fault{
	{name: "rolling restart", happen: func(c *cluster) (longest time.Duration) {
		for _, d := range c.servers {
			begin := time.Now()
			d.Down()
			longest = max(longest, c.answers(begin))
			d.Up()
			testnats.AwaitRoutes(c.t, c.servers)
		}
		return longest
	}},
	{name: "the agent's server ends", happen: func(c *cluster) time.Duration {
		d, begin := c.servers[c.current()], time.Now()
		d.Down()
		recovery := c.answers(begin)
		d.Up()
		testnats.AwaitRoutes(c.t, c.servers)
		return recovery
	}},
	{name: "all servers end and return", happen: func(c *cluster) time.Duration {
		for _, d := range c.servers {
			d.Down()
		}
		for _, d := range c.servers {
			d.Up()
		}
		begin := time.Now()
		testnats.AwaitRoutes(c.t, c.servers)
		return c.answers(begin)
	}},
	{name: "all connections are reset", happen: func(c *cluster) time.Duration {
		begin := time.Now()
		for _, l := range c.links {
			l.Reset()
		}
		return c.answers(begin)
	}},
	{name: "partition from one server", happen: func(c *cluster) time.Duration { return c.stall(1, false) }},
	{name: "partition from two servers", happen: func(c *cluster) time.Duration { return c.stall(2, false) }},
	{name: "partition from all servers", happen: func(c *cluster) time.Duration { return c.stall(3, false) }},
	{name: "one server accepts and says nothing", happen: func(c *cluster) time.Duration { return c.stall(1, true) }},
	{name: "two servers accept and say nothing", happen: func(c *cluster) time.Duration { return c.stall(2, true) }},
	{name: "slow links", harmless: true, happen: func(c *cluster) time.Duration {
		return c.shape(20*time.Millisecond,
			0)
	}},
	{name: "lossy links", happen: func(c *cluster) time.Duration { return c.shape(time.Millisecond, 0.1) }},
	{name: "lame-duck mode", happen: func(c *cluster) time.Duration {
		d := c.servers[c.current()]
		d.Retire()
		recovery := c.answers(time.Now())
		d.Up()
		testnats.AwaitRoutes(c.t, c.servers)
		return recovery
	}},
	{name: "the servers' names move to other addresses", happen: (*cluster).move},
	{name: "all certificates are rotated", harmless: true, happen: (*cluster).rotate},
}

// stall has n servers, the agent's among them, accept connections and say nothing. If the connection is reset, the
// agent need not find that out.
func (c *cluster) stall(n int, reset bool) time.Duration {
	at, begin := c.current(), time.Now()
	for i := range n {
		c.links[(at+i)%len(c.links)].Freeze(true)
	}
	if reset {
		c.links[at].Reset()
	}
	var recovery time.Duration
	if n < len(c.links) {
		recovery = c.answers(begin)
	} else {
		eventually.True(c.t, "the loss is noticed", func() bool { return !c.bus.Connected() })
		begin = time.Now()
	}
	for _, l := range c.links {
		l.Freeze(false)
	}
	if n < len(c.links) {
		return recovery
	}
	return c.answers(begin)
}

// shape returns the longest of some round trips.
func (c *cluster) shape(delay time.Duration, loss float64) (longest time.Duration) {
	for _, l := range c.links {
		l.Shape(delay, loss)
		defer l.Shape(0, 0)
	}
	for range 20 {
		longest = max(longest, c.answers(time.Now()))
	}
	return longest
}

// move gives all names other addresses, where the same servers are.
func (c *cluster) move() time.Duration {
	address := "127.0.0.2"
	if host, _, _ := net.SplitHostPort(c.links[0].Address()); host == address {
		address = "127.0.0.3"
	}
	for i, old := range c.links {
		_, port, err := net.SplitHostPort(old.Address())
		if err != nil {
			c.t.Fatal(err)
		}
		c.links[i] = testnats.Listen(c.t, net.JoinHostPort(address, port), c.servers[i].Address())
		c.names.set(testnats.ClusterName(i), address)
		old.Close()
	}
	return c.answers(time.Now())
}

// rotate replaces the authority and all certificates, in the order in which BOSH does: both are trusted before one
// is used.
func (c *cluster) rotate() time.Duration {
	begin := time.Now()
	old := c.servers[0].CA
	next, err := testca.New("next.nats-ca.bosh-internal")
	if err != nil {
		c.t.Fatal(err)
	}
	pair, err := next.Client(testca.AgentName(agentID))
	if err != nil {
		c.t.Fatal(err)
	}
	certify := func(authorities ...*testca.CA) {
		for i, d := range c.servers {
			d.Certify(i, authorities...)
			d.Reload()
		}
	}
	adopt := func(ca []byte, p testca.Pair) {
		id := c.identity
		id.CA, id.Certificate, id.PrivateKey = string(ca), string(p.Certificate), secret.New(string(p.PrivateKey))
		ctx, cancel := context.WithTimeout(c.t.Context(), 2*time.Minute)
		defer cancel()
		rotation, err := c.bus.Rotate(ctx, id)
		if err != nil {
			c.t.Fatal(err)
		}
		rotation.Commit(c.t.Context())
	}
	certify(old, next)
	adopt(slices.Concat(old.PEM, next.PEM), pair)
	certify(next, old)
	adopt(next.PEM, pair)
	certify(next)
	return c.answers(begin)
}

// soon is the usual pace with a shorter interval of PINGs, so that a test need not wait for half a minute.
func soon(ping time.Duration) *pace {
	p := usual
	p.ping = ping
	return &p
}

// TestCluster has each fault happen to a cluster of its own, all at the same time: most of them are waits.
func TestCluster(t *testing.T) {
	var all sync.WaitGroup
	for _, f := range faults {
		all.Go(func() {
			t.Run(f.name, func(t *testing.T) {
				p := soon(500 * time.Millisecond)
				if f.harmless {
					p = &usual // a busy machine may be slow to answer
				}
				c := newCluster(t, p)
				recovery, o := c.suffer(f)
				t.Logf("answers after %v; %+v", recovery.Round(time.Millisecond), o)
				if o.repeated > 0 || o.lostTasks > 0 || f.harmless && o.dropped > 0 {
					t.Errorf("%+v", o)
				}
			})
		})
	}
	all.Wait()
}
