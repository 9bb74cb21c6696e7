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

// ProbeStep is a step of connecting and subscribing.
type ProbeStep string

// The steps of a probe, in order.
const (
	ProbeDNS           ProbeStep = "DNS"
	ProbeTCP           ProbeStep = "TCP"
	ProbeGreeting      ProbeStep = "greeting" // a NATS server speaks first
	ProbeTLS           ProbeStep = "TLS"
	ProbeAuthorization ProbeStep = "authorization"
	ProbeSubscription  ProbeStep = "subscription"
)

// Probed is the result of probing one server.
type Probed struct {
	Server    string // host:port
	Password  bool   // whether the URL has one
	Addresses []netip.Addr
	// Failed is the step that failed with Err, or "" if all steps passed.
	Failed ProbeStep
	Err    error
	// Timeout means that the step failed because no answer came in time.
	Timeout bool
	// Certificate is the server's certificate, verified or not; nil if the TLS handshake did not get that far.
	Certificate *x509.Certificate
}

// Probe connects to each server as the agent would, subscribes to the agent's subject, and disconnects. It does not
// disturb a running agent: it ignores the requests that it receives meanwhile. The error reports an identity that
// cannot be used at all.
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
	_, password := server.User.Password()
	p := Probed{Server: server.Host, Password: password}
	dial := &dialer{ctx: ctx, lookup: resolve, resolved: func(_ string, addresses []netip.AddrPort) {
		for _, a := range addresses {
			p.Addresses = append(p.Addresses, a.Addr())
		}
	}}
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
	nc, err := dial.connect(server, agentID, config, timeout,
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})) // else the library prints them
	if err != nil {
		p.Failed, p.Err = failedStep(dial.step, err, encrypted.Load()), explain(err)
		var network net.Error
		p.Timeout = errors.As(err, &network) && network.Timeout() || errors.Is(err, context.DeadlineExceeded)
		// The end of ctx closes the connection: whether a read fails by that or by its own deadline is a matter of
		// luck.
		if ctx.Err() != nil && errors.Is(err, net.ErrClosed) {
			p.Timeout, p.Err = true, fmt.Errorf("no answer within %s", timeout)
		}
		var unverified *tls.CertificateVerificationError
		if errors.As(err, &unverified) && len(unverified.UnverifiedCertificates) > 0 {
			p.Certificate = unverified.UnverifiedCertificates[0]
		}
		return p
	}
	defer nc.Close()
	if _, err = subscribe(ctx, nc, agentID, func(*nats.Msg) {}); err != nil {
		p.Failed, p.Err = ProbeSubscription, err
	}
	return p
}

// failedStep returns the step in which connect failed. dialed is the step in which the dialer failed.
func failedStep(dialed ProbeStep, err error, encrypted bool) ProbeStep {
	switch {
	case dialed != "":
		return dialed
	case !refused(err) && (!encrypted || tlsAlert(err) || errors.Is(err, nats.ErrTLS)):
		return ProbeTLS
	}
	return ProbeAuthorization
}
