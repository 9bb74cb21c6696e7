package testnats

import (
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"
)

// Link forwards connections between clients and a server, in user space. It can stall, delay and lose packets, and be
// cut.
type Link struct {
	listener net.Listener
	target   string
	group    sync.WaitGroup

	// mu guards the fields below.
	mu      sync.Mutex
	flowing chan struct{} // closed while traffic flows
	delay   time.Duration
	loss    float64
	conns   map[net.Conn]bool
	closed  bool
}

// retransmission is the time after which TCP sends a lost segment again. Each further loss doubles it.
const retransmission = 200 * time.Millisecond

// NewLink forwards the connections of a listener to a server.
func NewLink(t testing.TB, listener net.Listener, target string) *Link {
	l := &Link{listener: listener, target: target, flowing: make(chan struct{}), conns: map[net.Conn]bool{}}
	close(l.flowing)
	l.group.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			l.group.Go(func() { l.serve(conn) })
		}
	})
	t.Cleanup(l.Close)
	return l
}

// Listen creates a link that listens on an address such as 127.0.0.1:0.
func Listen(t testing.TB, address, target string) *Link {
	t.Helper()
	return NewLink(t, must[net.Listener](t)(net.Listen("tcp", address)), target)
}

// Address returns the host:port on which the link listens.
func (l *Link) Address() string { return l.listener.Addr().String() }

// Freeze stops all traffic or lets it continue. The kernel still accepts connections, so the server seems to run but
// does not answer.
func (l *Link) Freeze(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.flowing:
		if on {
			l.flowing = make(chan struct{})
		}
	default:
		if !on {
			close(l.flowing)
		}
	}
}

// Shape delays each packet, and loses a share of them, which TCP sends again.
func (l *Link) Shape(delay time.Duration, loss float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delay, l.loss = delay, loss
}

// Reset closes all connections.
func (l *Link) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for conn := range l.conns {
		_ = conn.Close()
	}
}

// Close closes the link. Further connections are refused.
func (l *Link) Close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	_ = l.listener.Close()
	l.Freeze(false)
	l.Reset()
	l.group.Wait()
}

// add records a connection for Reset. It returns false if the link is closed.
func (l *Link) add(conn net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[conn] = true
	return !l.closed
}

func (l *Link) remove(conn net.Conn) {
	_ = conn.Close()
	l.mu.Lock()
	delete(l.conns, conn)
	l.mu.Unlock()
}

func (l *Link) serve(conn net.Conn) {
	defer l.remove(conn)
	if !l.add(conn) {
		return
	}
	server, err := net.Dial("tcp", l.target)
	if err != nil {
		return
	}
	defer l.remove(server)
	if !l.add(server) {
		return
	}
	var back sync.WaitGroup
	back.Go(func() { l.forward(server, conn) })
	l.forward(conn, server)
	back.Wait()
}

func (l *Link) forward(to, from net.Conn) {
	defer func() {
		_ = to.Close()
		_ = from.Close()
	}()
	packet := make([]byte, 4<<10)
	for {
		n, err := from.Read(packet)
		l.mu.Lock()
		flowing, wait, loss := l.flowing, l.delay, l.loss
		l.mu.Unlock()
		for lost := retransmission; rand.Float64() < loss; lost *= 2 {
			wait += lost
		}
		if wait > 0 {
			time.Sleep(wait)
		}
		<-flowing
		if _, failed := to.Write(packet[:n]); failed != nil || err != nil {
			return
		}
	}
}
