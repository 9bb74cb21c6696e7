package main

import (
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"sync"

	"github.com/sirupsen/logrus"

	"cambium/agent"
	"cambium/agent/action"
	"cambium/blobstore"
	"cambium/internal/status"
	"cambium/internal/vcap"
	"cambium/mbus"
	"cambium/mbus/httpsbus"
	"cambium/mbus/natsbus"
	"cambium/settings"
)

// transport is a running bus: NATS, or HTTPS, which drops reports since nobody listens.
type transport interface {
	agent.Publisher
	action.Bus
}

// busLine owns the one bus client of the process. It is started by the boot, as soon as there is
// a network, and outlives failed boots.
type busLine struct {
	ctx     context.Context // of the process
	handler mbus.Handler
	audit   mbus.Auditor
	log     *logrus.Entry
	rec     *status.Recorder
	dirs    vcap.Dirs
	run     func(f func())
	// beforeConnect lets firewall and neighbour table follow the servers' addresses.
	beforeConnect func(ctx context.Context, servers []netip.AddrPort)

	mu      sync.Mutex // guards what follows
	bus     transport
	alert   string // waits until the bus is reachable
	alerted bool
	wake    []func() // called whenever the bus has become reachable
}

// start starts the bus that the settings name, unless one runs.
func (l *busLine) start(_ context.Context, e settings.Effective) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.bus != nil {
		return nil
	}
	if len(e.Bus.URLs) == 0 {
		return errNoBus
	}
	first, err := url.Parse(e.Bus.URLs[0].Reveal())
	if err != nil {
		return fmt.Errorf("bus URL %s is not a URL", e.Bus.URLs[0])
	}
	switch first.Scheme {
	case "nats":
		return l.startNATS(e)
	case "https":
		return l.startHTTPS(e)
	default:
		return fmt.Errorf("bus URL %s: want scheme nats or https", e.Bus.URLs[0])
	}
}

func (l *busLine) startNATS(e settings.Effective) error {
	bus, err := natsbus.New(natsbus.Options{
		AgentID:       e.Settings.AgentID,
		Identity:      agent.NATSIdentity(e.Bus),
		Handler:       l.handler,
		BeforeConnect: l.beforeConnect,
		OnConnect:     l.connected,
		Audit:         l.audit,
		Log:           l.log,
	})
	if err != nil {
		return err
	}
	l.serve(agent.NATS{Bus: bus}, "connecting to "+e.Bus.URLs[0].String(), bus.Run)
	return nil
}

// httpsTransport cannot be rotated: create-env decides about it.
type httpsTransport struct {
	*httpsbus.Bus
	agent.FixedBus
}

func (l *busLine) startHTTPS(e settings.Effective) error {
	bus, err := httpsbus.New(httpsbus.Options{
		URL:         e.Bus.URLs[0],
		Certificate: e.Bus.Cert.Certificate,
		PrivateKey:  e.Bus.Cert.PrivateKey,
		KeyFile:     filepath.Join(l.dirs.Bosh(), "https_key.pem"),
		Handler:     l.handler,
		Blobs:       &blobstore.Dir{Path: l.dirs.Blobs()},
		OnListen:    l.connected,
		Audit:       l.audit,
		Log:         l.log,
	})
	if err != nil {
		return err
	}
	l.serve(httpsTransport{Bus: bus}, "listening at "+e.Bus.URLs[0].String(), bus.Run)
	return nil
}

func (l *busLine) serve(t transport, description string, run func(context.Context) error) {
	l.bus = t
	l.describe(description)
	l.run(func() {
		if err := run(l.ctx); err != nil && l.ctx.Err() == nil {
			l.log.WithError(err).Error("bus ended")
		}
	})
}

// connected must not block: it is called by the bus itself.
func (l *busLine) connected() {
	l.mu.Lock()
	wake := slices.Clone(l.wake)
	l.mu.Unlock()
	for _, f := range wake {
		f()
	}
	l.sendAlert()
	l.describe("connected")
}

// onConnect registers f, which must not block. It is called at once if the bus is reachable.
func (l *busLine) onConnect(f func()) {
	l.mu.Lock()
	l.wake = append(l.wake, f)
	up := l.bus != nil && l.bus.Connected()
	l.mu.Unlock()
	if up {
		f()
	}
}

// connections returns a channel that holds something whenever the bus has become reachable since
// it was last read.
func (l *busLine) connections() <-chan struct{} {
	connected := make(chan struct{}, 1)
	l.onConnect(func() {
		select {
		case connected <- struct{}{}:
		default:
		}
	})
	return connected
}

// Connected reports whether the Director can reach the agent.
func (l *busLine) Connected() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bus != nil && l.bus.Connected()
}

// Rotate connects under other addresses or another identity, beside the current connection.
func (l *busLine) Rotate(ctx context.Context, b settings.Bus) (action.Rotation, error) {
	l.mu.Lock()
	bus := l.bus
	l.mu.Unlock()
	if bus == nil {
		return nil, errNoBus
	}
	return bus.Rotate(ctx, b)
}

func (l *busLine) describe(text string) {
	if err := l.rec.Update(func(d *status.Document) { d.Bus = text }); err != nil {
		l.log.WithError(err).Debug("status not written")
	}
}

// Publish sends a report if there is a bus.
func (l *busLine) Publish(ctx context.Context, target, topic string, payload any) error {
	l.mu.Lock()
	bus := l.bus
	l.mu.Unlock()
	if bus == nil {
		return errNoBus
	}
	return bus.Publish(ctx, target, topic, payload)
}

// alertOnce tells the Health Monitor why the machine is not ready, once per process: as soon as the bus
// can be reached, since a message that waits there for long is dropped.
func (l *busLine) alertOnce(verdict string) {
	l.mu.Lock()
	l.alert = verdict
	up := l.bus != nil && l.bus.Connected()
	l.mu.Unlock()
	if up {
		l.sendAlert()
	}
}

// forgetAlert is for a machine that has become ready before anybody could be told that it was not.
func (l *busLine) forgetAlert() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.alert = ""
}

func (l *busLine) sendAlert() {
	l.mu.Lock()
	bus, verdict := l.bus, l.alert
	if l.alerted {
		verdict = ""
	}
	l.alert, l.alerted = "", l.alerted || verdict != ""
	l.mu.Unlock()
	if verdict == "" {
		return
	}
	if err := bus.Publish(l.ctx, "hm", "alert", agent.NewAlert(1, "bosh-agent is not ready", verdict)); err != nil {
		l.log.WithError(err).Warn("alert not sent")
	}
}
