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

// Limits of connections that have not shown the password. A caller needs one or two; those that have shown it
// do not count.
const (
	maxGuestsPerPeer = 64
	maxGuests        = 2048
)

// guests are the connections that have not shown the password, by peer. A new one always gets in: the
// oldest of its own peer makes room, and when all places are taken the oldest of the peer that has most.
type guests struct {
	perPeer, total int

	mu    sync.Mutex
	peers map[string]*list.List // of *guest, oldest first
	count int
}

func newGuests() *guests {
	return &guests{perPeer: maxGuestsPerPeer, total: maxGuests, peers: map[string]*list.List{}}
}

// guest is one connection. Until it is admitted it may be closed at any time.
type guest struct {
	net.Conn
	all  *guests
	peer string
	at   *list.Element // nil once admitted or closed; guarded by all.mu
	// closed ends what is done for the connection: net/http does not see that it was closed while the body of a
	// request has not been read.
	closed    chan struct{}
	closeOnce sync.Once
}

// add counts a connection and makes room for it.
func (g *guests) add(conn net.Conn) *guest {
	c := &guest{Conn: conn, all: g, peer: peerName(conn), closed: make(chan struct{})}
	g.mu.Lock()
	of := g.peers[c.peer]
	if of == nil {
		of = list.New()
		g.peers[c.peer] = of
	}
	c.at = of.PushBack(c)
	g.count++
	var evicted *guest
	switch {
	case of.Len() > g.perPeer:
		evicted = of.Front().Value.(*guest)
	case g.count > g.total:
		evicted = g.largest().Front().Value.(*guest)
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
func (g *guests) largest() (most *list.List) {
	for _, of := range g.peers {
		if most == nil || of.Len() > most.Len() {
			most = of
		}
	}
	return most
}

// remove forgets a connection; the caller holds mu.
func (g *guests) remove(c *guest) {
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

// admit takes a connection that has shown the password out of the count.
func (c *guest) admit() {
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	c.all.remove(c)
}

// Close forgets the connection and closes it.
func (c *guest) Close() error {
	c.admit()
	c.closeOnce.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// wait lets time pass, unless the connection is closed or ctx ends before.
func (c *guest) wait(ctx context.Context, d time.Duration) {
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

// guestListener counts what it accepts.
type guestListener struct {
	net.Listener
	guests *guests
}

func (l guestListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.guests.add(conn), nil
}

// peerName is what limits and delays are counted by: the address, for IPv6 its network, since a host has
// as many addresses there as it likes. On this machine everything has one address, including tunnels that end
// here, so there it is the user.
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
