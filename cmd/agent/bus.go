package main

import (
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/sirupsen/logrus"

	"cambium/internal/status"
	"cambium/mbus"
	"cambium/mbus/natsbus"
	"cambium/settings"
)

// publisher is what heartbeats and alerts go to; the HTTPS bus drops them, since nobody listens.
type publisher interface {
	Publish(ctx context.Context, target, topic string, payload any) error
}

// busLine owns the one bus client of the process. It is started by the boot, as soon as there is
// a network, and outlives failed boots.
type busLine struct {
	ctx     context.Context // of the process
	handler mbus.Handler
	audit   mbus.Auditor
	log     *logrus.Entry
	rec     *status.Recorder
	run     func(f func())
	// beforeConnect lets firewall and neighbour table follow the servers' addresses.
	beforeConnect func(ctx context.Context, servers []netip.AddrPort)

	mu      sync.Mutex // guards what follows
	bus     publisher
	alerted bool
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
	default:
		return fmt.Errorf("bus URL %s: want scheme nats or https", e.Bus.URLs[0])
	}
}

func (l *busLine) startNATS(e settings.Effective) error {
	bus, err := natsbus.New(natsbus.Options{
		AgentID:       e.Settings.AgentID,
		Identity:      natsbus.Identity{URLs: e.Bus.URLs, CA: e.Bus.Cert.CA, Certificate: e.Bus.Cert.Certificate, PrivateKey: e.Bus.Cert.PrivateKey},
		Handler:       l.handler,
		BeforeConnect: l.beforeConnect,
		OnConnect:     func() { l.describe("connected to " + e.Bus.URLs[0].String()) },
		Audit:         l.audit,
		Log:           l.log,
	})
	if err != nil {
		return err
	}
	l.bus = bus
	l.describe("connecting to " + e.Bus.URLs[0].String())
	l.run(func() {
		if err := bus.Run(l.ctx); err != nil && l.ctx.Err() == nil {
			l.log.WithError(err).Error("bus ended")
		}
	})
	return nil
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

// bootAlert is the alert about a failed boot, in the shape that the Health Monitor takes.
type bootAlert struct {
	ID        string `json:"id"`
	Severity  int    `json:"severity"`
	Title     string `json:"title"`
	Summary   string `json:"summary"`
	CreatedAt int64  `json:"created_at"`
}

// alertOnce tells the Health Monitor why the machine is not ready, once per process.
func (l *busLine) alertOnce(ctx context.Context, verdict string) {
	l.mu.Lock()
	done := l.alerted || l.bus == nil
	l.alerted = l.alerted || !done
	l.mu.Unlock()
	if done {
		return
	}
	alert := bootAlert{ID: uuid.NewString(), Severity: 1, Title: "bosh-agent is not ready", Summary: verdict, CreatedAt: time.Now().Unix()}
	if err := l.Publish(ctx, "hm", "alert", alert); err != nil {
		l.log.WithError(err).Warn("alert not sent")
	}
}
