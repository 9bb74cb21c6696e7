package natsbus

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// ProbeStep is a step on the way to a subscription, in the order in which they are taken.
type ProbeStep string

// The steps of a probe.
const (
	ProbeDNS           ProbeStep = "DNS"
	ProbeTCP           ProbeStep = "TCP"
	ProbeGreeting      ProbeStep = "greeting" // a NATS server speaks first
	ProbeTLS           ProbeStep = "TLS"
	ProbeAuthorization ProbeStep = "authorization"
	ProbeSubscription  ProbeStep = "subscription"
)

// Probed is how far a probe of one server came.
type Probed struct {
	Server    string // host:port
	Addresses []netip.Addr
	// Failed is the step that failed with Err; empty if all steps passed.
	Failed ProbeStep
	Err    error
	// Certificate is the server's, verified or not; nil if TLS did not come so far.
	Certificate *x509.Certificate
}

// Probe connects to each server as the agent would, subscribes to the agent's subject, and
// disconnects. A running agent is not disturbed: requests that arrive meanwhile are ignored here.
// The error is for an identity that cannot be used at all.
func Probe(ctx context.Context, agentID string, id Identity, timeout time.Duration) ([]Probed, error) {
	servers, err := parseServers(id.URLs)
	if err != nil {
		return nil, err
	}
	config, err := tlsConfig(id)
	if err != nil {
		return nil, err
	}
	found := make([]Probed, len(servers))
	var all sync.WaitGroup
	for i, server := range servers {
		all.Go(func() { found[i] = probe(ctx, agentID, server, config, timeout) })
	}
	all.Wait()
	return found, nil
}

func probe(ctx context.Context, agentID string, server *url.URL, config *tls.Config, timeout time.Duration) Probed {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	dial := &probeDialer{ctx: ctx, failed: ProbeDNS}
	p := Probed{Server: server.Host}
	var encrypted atomic.Bool
	config = config.Clone()
	named := config.VerifyConnection
	config.VerifyConnection = func(state tls.ConnectionState) error {
		p.Certificate = state.PeerCertificates[0]
		if err := named(state); err != nil {
			return err
		}
		encrypted.Store(true)
		return nil
	}
	nc, err := nats.Connect(server.String(), nats.Name(agentID), nats.Secure(config), nats.NoReconnect(), nats.IgnoreDiscoveredServers(),
		nats.SkipHostLookup(), nats.SetCustomDialer(dial), nats.Timeout(timeout),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})) // else the library prints them
	p.Addresses = dial.addresses
	if err != nil {
		p.Failed, p.Err = dial.step(err, encrypted.Load())
		var unverified *tls.CertificateVerificationError
		if errors.As(p.Err, &unverified) && len(unverified.UnverifiedCertificates) > 0 {
			p.Certificate = unverified.UnverifiedCertificates[0]
		}
		return p
	}
	defer nc.Close()
	if _, err = nc.SubscribeSync("agent." + agentID); err == nil {
		err = nc.FlushWithContext(ctx) // answered after a refusal of the subscription
	}
	if last := nc.LastError(); err == nil && errors.Is(last, nats.ErrPermissionViolation) {
		err = last
	}
	if err != nil {
		p.Failed, p.Err = ProbeSubscription, err
	}
	return p
}

// probeDialer connects to the first address that answers, and remembers how far that came.
type probeDialer struct {
	ctx       context.Context
	addresses []netip.Addr
	failed    ProbeStep // in which Dial failed; empty once connected
	err       error     // of Dial; the library does not return it for a refused connection
	conn      *greetedConn
}

// Dial is called by the library.
func (d *probeDialer) Dial(network, address string) (net.Conn, error) {
	conn, err := d.dial(network, address)
	d.err = err
	return conn, err
}

func (d *probeDialer) dial(network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if d.addresses, err = net.DefaultResolver.LookupNetIP(d.ctx, "ip", host); err != nil {
		return nil, err
	}
	d.failed = ProbeTCP
	var failed []error
	for _, a := range d.addresses {
		conn, err := (&net.Dialer{Timeout: dialTime}).DialContext(d.ctx, network, net.JoinHostPort(a.Unmap().String(), port))
		if err == nil {
			d.failed, d.conn = "", &greetedConn{Conn: conn}
			return d.conn, nil
		}
		failed = append(failed, err)
	}
	return nil, errors.Join(failed...)
}

// step tells which step an error of the library belongs to.
func (d *probeDialer) step(err error, encrypted bool) (ProbeStep, error) {
	var peer *net.OpError
	switch {
	case d.failed != "":
		return d.failed, d.err
	case refused(err):
		return ProbeAuthorization, err
	case errors.As(err, &peer) && peer.Op == "remote error", errors.Is(err, nats.ErrTLS):
		// An alert of TLS, or a connection that is closed before it arrives. With TLS 1.3 the server looks at the client's certificate after the client's handshake is over.
		return ProbeTLS, fmt.Errorf("the server refuses the agent's certificate: %w", err)
	case !d.conn.greeted.Load():
		return ProbeGreeting, err
	case !encrypted:
		return ProbeTLS, err
	}
	return ProbeAuthorization, err
}

// greetedConn remembers whether the peer has sent anything.
type greetedConn struct {
	net.Conn
	greeted atomic.Bool
}

func (c *greetedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.greeted.Store(true)
	}
	return n, err
}
