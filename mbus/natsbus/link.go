package natsbus

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"

	"cambium/internal/advice"
	"cambium/internal/retry"
)

const (
	// connectTime covers TLS and log-in; a server that a thousand agents come back to at once
	// needs longer for a handshake than for a dial.
	connectTime  = 10 * time.Second
	closeTimeout = time.Second
	// defaultLimit is the default max_payload of a server, for the time before the first connection.
	defaultLimit = 1 << 20
	// authRetryTime is the period during which a refused log-in is retried about once a second: the server learns
	// of a new agent only at its next synchronization.
	authRetryTime = time.Minute
)

// pace sets the interval of PINGs, which reveal a loss, and the pauses between attempts to connect.
type pace struct {
	// ping is the pause between two PINGs.
	ping time.Duration
	// Full jitter: all agents of a deployment lose their server at the same moment. The last
	// pause spreads a thousand of them over 200 log-ins a second, which a server can serve.
	afterLoss retry.Backoff
	// A booting agent may try to connect before its network is up.
	atFirst   retry.Backoff
	afterAuth retry.Backoff
	// A server with thousands of users takes long for each log-in, and works on those that were given up, too: if all
	// agents came back within seconds, again and again, none would be admitted.
	afterSlow retry.Backoff
	// callersReturn bounds the delay, after the agent's return, until callers come back to a server that was
	// restarted. The Director pauses for half a second between two attempts, and a server drops messages for
	// clients that are not connected.
	callersReturn time.Duration
}

var usual = pace{
	ping:          10 * time.Second,
	afterLoss:     retry.Backoff{Min: 2 * time.Second, Max: 5 * time.Second, Jitter: 1},
	atFirst:       retry.Backoff{Min: 200 * time.Millisecond, Max: 8 * time.Second, Jitter: 1},
	afterAuth:     retry.Backoff{Min: 1500 * time.Millisecond, Max: 1500 * time.Millisecond, Jitter: 2.0 / 3},
	afterSlow:     retry.Backoff{Min: 4 * time.Second, Max: time.Minute, Jitter: 1},
	callersReturn: 2 * time.Second,
}

// allowedMisses is the number of PINGs that may be unanswered when the next is due. A server that vanished without
// closing the connection is noticed within allowedMisses+1 pauses.
const allowedMisses = 2

// link is one identity and its connection, which is reestablished whenever it is lost.
type link struct {
	bus       *Bus
	log       *logrus.Entry
	servers   []*url.URL
	tls       *tls.Config
	cancel    context.CancelFunc
	busCtx    context.Context // of the bus
	ready     chan struct{}   // closed once connected and subscribed
	readyOnce sync.Once
	connected atomic.Bool
	limit     atomic.Int64 // the largest message that the server takes
	outbox

	// Owned by run.
	loggedFailure string
	loggedAt      time.Time

	// mu guards what follows.
	mu        sync.Mutex
	failure   error
	at        string // host:port of the current server
	addresses map[string][]netip.AddrPort
	sub       *nats.Subscription
	conn      *nats.Conn
}

func (b *Bus) newLink(id Identity) (*link, error) {
	servers, err := parseServers(id.URLs)
	if err != nil {
		return nil, err
	}
	config, err := tlsConfig(id)
	if err != nil {
		return nil, advice.With("correct env.bosh.mbus.cert in the settings (written by the Director)", err)
	}
	l := &link{bus: b, log: b.options.Log, servers: servers, tls: config,
		outbox:    outbox{callersReturn: b.pace.callersReturn, log: b.options.Log, delivered: b.options.OnDelivered},
		ready:     make(chan struct{}),
		addresses: map[string][]netip.AddrPort{}}
	l.limit.Store(defaultLimit)
	return l, nil
}

func (l *link) server() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.at
}

func (l *link) lastError() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failure
}

func (l *link) resolved() (all []netip.AddrPort) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, addresses := range l.addresses {
		all = append(all, addresses...)
	}
	return all
}

// pauses decides how long to wait before the next pass over the servers.
type pauses struct {
	pace            pace
	attempt         int
	connectedBefore bool      // there was a connection once
	refusedSince    time.Time // the first of consecutive refusals
	slow            int       // how many passes have failed because servers were slow
}

