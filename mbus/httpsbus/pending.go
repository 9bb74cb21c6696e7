package httpsbus

import (
	"container/list"
	"context"
	"net"
	"strconv"
	"sync"
	"time"

	"cambium/internal/sockowner"
)

// Limits for connections that have not authenticated. A caller needs one or two. Authenticated connections do not
// count.
const (
	maxPendingPerPeer = 64
	maxPending        = 2048
)

// pendingConns tracks the connections of each peer that have not authenticated. It always accepts a new one. If the
// peer then has too many, its oldest one is closed. If all peers together have too many, the oldest one of the peer
// with the most is closed.
type pendingConns struct {
	perPeer, total int

	mu    sync.Mutex
	peers map[string]*list.List // of *pendingConn, oldest first
	count int
}

func newPendingConns() *pendingConns {
	return &pendingConns{perPeer: maxPendingPerPeer, total: maxPending, peers: map[string]*list.List{}}
}

// pendingConn is a tracked connection. It may be closed at any time until it has authenticated.
type pendingConn struct {
	net.Conn
	all  *pendingConns
	peer string
	at   *list.Element // nil once admitted or closed; guarded by all.mu
	// closed is closed with the connection and stops work for it. net/http does not notice the end of a connection
	// while the body of a request has not been read.
	closed    chan struct{}
	closeOnce sync.Once
}

// add tracks a connection, and closes another one if there are too many.
func (g *pendingConns) add(conn net.Conn) *pendingConn {
	c := &pendingConn{Conn: conn, all: g, peer: peerName(conn), closed: make(chan struct{})}
	g.mu.Lock()
	of := g.peers[c.peer]
	if of == nil {
		of = list.New()
		g.peers[c.peer] = of
	}
	c.at = of.PushBack(c)
	g.count++
	var evicted *pendingConn
	switch {
	case of.Len() > g.perPeer:
		evicted = of.Front().Value.(*pendingConn)
	case g.count > g.total:
		evicted = g.largest().Front().Value.(*pendingConn)
	}
	if evicted != nil {
		g.remove(evicted)
	}
	g.mu.Unlock()
	if evicted != nil {
		_ = evicted.Close() // its reader sees the end
	}
	return c
}

// largest returns the connections of the peer that has the most. The caller holds mu.
func (g *pendingConns) largest() (most *list.List) {
	for _, of := range g.peers {
		if most == nil || of.Len() > most.Len() {
			most = of
		}
	}
	return most
}

// remove stops tracking a connection. The caller holds mu.
func (g *pendingConns) remove(c *pendingConn) {
	if c.at == nil {
		return
	}
	of := g.peers[c.peer]
	of.Remove(c.at)
	c.at = nil
	g.count--
	if of.Len() == 0 {
		delete(g.peers, c.peer)
	}
}

// admit stops tracking a connection because it has authenticated.
func (c *pendingConn) admit() {
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	c.all.remove(c)
}

// Close closes the connection and stops tracking it.
func (c *pendingConn) Close() error {
	c.admit()
	c.closeOnce.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// wait returns when d has passed, the connection is closed, or ctx ends.
func (c *pendingConn) wait(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.closed:
	case <-ctx.Done():
	}
}

// pendingListener tracks the connections that it accepts.
type pendingListener struct {
	net.Listener
	pendingConns *pendingConns
}

func (l pendingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.pendingConns.add(conn), nil
}

// peerName returns the key for limits and delays: the IPv4 address, or the IPv6 /64, since a host can have any number
// of addresses in it. Local callers, including tunnels that end on this machine, all have the same address, so their
// key is the user id.
func peerName(conn net.Conn) string {
	remote, ok := conn.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return conn.RemoteAddr().String()
	}
	address := remote.AddrPort().Addr().Unmap()
	local, _ := conn.LocalAddr().(*net.TCPAddr)
	if address.IsLoopback() || local != nil && local.AddrPort().Addr().Unmap() == address {
		if uid, err := (sockowner.Table{}).Peer(conn); err == nil {
			return "uid " + strconv.FormatUint(uint64(uid), 10)
		}
	}
	if address.Is6() {
		if network, err := address.Prefix(64); err == nil {
			return network.String()
		}
	}
	return address.String()
}
