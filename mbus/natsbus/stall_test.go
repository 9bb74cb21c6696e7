package natsbus

import (
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/internal/secret"
	"cambium/internal/testca"
	"cambium/internal/testnats"
)

// overLink is an identity whose way to the server is a link.
func overLink(t *testing.T, d *testnats.Deployment) (*testnats.Link, Identity) {
	t.Helper()
	l := testnats.Listen(t, "127.0.0.1:0", d.Address())
	id := identity(d, testca.AgentName(agentID))
	id.URLs = []secret.URL{secret.NewURL("nats://" + l.Address())}
	return l, id
}

// A network that swallows everything is noticed by pings, and the agent comes back when it
// heals.
func TestStalledNetwork(t *testing.T) {
	d := testnats.Start(t, nil, agentID)
	l, id := overLink(t, d)
	b := start(t, d, Options{Identity: id, pace: quick()})
	eventually.True(t, "connected", b.Connected)
	r := d.Director()
	for range 2 {
		l.Freeze(true)
		eventually.True(t, "loss noticed", func() bool { return !b.Connected() })
		l.Freeze(false)
		eventually.True(t, "connected again", b.Connected)
		if got := r.Call(agentID, "ping"); got != pongReply {
			t.Fatalf("got %s", got)
		}
	}
}

// A server that takes its time over every byte is slow, not lost.
func TestSlowNetwork(t *testing.T) {
	d := testnats.Start(t, nil, agentID)
	l, id := overLink(t, d)
	l.Shape(100*time.Millisecond, 0)
	connects := make(chan struct{}, 10)
	b := start(t, d, Options{Identity: id, OnConnect: func(string) { connects <- struct{}{} }})
	eventually.True(t, "connected", b.Connected)
	r := d.Director()
	for range 5 {
		if got := r.Call(agentID, "ping"); got != pongReply {
			t.Fatalf("got %s", got)
		}
	}
	if len(connects) != 1 {
		t.Errorf("connected %d times, want once", len(connects))
	}
}

// TestALostServerIsTriedLast: with several servers, the next attempt goes to another one.
func TestALostServerIsTriedLast(t *testing.T) {
	d := testnats.Start(t, nil, agentID)
	links := map[string]*testnats.Link{}
	var id Identity
	for range 3 {
		l, one := overLink(t, d)
		links[l.Address()] = l
		one.URLs = append(id.URLs, one.URLs...)
		id = one
	}
	connects := make(chan string, 10)
	start(t, d, Options{Identity: id, pace: quick(), OnConnect: func(server string) { connects <- server }})
	at := <-connects
	for range 10 {
		links[at].Reset()
		next := <-connects
		if next == at {
			t.Fatalf("the agent went back to %s", at)
		}
		at = next
	}
}
