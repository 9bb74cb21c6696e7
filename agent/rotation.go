package agent

import (
	"context"
	"errors"

	"cambium/agent/action"
	"cambium/mbus/natsbus"
	"cambium/settings"
)

// NATSIdentity converts the bus settings into the form that natsbus takes.
func NATSIdentity(b settings.Bus) natsbus.Identity {
	return natsbus.Identity{URLs: b.URLs, CA: b.Cert.CA, Certificate: b.Cert.Certificate, PrivateKey: b.Cert.PrivateKey}
}

// NATS adapts a natsbus.Bus so that update_settings can rotate it.
type NATS struct{ *natsbus.Bus }

// Rotate opens a connection with the new settings, beside the current one.
func (n NATS) Rotate(ctx context.Context, b settings.Bus) (action.Rotation, error) {
	r, err := n.Bus.Rotate(ctx, NATSIdentity(b))
	if err != nil {
		return nil, err
	}
	return r, nil
}

// FixedBus is a bus that update_settings cannot change: for HTTPS, create-env decides.
type FixedBus struct{}

// Rotate returns an error.
func (FixedBus) Rotate(context.Context, settings.Bus) (action.Rotation, error) {
	return nil, errors.New("the message bus cannot be changed while the agent is running; restart the agent")
}
