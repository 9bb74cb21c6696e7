package neighbor

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"cambium/platform/network"
)

// Gateway is the next hop of a default route.
type Gateway struct {
	Link, Network string
	IP            netip.Addr
}

// PresentGateways returns the current default gateways on the wanted links.
func PresentGateways(have network.State, want network.Desired) (all []Gateway) {
	for _, r := range have.Routes {
		ours := slices.ContainsFunc(want.Links, func(l network.WantLink) bool { return l.Name == r.Link })
		if g := (Gateway{Link: r.Link, IP: r.Gateway}); r.Default() && r.Gateway.IsValid() && ours &&
			!slices.Contains(all, g) {
			all = append(all, g)
		}
	}
	return all
}

// WantedGateways returns the gateways of the wanted default routes.
func WantedGateways(want network.Desired) (all []Gateway) {
	for _, l := range want.Links {
		for _, r := range l.Routes {
			if r.Default() {
				all = append(all, Gateway{l.Name, r.Network, r.Gateway})
			}
		}
	}
	return all
}

// Answering asks all gateways concurrently and returns those that answer before ctx ends.
func Answering(ctx context.Context, have network.State, gateways []Gateway) []Gateway {
	var all sync.WaitGroup
	errs := make([]error, len(gateways))
	for i, g := range gateways {
		all.Go(func() {
			l, _ := have.Link(g.Link)
			from, ok := source(l, g.IP)
			if !ok {
				errs[i] = errors.New("no source address")
				return
			}
			errs[i] = answers(ctx, l, from, g.IP)
		})
	}
	all.Wait()
	var answered []Gateway
	for i, g := range gateways {
		if errs[i] == nil {
			answered = append(answered, g)
		}
	}
	return answered
}

// source returns the address from which to ask a gateway. For IPv6 it is the link-local one, which is usable before any
// other.
func source(l network.Link, gw netip.Addr) (from netip.Addr, ok bool) {
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

// silentGateways describes the wanted gateways that do not answer.
func silentGateways(ctx context.Context, have network.State, want network.Desired) (found []string) {
	ctx, cancel := context.WithTimeout(ctx, probeRounds*probePause)
	defer cancel()
	wanted := WantedGateways(want)
	answered := Answering(ctx, have, wanted)
	for _, g := range wanted {
		if !slices.Contains(answered, g) {
			found = append(found, fmt.Sprintf("network %q: gateway %s does not answer on %s", g.Network, g.IP, g.Link))
		}
	}
	return found
}

// ask sends a request until there is a reply, at most rounds times, or until ctx ends if rounds is 0.
func ask[T any](ctx context.Context, rounds int, send func() error, receive func(context.Context) (T, error),
) (answer T, err error) {
	for round := 1; ; round++ {
		if err = send(); err != nil {
			return answer, err
		}
		limited, cancel := context.WithTimeout(ctx, probePause)
		answer, err = receive(limited)
		cancel()
		if err == nil || round == rounds {
			return answer, err
		}
		if ctx.Err() != nil {
			return answer, context.Cause(ctx)
		}
	}
}

// answers returns nil if a gateway answers on the link before ctx ends. from is an address of the machine in the
// gateway's subnet, or any of its address family.
func answers(ctx context.Context, l network.Link, from, gateway netip.Addr) error {
	if gateway.Is4() {
		conn, err := dialARP(l)
		if err != nil {
			return err
		}
		defer conn.close()
		_, err = ask(ctx, 0,
			func() error { return conn.request(from, gateway) },
			func(ctx context.Context) (arp, error) {
				return conn.receive(ctx, func(m arp) bool { return m.senderIP == gateway })
			})
		return err
	}
	conn, err := dialND(l, from)
	if err != nil {
		return err
	}
	defer conn.close()
	_, err = ask(ctx, 0,
		func() error { return conn.request(gateway) },
		func(ctx context.Context) (struct{}, error) { return struct{}{}, conn.receive(ctx, gateway) })
	return err
}
