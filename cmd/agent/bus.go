package main

import (
	"context"
	"net/netip"

	"github.com/sirupsen/logrus"

	"cambium/agent"
	"cambium/blobstore"
	"cambium/internal/status"
	"cambium/internal/vcap"
	"cambium/mbus"
	"cambium/mbus/httpsbus"
	"cambium/mbus/natsbus"
	"cambium/settings"
)

// transports creates the buses that the settings can name.
type transports struct {
	handler mbus.Handler
	audit   mbus.Auditor
	dirs    vcap.Dirs
	log     *logrus.Entry
	// beforeConnect updates the firewall and the neighbor table for the addresses of the servers.
	beforeConnect func(ctx context.Context, servers []netip.AddrPort)
	// delivered is called with the subject of each report that a NATS server has confirmed.
	delivered func(subject string)
}

func (t transports) kinds() map[string]agent.TransportKind {
	return map[string]agent.TransportKind{
		"nats":  {Reachable: status.BusConnected, New: t.newNATS},
		"https": {Reachable: status.BusListening, New: t.newHTTPS},
	}
}

func (t transports) newNATS(e settings.Effective, events agent.BusEvents) (agent.Transport, error) {
	bus, err := natsbus.New(natsbus.Options{
		AgentID:       e.Settings.AgentID,
		Identity:      agent.NATSIdentity(e.Bus),
		Handler:       t.handler,
		BeforeConnect: t.beforeConnect,
		OnConnect:     events.Connected,
		OnFailure:     func(f natsbus.Failure) { events.Failed(f.Server, f.Err, f.Refused) },
		OnDelivered:   t.delivered,
		Audit:         t.audit,
		Log:           t.log,
	})
	if err != nil {
		return nil, err
	}
	return agent.NATS{Bus: bus}, nil
}

// httpsTransport cannot be rotated; see agent.FixedBus.
type httpsTransport struct {
	*httpsbus.Bus
	agent.FixedBus
}

func (t transports) newHTTPS(e settings.Effective, events agent.BusEvents) (agent.Transport, error) {
	bus, err := httpsbus.New(httpsbus.Options{
		URL:         e.Bus.URLs[0],
		Certificate: e.Bus.Cert.Certificate,
		PrivateKey:  e.Bus.Cert.PrivateKey,
		KeyFile:     t.dirs.HTTPSKey(),
		Handler:     t.handler,
		Blobs:       &blobstore.Dir{Path: t.dirs.Blobs()},
		OnListen:    events.Connected,
		OnFailure:   func(err error) { events.Failed(e.Bus.URLs[0].String(), err, false) },
		Audit:       t.audit,
		Log:         t.log,
	})
	if err != nil {
		return nil, err
	}
	return httpsTransport{Bus: bus}, nil
}
