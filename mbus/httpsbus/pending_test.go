package httpsbus

import (
	"crypto/tls"
	"fmt"
	"net"
	"runtime"
	"testing"

	"cambium/internal/eventually"
)

// from is a connection whose peer is given.
type from struct {
	net.Conn
	address string
	closed  bool
}

func (f *from) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(f.address), Port: 1} }
func (f *from) LocalAddr() net.Addr  { return &net.TCPAddr{IP: net.ParseIP("192.0.2.1"), Port: 6868} }
func (f *from) Close() error         { f.closed = true; return nil }

func TestPendingConns(t *testing.T) {
	g := newPendingConns()
	g.perPeer, g.total = 3, 5
	connect := func(address string) (*from, *pendingConn) {
		f := &from{address: address}
		return f, g.add(f)
	}
	first, _ := connect("198.51.100.1")
	second, admitted := connect("198.51.100.1")
	admitted.admit()
	connect("198.51.100.1")
	connect("198.51.100.1")
	if first.closed || second.closed {
		t.Fatal("closed although there is room")
	}
	connect("198.51.100.1")
	if !first.closed {
		t.Error("the oldest of the peer was not closed")
	}
	if second.closed {
		t.Error("an authenticated connection was closed")
	}
	// Above the total limit, a new connection closes the oldest one of the peer with most.
	connect("198.51.100.2")
	other, _ := connect("198.51.100.2")
	third, late := connect("198.51.100.3")
	if third.closed || other.closed {
		t.Error("a connection of a peer with fewer connections was closed")
	}
	if g.count != 5 || g.peers["198.51.100.1"].Len() != 2 {
		t.Errorf("%d connections, %d of the largest peer; want 5 and 2", g.count, g.peers["198.51.100.1"].Len())
	}
	for range 2 {
		if err := late.Close(); err != nil || g.count != 4 {
			t.Errorf("%d connections after one was closed (%v), want 4", g.count, err)
		}
	}
	// A host has a whole network of IPv6 addresses.
	one, _ := connect("2001:db8::1")
	for _, address := range []string{"2001:db8::2", "2001:db8::3", "2001:db8::4"} {
		connect(address)
	}
	if !one.closed {
		t.Error("addresses of one IPv6 network count as several peers")
	}
}

func TestLocalPeersAreUsers(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	client, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if got := peerName(conn); len(got) < 5 || got[:4] != "uid " {
		t.Errorf("got %q, want a user", got)
	}
}

// TestEvictedGuessesAreNotAwaited: a wrong password is answered late, up to half a minute. A caller that announces a body
// and never sends it keeps net/http from seeing that its connection has made room for another; what was done for it must
// end all the same, or each guess would hold memory for that long.
func TestEvictedGuessesAreNotAwaited(t *testing.T) {
	s := start(t, nil, nil)
	before := runtime.NumGoroutine()
	const guesses = 4 * maxPendingPerPeer
	for n := range guesses {
		conn, err := tls.Dial("tcp", s.Address().String(), &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		if _, err := fmt.Fprintf(conn, "POST /agent HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\nAuthorization: Basic %d\r\n\r\n", n); err != nil {
			t.Fatal(err)
		}
	}
	// A connection has one goroutine that serves it, and for moments another one.
	const most = 2*maxPendingPerPeer + 20
	eventually.Nil(t, "the end of what was done for the evicted", func() error {
		if now := runtime.NumGoroutine() - before; now > most {
			return fmt.Errorf("%d goroutines for %d guesses, want at most %d", now, guesses, most)
		}
		return nil
	})
	if response, _ := s.do(t, "POST", "/agent", "s3cret", `{"method":"ping"}`); response.StatusCode != 200 {
		t.Errorf("the right password is answered with %d", response.StatusCode)
	}
}
