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
	// SameAgent is set if the settings that are being replaced had the same agent id. Otherwise what is configured
	// belongs to an earlier VM with this disk, and is never restored.
	SameAgent bool
	// Limit bounds the wait for a gateway's answer on the new configuration; gatewayLimit if zero.
	Limit time.Duration
}

// Outcome reports the result of a confirmed change.
type Outcome struct {
	// Made lists the changes made, followed by those that took them back, if any.
	Made []network.Change
	// RolledBack means that the earlier configuration is in place again, for the given reason.
	RolledBack bool
	Reason     string
}

// askBefore bounds the wait for a gateway's answer before a change. A gateway that works answers within a millisecond.
const askBefore = time.Second

// gatewayLimit bounds the wait for a gateway's answer on the new configuration, and rollBackLimit the time for rolling
// back: systemd gives an agent that it stops 20 seconds.
const (
	gatewayLimit  = 10 * time.Second
	rollBackLimit = 10 * time.Second
)

// Apply applies changes to a machine that is configured already, and takes back those it has made if they cut it off:
// when a gateway answered before, and a wanted one of the same address family does not afterwards, also where a part of
// the changes failed. What is not confirmed when ctx ends is taken back, too: the next start would see nothing to
// change, and not ask. Only gateways count; the bus may be down for its own reasons. A change is final, and applied
// without asking, where taking it back could restore what is no longer the machine's: an address that is not wanted, or
// another agent's configuration. So is the first configuration.
func Apply(ctx context.Context, k *network.Kernel, have network.State, want network.Desired, changes []network.Change, options Options) (Outcome, error) {
	if !options.SameAgent || len(network.Invert(changes, have)) == 0 || !have.Configured() || losesAddress(changes, want) {
		made, err := k.Apply(ctx, changes)
		return Outcome{Made: made}, err
	}
	limited, cancel := context.WithTimeout(ctx, askBefore)
	answered := neighbor.Answering(limited, have, neighbor.PresentGateways(have, want))
	cancel()
	made, failed := k.Apply(ctx, changes)
	o := Outcome{Made: made}
	back := network.Invert(made, have)
	if len(answered) == 0 || len(back) == 0 {
		return o, failed
	}
	o.Reason = doubt(ctx, k, want, answered, cmp.Or(options.Limit, gatewayLimit))
	if o.Reason == "" {
		return o, failed
	}
	if failed != nil {
		o.Reason += "; " + failed.Error()
	}
	o.RolledBack = true
	k.Log.WithField("reason", o.Reason).Warn("rolling back a network change")
	undoing, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollBackLimit)
	defer cancel()
	made, err := k.Apply(undoing, back)
	o.Made = append(o.Made, made...)
	if err != nil {
		return o, fmt.Errorf("roll back a network change: %w", err)
	}
	return o, context.Cause(ctx)
}

// doubt says why a change is not confirmed, or "": a wanted gateway does not answer although one of its family did
// before.
func doubt(ctx context.Context, k *network.Kernel, want network.Desired, before []neighbor.Gateway,
	limit time.Duration) string {
	wanted := slices.DeleteFunc(neighbor.WantedGateways(want), func(g neighbor.Gateway) bool {
		return !slices.ContainsFunc(before, func(b neighbor.Gateway) bool { return b.IP.Is4() == g.IP.Is4() })
	})
	if len(wanted) == 0 {
		return ""
	}
	now, err := k.ObserveLinks()
	if err != nil {
		return "whether the gateways answer is not known: " + err.Error()
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	answered := neighbor.Answering(limited, now, wanted)
	silent := slices.IndexFunc(wanted, func(g neighbor.Gateway) bool { return !slices.Contains(answered, g) })
	if silent < 0 {
		return ""
	}
	g, within := wanted[silent], "within "+limit.String()
	if ctx.Err() != nil {
		within = "before the check was stopped"
	}
	return fmt.Sprintf("network %q: gateway %s on %s did not answer %s; %s did before the change",
		g.Network, g.IP, g.Link, within, before[0].IP)
}

// losesAddress reports whether an address is removed that the machine may no longer use.
func losesAddress(changes []network.Change, want network.Desired) bool {
	return slices.ContainsFunc(changes, func(c network.Change) bool {
		return c.Op == network.OpRemoveAddress && !slices.ContainsFunc(want.Links, func(l network.WantLink) bool {
			return slices.ContainsFunc(l.Addresses, func(a network.WantAddress) bool { return a.Prefix.Addr() == c.Address.Addr() })
		})
	})
}
