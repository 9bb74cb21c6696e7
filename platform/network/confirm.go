package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sort"
	"sync"
	"time"
)

// Confirm says how careful ApplyConfirmed is.
type Confirm struct {
	// SameAgent is whether the settings that are being replaced were those of the same agent id.
	// Otherwise what is configured belongs to another life of this disk, and is never restored.
	SameAgent bool
	// Limit is how long a gateway may take to answer on the new configuration; 10 s if zero.
	Limit time.Duration
}

// Outcome is what became of a confirmed change.
type Outcome struct {
	// Made are the changes made; after them, where they were taken back, those that did so.
	Made []Change
	// RolledBack means that the configuration is what it was before, for the given reason.
	RolledBack bool
	Reason     string
}

// askBefore is how long a gateway may take to answer before a change. One that works does so
// within a millisecond.
const askBefore = time.Second

// ApplyConfirmed applies changes to a machine that is configured already, and takes them back
// if they cut it off: when a gateway answered before and none does afterwards. Nothing but the
// gateway counts; the bus may be down for its own reasons. A change is final, and applied
// without questions, where taking it back could restore what is not the machine's any more: an
// address that is not wanted, or another agent's configuration. So is the first configuration.
func (k *Kernel) ApplyConfirmed(ctx context.Context, have State, want Desired, changes []Change, c Confirm) (Outcome, error) {
	back := invert(changes, have)
	if !c.SameAgent || len(back) == 0 || !configured(have) || losesAddress(changes, want) {
		made, err := k.Apply(ctx, changes)
		return Outcome{Made: made}, err
	}
	before := presentGateways(have, want)
	asked, cancel := context.WithTimeout(ctx, askBefore)
	answered := answering(asked, have, before)
	cancel()
	made, err := k.Apply(ctx, changes)
	o := Outcome{Made: made}
	if err != nil || len(answered) == 0 {
		return o, err
	}

	limit := c.Limit
	if limit == 0 {
		limit = 10 * time.Second
	}
	after := slices.DeleteFunc(wantedGateways(want), func(g gateway) bool {
		return !slices.ContainsFunc(answered, func(a gateway) bool { return a.ip.Is4() == g.ip.Is4() })
	})
	if len(after) == 0 {
		return o, nil // none is wanted any more
	}
	now, err := k.observeKernel()
	if err != nil {
		return o, err
	}
	asked, cancel = context.WithTimeout(ctx, limit)
	defer cancel()
	reached := answering(asked, now, after)
	if ctx.Err() != nil || len(reached) == len(after) {
		return o, nil
	}
	silent := slices.IndexFunc(after, func(g gateway) bool { return !slices.Contains(reached, g) })
	o.RolledBack, o.Reason = true, fmt.Sprintf("network %q: gateway %s on %s did not answer within %s; %s did before the change",
		after[silent].network, after[silent].ip, after[silent].link, limit, answered[0].ip)
	k.Log.WithField("reason", o.Reason).Warn("taking a network change back")
	made, err = k.Apply(ctx, back)
	o.Made = append(o.Made, made...)
	if err != nil {
		return o, fmt.Errorf("take back a network change: %w", err)
	}
	return o, nil
}

// configured reports whether an agent has configured this machine before.
func configured(have State) bool {
	return slices.ContainsFunc(have.Files, func(f File) bool { _, ours := ourFile(f); return ours })
}

// losesAddress reports whether an address goes that the machine may not have any more.
func losesAddress(changes []Change, want Desired) bool {
	return slices.ContainsFunc(changes, func(c Change) bool {
		return c.Op == OpRemoveAddress && !slices.ContainsFunc(want.Links, func(l WantLink) bool {
			return slices.ContainsFunc(l.Addresses, func(a WantAddress) bool { return a.Prefix.Addr() == c.Address.Addr() })
		})
	})
}

type gateway struct {
	link, network string
	ip            netip.Addr
}

func presentGateways(have State, want Desired) (all []gateway) {
	for _, r := range have.Routes {
		ours := slices.ContainsFunc(want.Links, func(l WantLink) bool { return l.Name == r.Link })
		if g := (gateway{link: r.Link, ip: r.Gateway}); r.Default() && r.Gateway.IsValid() && ours && !slices.Contains(all, g) {
			all = append(all, g)
		}
	}
	return all
}

func wantedGateways(want Desired) (all []gateway) {
	for _, l := range want.Links {
		for _, r := range l.Routes {
			if r.Default() {
				all = append(all, gateway{l.Name, r.Network, r.Gateway})
			}
		}
	}
	return all
}

// answering asks all gateways at once and returns those that answer before ctx ends.
func answering(ctx context.Context, have State, gateways []gateway) []gateway {
	var all sync.WaitGroup
	errs := make([]error, len(gateways))
	for i, g := range gateways {
		all.Go(func() {
			l, _ := have.Link(g.link)
			from, ok := source(l, g.ip)
			if !ok {
				errs[i] = errors.New("no address to ask from")
				return
			}
			errs[i] = answers(ctx, l, from, g.ip)
		})
	}
	all.Wait()
	var answered []gateway
	for i, g := range gateways {
		if errs[i] == nil {
			answered = append(answered, g)
		}
	}
	return answered
}

// source is the address to ask a gateway from: for IPv6 the link's own one, which is usable
// before any other is.
func source(l Link, gw netip.Addr) (from netip.Addr, ok bool) {
	for _, a := range l.Addresses {
		ip := a.Prefix.Addr()
		switch {
		case ip.Is4() != gw.Is4() || !a.Usable():
		case ip.Is6() && ip.IsLinkLocalUnicast(), a.Prefix.Contains(gw):
			return ip, true
		case !ok:
			from, ok = ip, true
		}
	}
	return from, ok
}

// invert lists the changes that take others back, in the order to apply them. Files come back as
// they were.
func invert(changes []Change, have State) (back []Change) {
	for _, c := range changes {
		switch c.Op {
		case OpAddAddress:
			c.Op = OpRemoveAddress
		case OpRemoveAddress:
			c.Op = OpAddAddress
		case OpReplaceAddress:
			c.Address, c.Was = c.Was, c.Address
		case OpAddRoute:
			c.Op = OpRemoveRoute
		case OpRemoveRoute:
			c.Op = OpAddRoute
		case OpReplaceRoute:
			c.Route, c.WasRoute = c.WasRoute, c.Route
			c.Link = c.Route.Link
		case OpWriteFile, OpRemoveFile, OpMoveFile:
			i := slices.IndexFunc(have.Files, func(f File) bool { return f.Path == c.Path })
			if i < 0 {
				c = Change{Op: OpRemoveFile, Path: c.Path, Reload: c.Reload}
			} else {
				c = Change{Op: OpWriteFile, Path: c.Path, Content: have.Files[i].Content, Reload: c.Reload}
			}
		case OpReload:
		default:
			continue // a link that is up, or IPv6 that is on, does no harm
		}
		back = append(back, c)
	}
	sort.SliceStable(back, func(i, j int) bool { return slices.Index(order, back[i].Op) < slices.Index(order, back[j].Op) })
	return back
}
