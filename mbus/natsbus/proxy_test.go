package natsbus

import (
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/internal/secret"
	"cambium/internal/testca"
	"cambium/internal/testnats"
)

// proxy is the network between agent and server, which can drop all packets.
type proxy struct {
	listener net.Listener
	target   string
	mu       sync.Mutex
	frozen   chan struct{} // closed when traffic flows
}

func newProxy(t *testing.T, listener net.Listener, target string) *proxy {
	p := &proxy{listener: listener, target: target, frozen: make(chan struct{})}
	close(p.frozen)
	var group sync.WaitGroup
	group.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			group.Go(func() { p.serve(&group, conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		p.freeze(false)
	})
	return p
}

func (p *proxy) serve(group *sync.WaitGroup, conn net.Conn) {
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		_ = conn.Close()
		return
	}
	group.Go(func() { p.copy(server, conn) })
	p.copy(conn, server)
}

func (p *proxy) copy(to, from net.Conn) {
	defer func() {
		_ = to.Close()
		_ = from.Close()
	}()
	buffer := make([]byte, 4<<10)
	for {
		n, err := from.Read(buffer)
		p.mu.Lock()
		flowing := p.frozen
		p.mu.Unlock()
		<-flowing
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (p *proxy) freeze(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.frozen:
		if on {
			p.frozen = make(chan struct{})
		}
	default:
		if !on {
			close(p.frozen)
		}
	}
}

func (p *proxy) url(t *testing.T) secret.URL {
	t.Helper()
	return secret.NewURL(fmt.Sprintf("nats://%s", p.listener.Addr()))
}

// A network that swallows everything is noticed by pings, and the agent comes back when it
// heals.
func TestStalledNetwork(t *testing.T) {
	quick(t)
	d := testnats.Start(t, nil, agentID)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := newProxy(t, l, fmt.Sprintf("127.0.0.1:%d", d.Port()))
	id := identity(d, testca.AgentName(agentID))
	id.URLs = []secret.URL{p.url(t)}
	b := start(t, d, Options{Identity: id})
	eventually.True(t, "connected", b.Connected)
	r := d.Director()
	for range 2 {
		p.freeze(true)
		eventually.True(t, "loss noticed", func() bool { return !b.Connected() })
		p.freeze(false)
		eventually.True(t, "connected again", b.Connected)
		if got := r.Call(agentID, "ping"); got != pongReply {
			t.Fatalf("got %s", got)
		}
	}
}

// A server that takes its time over every byte is slow, not lost.
func TestSlowNetwork(t *testing.T) {
	d := testnats.Start(t, nil, agentID)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := newProxy(t, l, fmt.Sprintf("127.0.0.1:%d", d.Port()))
	id := identity(d, testca.AgentName(agentID))
	id.URLs = []secret.URL{p.url(t)}
	stop := make(chan struct{})
	stuttering := make(chan struct{})
	go func() { // 100 ms stand-still, 10 ms flow
		defer close(stuttering)
		for {
			p.freeze(true)
			time.Sleep(100 * time.Millisecond)
			p.freeze(false)
			select {
			case <-time.After(10 * time.Millisecond):
			case <-stop:
				return
			}
		}
	}()
	connects := make(chan struct{}, 10)
	b := start(t, d, Options{Identity: id, OnConnect: func(string) { connects <- struct{}{} }})
	eventually.True(t, "connected", b.Connected)
	r := d.Director()
	for range 5 {
		if got := r.Call(agentID, "ping"); got != pongReply {
			t.Fatalf("got %s", got)
		}
	}
	close(stop)
	<-stuttering
	if len(connects) != 1 {
		t.Errorf("connected %d times, want once", len(connects))
	}
}