// connected resets the backoff.
func (p *pauses) connected() { *p = pauses{pace: p.pace, connectedBefore: true} }

// next is called after a pass that failed with err.
func (p *pauses) next(err error, now time.Time) time.Duration {
	if errors.As(err, new(*slow)) {
		p.slow++
		return p.pace.afterSlow.Pause(p.slow - 1)
	}
	if !refused(err) {
		p.refusedSince = time.Time{}
	} else {
		if p.refusedSince.IsZero() {
			p.refusedSince = now
		}
		if now.Sub(p.refusedSince) < authRetryTime {
			p.attempt = 0 // the backoff begins after authRetryTime
			return p.pace.afterAuth.Pause(0)
		}
	}
	p.attempt++
	if p.connectedBefore {
		return p.pace.afterLoss.Pause(p.attempt - 1)
	}
	return p.pace.atFirst.Pause(p.attempt - 1)
}

// run keeps the link connected until ctx ends.
func (l *link) run(ctx context.Context) {
	wait := pauses{pace: l.bus.pace}
	lost := -1
	for {
		var err error
		order := rand.Perm(len(l.servers))
		if i := slices.Index(order, lost); i >= 0 {
			order = append(slices.Delete(order, i, i+1), lost) // the others are more likely to answer
		}
		for _, i := range order {
			var wasConnected bool
			wasConnected, err = l.session(ctx, l.servers[i])
			if ctx.Err() != nil {
				return
			}
			l.bus.failed(l, l.servers[i].Host, err)
			if wasConnected {
				wait.connected()
			}
			// Servers of a cluster have the same users, and as many agents: what one refuses or is too slow for, the
			// others would refuse, too, or be slower still.
			if wasConnected || refused(err) || errors.As(err, new(*slow)) {
				lost = i
				break
			}
		}
		pause := wait.next(err, time.Now())
		l.logFailure(err, pause)
		if retry.Sleep(ctx, pause) != nil {
			return
		}
	}
}

// failureLogInterval is the minimum interval between log entries for the same failure.
const failureLogInterval = time.Minute

// logFailure logs why there is no connection: a new reason at once, the same one at most once per
// failureLogInterval.
func (l *link) logFailure(err error, pause time.Duration) {
	if text := err.Error(); text != l.loggedFailure || time.Since(l.loggedAt) >= failureLogInterval {
		l.loggedFailure, l.loggedAt = text, time.Now()
		l.log.WithError(err).WithField("pause", pause.Round(time.Millisecond).String()).Warn("not connected to nats")
	}
}

// session connects to one server and returns when that connection has ended: whether it was
// usable, and why it ended or could not be made.
func (l *link) session(ctx context.Context, server *url.URL) (wasConnected bool, err error) {
	defer func() {
		l.connected.Store(false)
		l.mu.Lock()
		l.failure, l.conn, l.sub = err, nil, nil
		l.mu.Unlock()
	}()
	closed, begin := make(chan struct{}), time.Now()
	dial := &dialer{ctx: ctx, lookup: l.bus.options.lookup, resolved: func(server string, addresses []netip.AddrPort) {
		l.mu.Lock()
		l.addresses[server] = addresses
		l.mu.Unlock()
		l.bus.beforeConnect(ctx)
	}}
	nc, err := dial.connect(server, l.bus.options.AgentID, l.tls, connectTime,
		nats.PingInterval(l.bus.pace.ping),
		nats.MaxPingsOutstanding(allowedMisses),
		nats.ErrorHandler(l.libraryError),
		nats.ClosedHandler(func(*nats.Conn) { close(closed) }),
	)
	if err != nil {
		return false, late(dial.step == "", time.Since(begin), explain(err))
	}
	defer func() {
		if ctx.Err() != nil {
			// In a rotation replies go out over the other link; only the end of the bus waits for
			// them.
			if l.busCtx.Err() != nil {
				l.bus.unanswered.wait(closeTimeout)
			}
			_ = nc.FlushTimeout(closeTimeout) // best effort: the last replies of a stopping agent
		}
		l.outbox.detach()
		nc.Close()
		// The handler counts as part of this session, so that none outlives Run.
		<-closed
	}()
	sub, err := subscribe(ctx, nc, l.bus.options.AgentID, func(m *nats.Msg) { l.bus.receive(ctx, l, m.Data) })
	if err != nil {
		return false, late(true, time.Since(begin), fmt.Errorf("subscribe: %w", explain(err)))
	}
	l.established(nc, sub, server)
	select {
	case <-ctx.Done():
		return true, context.Cause(ctx)
	case <-closed:
		if err = nc.LastError(); err == nil {
			err = nats.ErrConnectionClosed
		}
		return true, err
	}
}

