package agent

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/agent/action"
	"cambium/internal/oneline"
	"cambium/internal/status"
	"cambium/settings"
)

// errNoBus means that the settings name no bus, or that there are no settings yet.
var errNoBus = errors.New("the settings name no message bus")

// Transport is a connection for Directors: NATS or HTTPS. HTTPS drops reports, because no Health Monitor uses it.
type Transport interface {
	Publisher
	action.Bus
	// Run serves requests until ctx ends.
	Run(ctx context.Context) error
}

// TransportKind is one kind of transport.
type TransportKind struct {
	// Reachable is the status of the bus while a Director can reach this transport.
	Reachable status.BusState
	// New returns the transport that the settings describe. It does not connect yet; later it reports to events.
	New func(e settings.Effective, events BusEvents) (Transport, error)
}

// BusEvents has the callbacks of a transport. They do not block.
type BusEvents struct {
	// Connected is called each time the transport has become reachable. server is the peer, or the address that it
	// listens on.
	Connected func(server string)
	// Failed is called after each failed attempt and after the loss of a connection. refused means that one side has
	// rejected the other's certificate.
	Failed func(server string, err error, refused bool)
}

// BusOptions configures a BusClient.
type BusOptions struct {
	// Transports maps the scheme of a bus URL to the kind of transport.
	Transports map[string]TransportKind
	Status     *status.Recorder
	// Changed, if set, is called after the status of the bus has changed.
	Changed func()
	Log     *logrus.Entry
}

// BusClient owns the process's only bus. The boot starts it as soon as the machine has a network. It survives failed
// boots, and update_settings rotates its connection.
type BusClient struct {
	options BusOptions
	start   chan Transport // holds the transport between Start and Run

	mu        sync.Mutex // guards the fields below
	transport Transport  // nil before Start
	reachable status.BusState
	bus       status.Bus
	// wasReachable is set once the bus has been reachable in this process.
	wasReachable bool
	overdue      *time.Timer // marks the bus as overdue; nil while it is reachable
	onConnect    []func()
}

// NewBusClient returns a client that has no bus until Start.
func NewBusClient(o BusOptions) *BusClient {
	return &BusClient{options: o, start: make(chan Transport, 1)}
}

// Start creates the bus that the settings name, unless it exists. Run then serves it.
func (c *BusClient) Start(_ context.Context, e settings.Effective) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.transport != nil {
		return nil
	}
	if len(e.Bus.URLs) == 0 {
		return errNoBus
	}
	first := e.Bus.URLs[0]
	parsed, err := url.Parse(first.Reveal())
	if err != nil {
		return fmt.Errorf("bus URL %s is not valid", first)
	}
	kind, known := c.options.Transports[parsed.Scheme]
	if !known {
		return fmt.Errorf("bus URL %s: want scheme nats or https", first)
	}
	transport, err := kind.New(e, BusEvents{Connected: c.connected, Failed: c.failed})
	if err != nil {
		return err
	}
	c.transport, c.reachable = transport, kind.Reachable
	c.bus = status.Bus{State: status.BusConnecting, Server: parsed.Host, Since: time.Now().UTC()}
	c.expect(firstGrace)
	c.record()
	c.start <- transport
	return nil
}

// Run waits for Start, and serves the bus until ctx ends.
func (c *BusClient) Run(ctx context.Context) error {
	select {
	case transport := <-c.start:
		if err := transport.Run(ctx); ctx.Err() == nil {
			return err
		}
	case <-ctx.Done():
	}
	return nil
}

// connected is called by the transport whenever it has become reachable.
func (c *BusClient) connected(server string) {
	c.mu.Lock()
	if c.overdue != nil {
		c.overdue.Stop()
		c.overdue = nil
	}
	c.bus, c.wasReachable = status.Bus{State: c.reachable, Server: server, Since: time.Now().UTC()}, true
	c.record()
	onConnect := slices.Clone(c.onConnect)
	c.mu.Unlock()
	for _, f := range onConnect {
		f()
	}
	c.changed()
}

// failed is called by the transport when an attempt to connect has failed or the connection was lost.
func (c *BusClient) failed(server string, err error, refused bool) {
	c.mu.Lock()
	if c.bus.Reachable() {
		c.bus = status.Bus{Since: time.Now().UTC()}
		c.expect(lostGrace)
	} else {
		c.bus.Tries++
	}
	switch {
	case refused:
		c.bus.State = status.BusRefused
	case c.wasReachable:
		c.bus.State = status.BusLost
	default:
		c.bus.State = status.BusConnecting
	}
	c.bus.Server, c.bus.Reason = server, oneline.Of(err.Error())
	c.record()
	c.mu.Unlock()
	c.changed()
}

// The agent counts as degraded after lostGrace without a bus if the bus was reachable before, and after firstGrace if
// it never was. The server admits a new VM only at its next synchronization.
const (
	lostGrace  = 30 * time.Second
	firstGrace = time.Minute
)

// expect marks the bus as overdue if it is not reachable within grace. The caller holds mu.
func (c *BusClient) expect(grace time.Duration) {
	var timer *time.Timer
	timer = time.AfterFunc(grace, func() {
		c.mu.Lock()
		current := c.overdue == timer // it may have become reachable, and been lost again
		if current {
			c.bus.Overdue = true
			c.record()
			c.options.Log.WithFields(logrus.Fields{"server": c.bus.Server, "since": c.bus.Since.Format(time.RFC3339),
				"reason": c.bus.Reason}).
				Warn("agent is degraded: it has no bus")
		}
		c.mu.Unlock()
		if current {
			c.changed()
		}
	})
	c.overdue = timer
}

// record writes the state of the bus to the status. The caller holds mu.
func (c *BusClient) record() {
	bus := c.bus
	bus.SinceNS = c.options.Status.At(bus.Since)
	if err := c.options.Status.Update(func(d *status.Document) { d.Bus = &bus }); err != nil {
		c.options.Log.WithError(err).Debug("cannot write the status")
	}
}

func (c *BusClient) changed() {
	if c.options.Changed != nil {
		c.options.Changed()
	}
}

// OnConnect registers f to be called whenever the bus has become reachable, and calls it at once if it is reachable
// already. f must not block.
func (c *BusClient) OnConnect(f func()) {
	c.mu.Lock()
	c.onConnect = append(c.onConnect, f)
	c.mu.Unlock()
	if c.Connected() {
		f()
	}
}

// Connections returns a channel that receives a token whenever the bus has become reachable. Unread tokens do not add
// up.
func (c *BusClient) Connections() <-chan struct{} {
	connected := make(chan struct{}, 1)
	c.OnConnect(func() { putToken(connected) })
	return connected
}

// putToken sends a token unless the channel is full.
func putToken(tokens chan struct{}) {
	select {
	case tokens <- struct{}{}:
	default:
	}
}

// Connected reports whether the Director can reach the agent.
func (c *BusClient) Connected() bool {
	transport := c.current()
	return transport != nil && transport.Connected()
}

// Rotate opens a second connection with other addresses or another identity, beside the current one.
func (c *BusClient) Rotate(ctx context.Context, b settings.Bus) (action.Rotation, error) {
	transport := c.current()
	if transport == nil {
		return nil, errNoBus
	}
	return transport.Rotate(ctx, b)
}

// Publish sends a report if there is a bus.
func (c *BusClient) Publish(ctx context.Context, target, topic string, payload any) error {
	transport := c.current()
	if transport == nil {
		return errNoBus
	}
	return transport.Publish(ctx, target, topic, payload)
}

// current returns the transport, or nil before Start.
func (c *BusClient) current() Transport {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.transport
}
