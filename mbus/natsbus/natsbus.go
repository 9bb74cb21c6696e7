// Package natsbus connects an agent to the Director's NATS server with mutual TLS. It has one subscription for
// requests, replies to the subject that a request names, and publishes reports to the Health Monitor.
//
// The library's reconnecting is switched off, and each attempt makes a new connection. So names are resolved again, an
// authentication error does not end the attempts, publishing never waits for a dial, and messages that may have been
// lost with a connection are sent again.
package natsbus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/internal/advice"
	"cambium/internal/retry"
	"cambium/internal/secret"
	"cambium/mbus"
)

// Failure describes a failed attempt to connect, or a lost connection.
type Failure struct {
	Server string // host:port
	Err    error
	// Refused means that one side rejected the other's certificate.
	Refused bool
}

// Identity has the server URLs of the Director's bus and the agent's credentials. Certificates are PEM; if CA is empty,
// the system's authorities are used.
type Identity struct {
	URLs        []secret.URL
	CA          string
	Certificate string
	PrivateKey  secret.String
}

// Options configures a Bus.
type Options struct {
	AgentID  string
	Identity Identity
	Handler  mbus.Handler
	// BeforeConnect is called before each connection attempt and after a rotation, with the resolved addresses of all
	// servers in use, to update firewall rules and neighbor entries. It should return quickly.
	BeforeConnect func(ctx context.Context, servers []netip.AddrPort)
	// OnConnect is called with the server's address each time the agent has connected and subscribed. It must not
	// block.
	OnConnect func(server string)
	// OnFailure is called each time an attempt to connect has failed or the connection was lost. It must not block.
	OnFailure func(Failure)
	// OnDelivered is called with the subject of each report that the server has confirmed. It must not block.
	OnDelivered func(subject string)
	Audit       mbus.Auditor
	Log         *logrus.Entry

	pace   *pace // nil means usual
	lookup func(ctx context.Context, host string) ([]netip.Addr, error)
}

// Bus is an agent's connection to a NATS server. It reconnects while Run runs.
type Bus struct {
	options  Options
	hostname string
	pace     pace

	// mu guards the fields below.
	mu      sync.Mutex
	ctx     context.Context // set while Run runs
	current *link
	next    *link // the second link, during a rotation
	// duplicates is set while both links of a rotation may deliver copies of one request. overlaps counts the rotations
	// for which that is the case.
	duplicates *duplicates
	overlaps   int
	links      sync.WaitGroup
	unanswered unanswered
}

// New checks the options. It does not connect.
func New(o Options) (*Bus, error) {
	if o.AgentID == "" {
		return nil, errors.New("nats: no agent id")
	}
	// A wildcard would subscribe to the requests of other agents.
	if strings.ContainsAny(o.AgentID, "*> ") || !validSubject("agent."+o.AgentID) {
		return nil, advice.With("correct agent_id in the settings (written by the CPI)",
			fmt.Errorf("nats: agent id %q cannot be part of a subject", o.AgentID))
	}
	b := &Bus{options: o, pace: usual}
	if o.pace != nil {
		b.pace = *o.pace
	}
	if o.lookup == nil {
		b.options.lookup = resolve
	}
	if name, err := os.Hostname(); err == nil {
		b.hostname = name
	}
	first, err := b.newLink(o.Identity)
	if err != nil {
		return nil, err
	}
	b.current = first
	return b, nil
}

// Run keeps the bus connected until ctx ends.
func (b *Bus) Run(ctx context.Context) error {
	b.mu.Lock()
	if b.ctx != nil {
		b.mu.Unlock()
		return errors.New("nats: already running")
	}
	b.ctx = ctx
	b.start(b.current)
	b.mu.Unlock()

	<-ctx.Done()
	b.mu.Lock()
	b.ctx = nil
	b.mu.Unlock()
	b.links.Wait()
	return nil
}

// start runs a link. The caller holds mu.
func (b *Bus) start(l *link) {
	ctx, cancel := context.WithCancel(b.ctx)
	l.cancel, l.busCtx = cancel, b.ctx
	b.links.Go(func() { l.run(ctx) })
}

// Connected reports whether the agent is connected and subscribed.
func (b *Bus) Connected() bool { return b.active().connected.Load() }

// LastError returns the error of the last attempt to connect, or nil.
func (b *Bus) LastError() error { return b.active().lastError() }

// connected calls OnConnect if l is the current link. It ignores the second link of a rotation.
func (b *Bus) connected(l *link) {
	if b.options.OnConnect != nil && l == b.active() {
		b.options.OnConnect(l.server())
	}
}

// failed calls OnFailure if l is the current link. It ignores the second link of a rotation.
func (b *Bus) failed(l *link, server string, err error) {
	if b.options.OnFailure != nil && l == b.active() {
		var rejected *rejection
		b.options.OnFailure(Failure{Server: server, Err: err, Refused: errors.As(err, &rejected)})
	}
}

func (b *Bus) active() *link {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.current
}

// errTooLong means that a message is larger than the server accepts.
var errTooLong = errors.New("message exceeds the server's limit")

// Publish sends a report such as hm.agent.heartbeat.<id>. While there is no connection, the report is kept for up to a
// minute.
func (b *Bus) Publish(_ context.Context, target, topic string, payload any) error {
	subject := target + ".agent." + topic + "." + b.options.AgentID
	data, err := json.Marshal(payload)
	if err != nil {
		return fmt.Errorf("publish %s: %w", subject, err)
	}
	l := b.active()
	if len(data) > int(l.limit.Load()) {
		return fmt.Errorf("publish %s: %w", subject, errTooLong)
	}
	l.send(message{subject: subject, data: data})
	return nil
}