func (l *link) established(nc *nats.Conn, sub *nats.Subscription, server *url.URL) {
	l.limit.Store(nc.MaxPayload())
	l.mu.Lock()
	l.failure, l.at, l.conn, l.sub = nil, server.Host, nc, sub
	l.mu.Unlock()
	l.outbox.attach(nc)
	l.connected.Store(true)
	l.log.WithField("server", server.Host).Info("connected to nats")
	l.readyOnce.Do(func() { close(l.ready) })
	l.bus.connected(l)
}

// retire stops the link after what its server had already sent has been handled.
func (l *link) retire() {
	l.mu.Lock()
	nc, sub := l.conn, l.sub
	l.mu.Unlock()
	if nc != nil && sub != nil {
		// After the answer to the flush nothing more can arrive, and it is all in the queue of
		// the subscription; draining hands that out.
		done := make(chan struct{})
		sub.SetClosedHandler(func(string) { close(done) })
		if sub.Drain() == nil {
			select {
			case <-done:
			case <-time.After(drainTime):
			}
		}
		_ = nc.FlushTimeout(drainTime) // best effort: what is unconfirmed is sent on the new link
	}
	l.cancel()
}

func (l *link) libraryError(_ *nats.Conn, _ *nats.Subscription, err error) {
	l.log.WithError(err).Warn("nats reported an error")
}

// refused reports errors by which a server says that it does not know this agent (yet).
func refused(err error) bool {
	for _, known := range []error{nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired, nats.ErrPermissionViolation} {
		if errors.Is(err, known) {
			return true
		}
	}
	// While connecting the library passes the server's line on as text.
	return err != nil && strings.Contains(strings.ToLower(err.Error()), "authorization violation")
}

// rejection is an error by which one side rejected the other's identity, with words that say which.
type rejection struct {
	text string
	err  error
}

func (r *rejection) Error() string { return r.text + ": " + r.err.Error() }
func (r *rejection) Unwrap() error { return r.err }

// slow marks the error of a log-in to a server that has greeted, but did not admit the agent in time.
type slow struct{ error }

func (s *slow) Unwrap() error { return s.error }

// late makes err, which ended a log-in that took so long, one of a slow server, if it had greeted and rejected nobody.
// The time tells: a server that is too slow for its own first PING is, for the library, one that breaks the protocol.
func late(greeted bool, took time.Duration, err error) error {
	if !greeted || took < greetTime || errors.As(err, new(*rejection)) {
		return err
	}
	return &slow{err}
}

// explain says which side rejected the other, where the library's words do not.
func explain(err error) error {
	var untrusted *tls.CertificateVerificationError
	switch {
	case errors.As(err, &untrusted):
		return &rejection{"the agent does not trust the server's certificate", untrusted.Err}
	case errors.Is(err, errServerName):
		return &rejection{"the agent does not trust the server's certificate", errServerName}
	case tlsAlert(err):
		return &rejection{"the server does not accept the agent's certificate", err}
	case refused(err):
		return &rejection{"the server does not admit this agent", err}
	default:
		return err
	}
}

// tlsAlert reports that the server rejected the agent's certificate. With TLS 1.3 the agent learns of it only
// after the handshake, as an alert, or as the end of the connection if that is noticed first; for the latter
// the library has only words.
func tlsAlert(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error" ||
		errors.Is(err, nats.ErrTLS) && strings.Contains(err.Error(), "closed by remote after TLS handshake")
}
