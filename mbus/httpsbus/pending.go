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

// Limits of connections that have not authenticated. A caller needs one or two; authenticated connections do
// not count.
const (
	maxPendingPerPeer = 64
	maxPending        = 2048
)

// pendingConns are the connections that have not authenticated, by peer. A new one is always accepted:
// above the limit of its peer the oldest of that peer is closed, above the limit of all the oldest of the
// peer with most connections.
type pendingConns struct {
	perPeer, total int

	mu    sync.Mutex
	peers map[string]*list.List // of *pendingConn, oldest first
	count int
}

func newPendingConns() *pendingConns {
	return &pendingConns{perPeer: maxPendingPerPeer, total: maxPending, peers: map[string]*list.List{}}
}

// pendingConn is one connection. Until it has authenticated it may be closed at any time.
type pendingConn struct {
	net.Conn
	all  *pendingConns
	peer string
	at   *list.Element // nil once admitted or closed; guarded by all.mu
	// closed ends what is done for the connection: net/http does not see that it was closed while the body of a
	// request has not been read.
	closed    chan struct{}
	closeOnce sync.Once
}

// add counts a connection, and closes another one if there are too many.
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

// largest is the peer with most connections; the caller holds mu.
func (g *pendingConns) largest() (most *list.List) {
	for _, of := range g.peers {
		if most == nil || of.Len() > most.Len() {
			most = of
		}
	}
	return most
}

// remove takes a connection out of the count; the caller holds mu.
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

// admit takes a connection that has authenticated out of the count.
func (c *pendingConn) admit() {
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	c.all.remove(c)
}

// Close takes the connection out of the count and closes it.
func (c *pendingConn) Close() error {
	c.admit()
	c.closeOnce.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// wait sleeps until d has passed, the connection is closed or ctx ends.
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

// pendingListener counts what it accepts.
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

// peerName is the key of limits and delays: the IPv4 address, or the IPv6 /64, in which a host can have any
// number of addresses. All local callers, including tunnels that end on this machine, share one address, so
// for them it is the user id.
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
