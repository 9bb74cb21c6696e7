// Package neighbor communicates with the machines on the same link, by ARP for IPv4 and by neighbor
// discovery for IPv6: it announces the machine's addresses, finds other users of them, asks
// gateways whether they answer, and flushes the kernel's neighbor entries.
package neighbor

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"cambium/internal/retry"
	"cambium/platform/network"
)

// announcements lists the pause before each round: none at first, short ones in case a switch port was still learning,
// then longer ones for a minute and a half in all, which outlasts the caches of the routers and overlays that depend on
// it.
var announcements = append([]time.Duration{0, time.Second, 2 * time.Second},
	slices.Repeat([]time.Duration{5 * time.Second}, 18)...)

// Announce announces the machine's addresses to its neighbors: gratuitous ARP for IPv4, unsolicited
// neighbor advertisements for IPv6. It repeats that for a minute and a half and returns then or when ctx
// ends; run it in parallel to other work. Every round observes the addresses again, so a lease that comes
// late is announced too.
func Announce(ctx context.Context, k *network.Kernel, want network.Desired) {
	if want.Preconfigured {
		return
	}
	for _, pause := range announcements {
		if retry.Sleep(ctx, pause) != nil {
			return
		}
		if err := announce(k, want); err != nil {
			k.Log.WithError(err).Debug("cannot announce all addresses")
		}
	}
}

func announce(k *network.Kernel, want network.Desired) error {
	have, err := k.ObserveLinks()
	if err != nil {
		return err
	}
	var failed []error
	for _, w := range want.Links {
		l, found := have.Link(w.Name)
		if !found || !l.Up {
			continue
		}
		for _, a := range l.Addresses {
			if a.Global() && a.Usable() {
				failed = append(failed, announceAddress(l, a.Prefix.Addr()))
			}
		}
	}
	return errors.Join(failed...)
}

func announceAddress(l network.Link, ip netip.Addr) error {
	if ip.Is4() {
		conn, err := dialARP(l)
		if err != nil {
			return err
		}
		defer conn.close()
		return conn.announce(ip)
	}
	conn, err := dialND(l, ip)
	if err != nil {
		return err
	}
	defer conn.close()
	return conn.announce(ip)
}
