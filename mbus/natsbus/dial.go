package natsbus

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	dialTime    = 2 * time.Second
	resolveTime = 5 * time.Second
	// greetTime bounds the wait for the server's first byte, which a NATS server sends without a request. A server that
	// accepts connections but sends nothing must not keep the agent from trying the others.
	greetTime = 2 * time.Second
)

// resolve returns the addresses of a host name.
func resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
}

// dialer connects to the first address of a server that greets. It resolves the name at each attempt.
type dialer struct {
	ctx    context.Context
	lookup func(ctx context.Context, host string) ([]netip.Addr, error)
	// resolved is called with the addresses before the first is tried.
	resolved func(server string, addresses []netip.AddrPort)

	step    ProbeStep // the step that failed; "" once the server has greeted
	err     error     // the reason; the library does not return it if the connection is refused
	release func() bool
}

// connect tries to log in at one server, for at most timeout or until the dialer's context ends.
func (d *dialer) connect(server *url.URL, agentID string, config *tls.Config, timeout time.Duration,
	more ...nats.Option) (*nats.Conn, error) {
	d.release = func() bool { return true }
	nc, err := nats.Connect(server.String(), append(more, nats.Name(agentID), nats.Secure(config), nats.NoReconnect(),
		nats.IgnoreDiscoveredServers(), nats.SkipHostLookup(), nats.SetCustomDialer(d), nats.Timeout(timeout))...)
	d.release()
	if err != nil && d.step != "" {
		return nil, d.err
	}
	return nc, err
}

// subscribe returns when the server has accepted the subscription. A server reports a refusal before it answers the
// flush.
func subscribe(ctx context.Context, nc *nats.Conn, agentID string,
	receive nats.MsgHandler) (*nats.Subscription, error) {
	sub, err := nc.Subscribe("agent."+agentID, receive)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	if err := nc.FlushWithContext(ctx); err != nil {
		return nil, err
	}
	if err := nc.LastError(); errors.Is(err, nats.ErrPermissionViolation) {
		return nil, err
	}
	return sub, nil
}

// Dial implements nats.CustomDialer.
func (d *dialer) Dial(network, address string) (conn net.Conn, err error) {
	conn, d.err = d.dial(network, address)
	return conn, d.err
}

func (d *dialer) dial(network, address string) (net.Conn, error) {
	d.step = ProbeDNS
	host, portText, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	port, err := net.LookupPort(network, portText)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(d.ctx, resolveTime)
	found, err := d.lookup(ctx, host)
	cancel()
	if err != nil {
		return nil, err
	}
	var addresses []netip.AddrPort
	for _, ip := range found {
		addresses = append(addresses, netip.AddrPortFrom(ip.Unmap(), uint16(port)))
	}
	d.resolved(address, addresses)
	var failed []error
	for _, a := range addresses {
		conn, err := d.dialAddress(a)
		if err == nil {
			d.step = ""
			return conn, nil
		}
		failed = append(failed, err)
	}
	return nil, errors.Join(failed...)
}

// dialAddress connects, and waits for the server's greeting. If the context ends before release is called, the
// connection is closed, because the library's handshake takes no context.
func (d *dialer) dialAddress(a netip.AddrPort) (net.Conn, error) {
	d.step = ProbeTCP
	conn, err := (&net.Dialer{Timeout: dialTime}).DialContext(d.ctx, "tcp", a.String())
	if err != nil {
		return nil, err
	}
	d.step = ProbeGreeting
	d.release = context.AfterFunc(d.ctx, func() { _ = conn.Close() })
	c := &greetedConn{Conn: conn, first: make([]byte, 1)}
	_ = conn.SetReadDeadline(time.Now().Add(greetTime)) // fails only on a closed connection, as Read does
	if _, err := conn.Read(c.first); err != nil {
		d.release()
		_ = conn.Close()
		if d.ctx.Err() != nil {
			err = context.Cause(d.ctx)
		}
		return nil, fmt.Errorf("the server did not send a greeting: %w", err)
	}
	_ = conn.SetReadDeadline(time.Time{})
	return c, nil
}

// greetedConn returns the first byte, which was already read, once more.
type greetedConn struct {
	net.Conn
	first []byte
}

func (c *greetedConn) Read(b []byte) (int, error) {
	if len(c.first) > 0 {
		n := copy(b, c.first)
		c.first = c.first[n:]
		return n, nil
	}
	return c.Conn.Read(b)
}
