// Package confirm applies a change to a working network, and rolls it back if it cuts the machine off.
package confirm

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"cambium/platform/network"
	"cambium/platform/network/neighbor"
)

// Options say how careful Apply is.
type Options struct {
	// SameAgent is whether the settings that are being replaced were those of the same agent id.
	// Otherwise what is configured belongs to an earlier VM with this disk, and is never restored.
	SameAgent bool
	// Limit is how long a gateway may take to answer on the new configuration; gatewayLimit if zero.
	Limit time.Duration
}

// Outcome is what became of a confirmed change.
type Outcome struct {
	// Made are the changes made; after them, where they were taken back, those that did so.
	Made []network.Change
	// RolledBack means that the configuration is what it was before, for the given reason.
	RolledBack bool
	Reason     string
}

// askBefore is how long a gateway may take to answer before a change. One that works does so
// within a millisecond.
const askBefore = time.Second

// gatewayLimit is how long a gateway may take to answer on the new configuration.
const gatewayLimit = 10 * time.Second

// Apply applies changes to a machine that is configured already, and takes them back if they cut
// it off: when a gateway answered before, and a wanted one of the same address family does not
// afterwards. Only gateways count; the bus may be down for its own reasons. A change is final, and
// applied without asking, where taking it back could restore what is no longer the machine's: an
// address that is not wanted, or another agent's configuration. So is the first configuration.
func Apply(ctx context.Context, k *network.Kernel, have network.State, want network.Desired, changes []network.Change, options Options) (Outcome, error) {
	back := network.Invert(changes, have)
	if !options.SameAgent || len(back) == 0 || !have.Configured() || losesAddress(changes, want) {
		made, err := k.Apply(ctx, changes)
		return Outcome{Made: made}, err
	}
	limited, cancel := context.WithTimeout(ctx, askBefore)
	answered := neighbor.Answering(limited, have, neighbor.PresentGateways(have, want))
	cancel()
	made, err := k.Apply(ctx, changes)
	o := Outcome{Made: made}
	if err != nil || len(answered) == 0 {
		return o, err
	}
	limit := cmp.Or(options.Limit, gatewayLimit)
	silent, err := silentAfterwards(ctx, k, want, answered, limit)
	if err != nil || silent == nil {
		return o, err
	}
	o.RolledBack, o.Reason = true, fmt.Sprintf("network %q: gateway %s on %s did not answer within %s; %s did before the change",
		silent.Network, silent.IP, silent.Link, limit, answered[0].IP)
	k.Log.WithField("reason", o.Reason).Warn("rolling back a network change")
	made, err = k.Apply(ctx, back)
	o.Made = append(o.Made, made...)
	if err != nil {
		return o, fmt.Errorf("roll back a network change: %w", err)
	}
	return o, nil
}

// silentAfterwards returns a wanted gateway that does not answer although one of its family did
// before, if there is one.
func silentAfterwards(ctx context.Context, k *network.Kernel, want network.Desired, before []neighbor.Gateway, limit time.Duration) (*neighbor.Gateway, error) {
	wanted := slices.DeleteFunc(neighbor.WantedGateways(want), func(g neighbor.Gateway) bool {
		return !slices.ContainsFunc(before, func(b neighbor.Gateway) bool { return b.IP.Is4() == g.IP.Is4() })
	})
	if len(wanted) == 0 {
		return nil, nil
	}
	now, err := k.ObserveLinks()
	if err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	answered := neighbor.Answering(limited, now, wanted)
	silent := slices.IndexFunc(wanted, func(g neighbor.Gateway) bool { return !slices.Contains(answered, g) })
	if ctx.Err() != nil || silent < 0 {
		return nil, nil
	}
	return &wanted[silent], nil
}

// losesAddress reports whether an address is removed that the machine may no longer use.
func losesAddress(changes []network.Change, want network.Desired) bool {
	return slices.ContainsFunc(changes, func(c network.Change) bool {
		return c.Op == network.OpRemoveAddress && !slices.ContainsFunc(want.Links, func(l network.WantLink) bool {
			return slices.ContainsFunc(l.Addresses, func(a network.WantAddress) bool { return a.Prefix.Addr() == c.Address.Addr() })
		})
	})
}
