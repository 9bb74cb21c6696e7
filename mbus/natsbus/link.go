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
	// connectTime bounds the TLS handshake and the log-in. They take longer than a dial if a thousand agents connect to
	// a server at once.
	connectTime  = 10 * time.Second
	closeTimeout = time.Second
	// defaultLimit is a server's default max_payload, used until the first connection.
	defaultLimit = 1 << 20
	// authRetryTime is the time for which a refused log-in is retried about once a second. The server learns of a new
	// agent only at its next synchronization.
	authRetryTime = time.Minute
)

// pace sets the interval of PINGs, which detect a lost connection, and the pauses between attempts to connect.
type pace struct {
	// ping is the interval of PINGs.
	ping time.Duration
	// afterLoss has full jitter, because all agents of a deployment lose their server at the same moment. The longest
	// pause spreads a thousand of them over 200 log-ins a second, which a server can handle.
	afterLoss retry.Backoff
	// atFirst is used until the first connection. The network of a booting agent may not be up yet.
	atFirst   retry.Backoff
	afterAuth retry.Backoff
	// afterSlow is used after a slow log-in. A server with thousands of users is slow at each log-in, and continues
	// with those that were given up. If all agents tried again within seconds, it would admit none.
	afterSlow retry.Backoff
	// callersReturn bounds how long after the agent its callers reconnect to a restarted server. The Director pauses
	// for half a second between two attempts, and a server drops messages for clients that are not connected.
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

// allowedMisses is the number of unanswered PINGs after which a connection is still kept. A server that vanished
// without closing the connection is detected within allowedMisses+1 intervals.
const allowedMisses = 2

// link is an identity with its connection, which is made again whenever it is lost.
type link struct {
	bus       *Bus
	log       *logrus.Entry
	servers   []*url.URL
	tls       *tls.Config
	cancel    context.CancelFunc
	busCtx    context.Context // the context of Bus.Run
	ready     chan struct{}   // closed once connected and subscribed
	readyOnce sync.Once
	connected atomic.Bool
	limit     atomic.Int64 // the largest message that the server accepts
	outbox

	// Used only by run.
	loggedFailure string
	loggedAt      time.Time

	// mu guards the fields below.
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

// pauses decides how long to wait before the next round of all servers.
type pauses struct {
	pace            pace
	attempt         int
	connectedBefore bool      // it has been connected before
	refusedSince    time.Time // the time of the first of consecutive refusals
	slow            int       // the number of rounds that failed because servers were slow
}

// connected resets the pauses.
func (p *pauses) connected() { *p = pauses{pace: p.pace, connectedBefore: true} }

// next returns the pause after a round that failed with err.
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

// logFailure logs why there is no connection: a new reason at once, the same reason at most once per
// failureLogInterval.
func (l *link) logFailure(err error, pause time.Duration) {
	if text := err.Error(); text != l.loggedFailure || time.Since(l.loggedAt) >= failureLogInterval {
		l.loggedFailure, l.loggedAt = text, time.Now()
		l.log.WithError(err).WithField("pause", pause.Round(time.Millisecond).String()).Warn("not connected to nats")
	}
}

// session connects to one server and returns when the connection has ended. wasConnected reports whether it was usable,
// and err why it ended or could not be made.
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

// retire handles the messages that the server has already sent, and stops the link.
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

// refused reports whether the server does not know this agent (yet).
func refused(err error) bool {
	for _, known := range []error{nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked,
		nats.ErrAccountAuthExpired, nats.ErrPermissionViolation} {
		if errors.Is(err, known) {
			return true
		}
	}
	// While connecting the library passes the server's line on as text.
	return err != nil && strings.Contains(strings.ToLower(err.Error()), "authorization violation")
}

// rejection is the error when one side rejected the other's identity. Its text says which side.
type rejection struct {
	text string
	err  error
}

func (r *rejection) Error() string { return r.text + ": " + r.err.Error() }
func (r *rejection) Unwrap() error { return r.err }

// slow is the error of a log-in that a server has greeted but not completed in time.
type slow struct{ error }

func (s *slow) Unwrap() error { return s.error }

// late converts err to a slow error if the server had greeted, rejected nobody, and the log-in took too long. It
// decides by the time, because the library reports a server that is too slow for its first PING as one that breaks the
// protocol.
func late(greeted bool, took time.Duration, err error) error {
	if !greeted || took < greetTime || errors.As(err, new(*rejection)) {
		return err
	}
	return &slow{err}
}

// explain adds which side rejected the other, if the library's error does not say so.
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

// tlsAlert reports whether the server rejected the agent's certificate. With TLS 1.3 the agent learns of that only
// after the handshake, from an alert or from the end of the connection, whichever it notices first. For the end, the
// library's error can be recognized only by its text.
func tlsAlert(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error" ||
		errors.Is(err, nats.ErrTLS) && strings.Contains(err.Error(), "closed by remote after TLS handshake")
}
