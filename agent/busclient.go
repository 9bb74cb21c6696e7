package agent

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"sync"

	"github.com/sirupsen/logrus"

	"cambium/agent/action"
	"cambium/internal/status"
	"cambium/settings"
)

// ErrNoBus means that the settings do not say where the Director is, or that there are no settings
// yet.
var ErrNoBus = errors.New("the settings name no message bus")

// Transport is a bus that a Director can use: NATS, or HTTPS, which drops reports because no
// Health Monitor is behind it.
type Transport interface {
	Publisher
	action.Bus
	// Run serves requests until ctx ends.
	Run(ctx context.Context) error
}

// TransportKind is one kind of transport.
type TransportKind struct {
	// Starting is what the status says, before the URL, until the transport is reachable.
	Starting string
	// New makes the transport that the settings describe. It connects to nothing yet; whenever
	// the transport has become reachable it calls onConnect, which does not block.
	New func(e settings.Effective, onConnect func()) (Transport, error)
}

// BusOptions configure a BusClient.
type BusOptions struct {
	// Transports are the kinds of transport by the scheme of their URLs.
	Transports map[string]TransportKind
	Status     *status.Recorder
	Log        *logrus.Entry
}

// BusClient owns the one bus of the process. The boot starts it as soon as the machine has a
// network; it outlives failed boots, and update_settings rotates its connection.
type BusClient struct {
	options  BusOptions
	start    chan Transport // holds the transport between Start and Run
	alertDue chan struct{}  // holds a token when there may be an alert to send

	mu        sync.Mutex // guards what follows
	transport Transport  // nil before Start
	alert     string     // the verdict that waits until the bus is reachable
	alerted   bool
	onConnect []func()
}

// NewBusClient returns a client without a bus.
func NewBusClient(o BusOptions) *BusClient {
	return &BusClient{options: o, start: make(chan Transport, 1), alertDue: make(chan struct{}, 1)}
}

// Start makes the bus that the settings name, unless there is one. Run serves it.
func (c *BusClient) Start(_ context.Context, e settings.Effective) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.transport != nil {
		return nil
	}
	if len(e.Bus.URLs) == 0 {
		return ErrNoBus
	}
	first := e.Bus.URLs[0]
	parsed, err := url.Parse(first.Reveal())
	if err != nil {
		return fmt.Errorf("bus URL %s is not a URL", first)
	}
	kind, known := c.options.Transports[parsed.Scheme]
	if !known {
		return fmt.Errorf("bus URL %s: want scheme nats or https", first)
	}
	transport, err := kind.New(e, c.connected)
	if err != nil {
		return err
	}
	c.transport = transport
	c.describe(kind.Starting + " " + first.String())
	c.start <- transport
	return nil
}

// Run serves the bus from Start until ctx ends.
func (c *BusClient) Run(ctx context.Context) error {
	ended := make(chan error, 1)
	var running sync.WaitGroup
	defer running.Wait()
	for {
		select {
		case transport := <-c.start:
			running.Go(func() { ended <- transport.Run(ctx) })
		case <-c.alertDue:
			c.sendAlert(ctx)
		case err := <-ended:
			if ctx.Err() != nil {
				return nil
			}
			return err
		case <-ctx.Done():
			return nil
		}
	}
}

// connected is called by the transport whenever it has become reachable.
func (c *BusClient) connected() {
	c.mu.Lock()
	onConnect := slices.Clone(c.onConnect)
	c.mu.Unlock()
	for _, f := range onConnect {
		f()
	}
	c.considerAlert()
	c.describe("connected")
}

// OnConnect registers f, which must not block, to be called whenever the bus has become
// reachable. It is called at once if the bus is reachable already.
func (c *BusClient) OnConnect(f func()) {
	c.mu.Lock()
	c.onConnect = append(c.onConnect, f)
	c.mu.Unlock()
	if c.Connected() {
		f()
	}
}

// Connections returns a channel that holds a token whenever the bus has become reachable since it
// was last read.
func (c *BusClient) Connections() <-chan struct{} {
	connected := make(chan struct{}, 1)
	c.OnConnect(func() { putToken(connected) })
	return connected
}

// putToken makes sure that there is a token in a channel with room for one.
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

// Rotate connects under other addresses or another identity, beside the current connection.
func (c *BusClient) Rotate(ctx context.Context, b settings.Bus) (action.Rotation, error) {
	transport := c.current()
	if transport == nil {
		return nil, ErrNoBus
	}
	return transport.Rotate(ctx, b)
}

// Publish sends a report if there is a bus.
func (c *BusClient) Publish(ctx context.Context, target, topic string, payload any) error {
	transport := c.current()
	if transport == nil {
		return ErrNoBus
	}
	return transport.Publish(ctx, target, topic, payload)
}

// current is the transport, or nil before Start.
func (c *BusClient) current() Transport {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.transport
}

func (c *BusClient) describe(text string) {
	if err := c.options.Status.Update(func(d *status.Document) { d.Bus = text }); err != nil {
		c.options.Log.WithError(err).Debug("status not written")
	}
}

// AlertOnce tells the Health Monitor why the machine is not ready, once per process. The alert
// waits here until the bus is reachable: a transport drops messages that wait for long.
func (c *BusClient) AlertOnce(verdict string) {
	c.mu.Lock()
	c.alert = verdict
	c.mu.Unlock()
	c.considerAlert()
}

// ForgetAlert drops an alert that has not been sent: the machine has become ready.
func (c *BusClient) ForgetAlert() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.alert = ""
}

// considerAlert makes Run look for an alert to send.
func (c *BusClient) considerAlert() { putToken(c.alertDue) }

func (c *BusClient) sendAlert(ctx context.Context) {
	if !c.Connected() {
		return
	}
	verdict := c.takeAlert()
	if verdict == "" {
		return
	}
	if err := c.Publish(ctx, "hm", "alert", NewAlert(SeverityAlert, "bosh-agent is not ready", verdict)); err != nil {
		c.options.Log.WithError(err).Warn("alert not sent")
	}
}

// takeAlert returns the verdict to send, or "" if there is none or one has been sent.
func (c *BusClient) takeAlert() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	verdict := c.alert
	c.alert = ""
	if verdict == "" || c.alerted {
		return ""
	}
	c.alerted = true
	return verdict
}
