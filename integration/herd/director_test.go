package herd

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"cambium/internal/eventually"
	"cambium/internal/testca"
	"cambium/internal/testnats"
)

// director asks agents, with one inbox for all replies.
type director struct {
	t    *testing.T
	conn *nats.Conn

	mu       sync.Mutex // guards the fields below
	requests int
	waiting  map[string]chan<- answer // by the last token of the reply's subject
}

// answer is the reply of one agent.
type answer struct {
	agent string
	at    time.Time
	data  []byte
}

// connect logs in at any server of the cluster.
func (c *cluster) connect(commonName string) *nats.Conn {
	c.t.Helper()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(c.ca.PEM)
	pair := must[testca.Pair](c.t)(c.naming.certificate(c.ca, commonName))
	certificate := must[tls.Certificate](c.t)(pair.TLS())
	var nc *nats.Conn
	eventually.Nil(c.t, "a connection of "+commonName, func() (err error) {
		nc, err = nats.Connect(strings.Join(c.urls(), ","), nats.Timeout(20*time.Second), nats.MaxReconnects(-1),
			nats.ReconnectWait(500*time.Millisecond), nats.IgnoreDiscoveredServers(),
			nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}), // the library would print them
			nats.Secure(&tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool,
				Certificates: []tls.Certificate{certificate}}))
		return err
	})
	c.t.Cleanup(nc.Close)
	return nc
}

func (c *cluster) director() *director {
	c.t.Helper()
	d := &director{t: c.t, conn: c.connect(testca.DirectorName), waiting: map[string]chan<- answer{}}
	must[*nats.Subscription](c.t)(d.conn.Subscribe("director.herd.>", func(m *nats.Msg) {
		tokens := strings.Split(m.Subject, ".")
		if len(tokens) != 4 {
			return
		}
		d.mu.Lock()
		to := d.waiting[tokens[3]]
		d.mu.Unlock()
		if to != nil {
			to <- answer{agent: tokens[2], at: time.Now(), data: m.Data}
		}
	}))
	return d
}

// inbox returns the last token of a reply's subject and where those replies arrive.
func (d *director) inbox(length int) (token string, replies <-chan answer, forget func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.requests++
	token = fmt.Sprintf("request-%d", d.requests)
	// A forgotten inbox is no longer read, so that it must have room for all.
	all := make(chan answer, length)
	d.waiting[token] = all
	return token, all, func() {
		d.mu.Lock()
		delete(d.waiting, token)
		d.mu.Unlock()
	}
}

func (d *director) send(id, token, method string, arguments ...any) {
	d.t.Helper()
	err := d.conn.Publish("agent."+id, testnats.Envelope(method, "director.herd."+id+"."+token, arguments...))
	if err != nil {
		d.t.Fatal(err)
	}
}

// patience bounds the wait for agents; only a test that fails waits for so long.
const patience = 30 * time.Minute

// pings asks all agents, those that are silent again and again, until each has answered; it returns how long after
// begin each did.
func (d *director) pings(ids []string, begin time.Time) map[string]time.Duration {
	d.t.Helper()
	silent, after := map[string]bool{}, map[string]time.Duration{}
	for _, id := range ids {
		silent[id] = true
	}
	deadline := time.After(patience)
	for len(silent) > 0 {
		token, replies, forget := d.inbox(len(ids))
		for id := range silent {
			d.send(id, token, "ping")
		}
		// A round for 10,000 agents is not to keep the processors busy that the agents need.
		next := time.After(50*time.Millisecond + time.Duration(len(silent))*100*time.Microsecond)
	round:
		for len(silent) > 0 {
			select {
			case a := <-replies:
				if silent[a.agent] {
					delete(silent, a.agent)
					after[a.agent] = a.at.Sub(begin)
				}
			case <-next:
				break round
			case <-deadline:
				d.t.Fatalf("%d of %d agents do not answer", len(silent), len(ids))
			}
		}
		forget()
	}
	return after
}

// longest is the last of some answers.
func longest(after map[string]time.Duration) (last time.Duration) {
	for _, d := range after {
		last = max(last, d)
	}
	return last
}

// inFlight is the number of requests that a Director has under way at a time: its max_threads.
const inFlight = 32

// each sends a request to all agents, some at a time, and wants the same reply from all. The argument is made for each.
func (d *director) each(ids []string, method, want string, argument func(id string) any) {
	d.t.Helper()
	token, replies, forget := d.inbox(len(ids))
	defer forget()
	deadline := time.After(patience)
	for asked, answered := 0, 0; answered < len(ids); {
		for ; asked < len(ids) && asked-answered < inFlight; asked++ {
			d.send(ids[asked], token, method, argument(ids[asked]))
		}
		select {
		case a := <-replies:
			if string(a.data) != want {
				d.t.Fatalf("%s of %s: %s", method, a.agent, a.data)
			}
			answered++
		case <-deadline:
			d.t.Fatalf("%s: %d of %d agents have answered", method, answered, len(ids))
		}
	}
}

// rotation is an agent's new certificate, as update_settings has it.
func (h *herd) rotation(ca *testca.CA, trusted []byte, id string) any {
	h.t.Helper()
	pair := must[testca.Pair](h.t)(h.cluster.naming.certificate(ca, testca.AgentName(id)))
	var u update
	u.MBus.Cert.CA, u.MBus.Cert.Certificate = string(trusted), string(pair.Certificate)
	u.MBus.Cert.PrivateKey = string(pair.PrivateKey)
	return u
}

// monitor is a Health Monitor: it notes how long agents were silent.
type monitor struct {
	mu    sync.Mutex // guards the fields below
	last  map[string]time.Time
	beats int
	gap   time.Duration // the longest between two heartbeats of an agent
}

func (c *cluster) monitor() *monitor {
	c.t.Helper()
	m := &monitor{last: map[string]time.Time{}}
	must[*nats.Subscription](c.t)(c.connect(testca.HealthMonitorName).Subscribe("hm.agent.heartbeat.*",
		func(msg *nats.Msg) {
			id := msg.Subject[strings.LastIndexByte(msg.Subject, '.')+1:]
			if !json.Valid(msg.Data) {
				return
			}
			m.mu.Lock()
			defer m.mu.Unlock()
			now := time.Now()
			if last, ok := m.last[id]; ok {
				m.gap = max(m.gap, now.Sub(last))
			}
			m.last[id] = now
			m.beats++
		}))
	return m
}

// seen returns the number of agents that sent a heartbeat, the number of heartbeats, and the longest gap between two
// of one agent.
func (m *monitor) seen() (agents, beats int, gap time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.last), m.beats, m.gap
}
