// Package neighbor communicates with machines on the same link, by ARP for IPv4 and neighbor discovery for IPv6. It
// announces the machine's addresses, detects duplicates, asks gateways whether they answer, and flushes the kernel's
// neighbor entries.
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

// announcements lists the pauses before the rounds: none at first, then short ones in case a switch port was still
// learning, then longer ones. Their total of a minute and a half exceeds the lifetime of entries in the caches of
// routers and overlays.
var announcements = append([]time.Duration{0, time.Second, 2 * time.Second},
	slices.Repeat([]time.Duration{5 * time.Second}, 18)...)

// Announce announces the machine's addresses to its neighbors: by gratuitous ARP for IPv4, and unsolicited neighbor
// advertisements for IPv6. It repeats this for a minute and a half, or until ctx ends, so run it in parallel to other
// work. Each round observes the addresses again, so that late leases are announced, too.
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