// receive decodes and handles a request. The library calls it in order of arrival.
func (b *Bus) receive(ctx context.Context, l *link, data []byte) {
	b.mu.Lock()
	twice := b.duplicates
	b.mu.Unlock()
	if twice != nil && twice.seen(l, data) {
		return
	}
	r, err := mbus.DecodeRequest(data)
	if err != nil {
		b.options.Log.WithError(err).WithField("bytes", len(data)).Warn("undecodable request dropped")
		return
	}
	if r.ReplyTo != "" && !validSubject(r.ReplyTo) {
		b.options.Log.WithField("action", r.Method).Warn("request with an invalid reply subject dropped")
		return
	}
	b.unanswered.add(1)
	b.options.Handler.Handle(ctx, r, b.answer(l, r.Method, r.ReplyTo))
}

// answer returns the function that replies to a request received over l.
func (b *Bus) answer(l *link, method, replyTo string) func(mbus.Reply) {
	server := ""
	if b.options.Audit != nil {
		server = l.server()
	}
	return func(reply mbus.Reply) {
		defer b.unanswered.add(-1)
		if !reply.Silent() && replyTo != "" {
			via := b.route(l)
			via.send(message{subject: replyTo, data: reply.Encode(int(via.limit.Load())), reply: true})
		}
		if b.options.Audit != nil {
			b.options.Audit.Record(mbus.NATSEvent(method, replyTo, reply, server, b.hostname))
		}
	}
}

// route returns the link for a reply: the one that received the request or, if that is closed, the current one.
func (b *Bus) route(l *link) *link {
	if l.connected.Load() {
		return l
	}
	return b.active()
}

// addresses returns the server addresses of all links in use. The caller holds mu.
func (b *Bus) addresses() (all []netip.AddrPort) {
	for _, l := range []*link{b.current, b.next} {
		if l != nil {
			all = append(all, l.resolved()...)
		}
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Compare(all[j]) < 0 })
	return slices.Compact(all)
}

// beforeConnect calls BeforeConnect with the addresses of all links in use.
func (b *Bus) beforeConnect(ctx context.Context) {
	if b.options.BeforeConnect == nil {
		return
	}
	b.mu.Lock()
	all := b.addresses()
	b.mu.Unlock()
	if len(all) > 0 {
		b.options.BeforeConnect(ctx, all)
	}
}

// Rotation is a second, working connection under a new identity, beside the current one.
type Rotation struct {
	bus *Bus
	old *link
	new *link
}

// Rotate connects and subscribes with another identity. The current connection stays in use until Commit. If the new
// one does not work before ctx ends, nothing changes.
func (b *Bus) Rotate(ctx context.Context, id Identity) (*Rotation, error) {
	l, err := b.newLink(id)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	switch {
	case b.ctx == nil:
		b.mu.Unlock()
		return nil, errors.New("nats: not running")
	case b.next != nil:
		b.mu.Unlock()
		return nil, errors.New("nats: another rotation is under way")
	}
	b.next = l
	b.beginOverlap()
	r := &Rotation{bus: b, old: b.current, new: l}
	b.start(l)
	b.mu.Unlock()
	select {
	case <-l.ready:
		return r, nil
	case <-ctx.Done():
		why := l.lastError()
		r.Abort(context.WithoutCancel(ctx))
		if why == nil {
			why = context.Cause(ctx)
		}
		return nil, fmt.Errorf("nats: new identity does not work: %w", why)
	}
}

// drainTime bounds the time in which a replaced connection may deliver the messages that it has received.
const drainTime = 5 * time.Second

// overlapTime is the time for which both connections stay subscribed. A server looks up the subscribers of a request
// before it delivers it. If a busy server looks them up before the new subscription and delivers after the old one has
// ended, the request is lost.
const overlapTime = 250 * time.Millisecond

// Commit makes the new connection the current one and closes the old one.
func (r *Rotation) Commit(ctx context.Context) {
	b := r.bus
	b.mu.Lock()
	b.current, b.next = r.new, nil
	b.mu.Unlock()
	_ = retry.Sleep(ctx, overlapTime) // the end of ctx only shortens the overlap
	r.old.retire()
	r.old.handOver(&r.new.outbox)
	b.endOverlap()
	b.beforeConnect(ctx)
	if r.new.connected.Load() {
		b.connected(r.new)
	}
}

// beginOverlap starts to recognize duplicates. The caller holds mu.
func (b *Bus) beginOverlap() {
	if b.overlaps++; b.duplicates == nil {
		b.duplicates = newDuplicates()
	}
}

// endOverlap stops recognizing duplicates a while after one of the two links was closed: the other may still have
// copies in its queue.
func (b *Bus) endOverlap() {
	time.AfterFunc(overlapTime, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.overlaps--; b.overlaps == 0 {
			b.duplicates = nil
		}
	})
}

// Abort closes the new connection and keeps the old one.
func (r *Rotation) Abort(ctx context.Context) {
	r.bus.mu.Lock()
	r.bus.next = nil
	r.bus.mu.Unlock()
	r.new.cancel()
	r.bus.endOverlap()
	r.bus.beforeConnect(ctx) // only the old addresses again
}
