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

// Options configures Apply.
type Options struct {
	// SameAgent is set if the replaced settings had the same agent id. Otherwise the existing configuration belongs to
	// an earlier VM with this disk, and is never restored.
	SameAgent bool
	// Limit bounds the wait for gateways to answer after the change. 0 means gatewayLimit.
	Limit time.Duration
}

// Outcome is the result of Apply.
type Outcome struct {
	// Made lists the changes made, followed by those that undid them, if any.
	Made []network.Change
	// RolledBack is set if the earlier configuration was restored, for the given Reason.
	RolledBack bool
	Reason     string
}

// askBefore bounds the wait for gateways to answer before the change. A working one answers within a millisecond.
const askBefore = time.Second

// gatewayLimit bounds the wait for gateways to answer after the change, and rollBackLimit the time to roll it back.
// When systemd stops the agent, it waits for 20 seconds.
const (
	gatewayLimit  = 10 * time.Second
	rollBackLimit = 10 * time.Second
)

// Apply applies changes to a configured network, and undoes them if they cut off the machine: if a gateway answered
// before, and a wanted one of the same address family does not answer afterwards. That also holds if some of the
// changes failed, and if ctx ends before a gateway answers: the next start would find nothing to change and not ask.
// Only gateways count, since the bus may be down for other reasons.
//
// A change is final, and made without asking, if undoing it might restore what no longer belongs to the machine: an
// address that is no longer wanted, or another agent's configuration. The first configuration is final, too.
func Apply(ctx context.Context, k *network.Kernel, have network.State, want network.Desired,
	changes []network.Change, options Options) (Outcome, error) {
	if !options.SameAgent || len(network.Invert(changes, have)) == 0 || !have.Configured() ||
		losesAddress(changes, want) {
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

// doubt returns the reason not to confirm a change: a wanted gateway does not answer although one of its address family
// did before. It returns "" if there is none.
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

// losesAddress reports whether the changes remove an address that the machine may no longer use.
func losesAddress(changes []network.Change, want network.Desired) bool {
	return slices.ContainsFunc(changes, func(c network.Change) bool {
		return c.Op == network.OpRemoveAddress && !slices.ContainsFunc(want.Links, func(l network.WantLink) bool {
			return slices.ContainsFunc(l.Addresses,
				func(a network.WantAddress) bool { return a.Prefix.Addr() == c.Address.Addr() })
		})
	})
}
