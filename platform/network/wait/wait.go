// Package wait waits for NICs, addresses, routes and leases, until a network is usable. All waits are driven by kernel
// events and bounded by their contexts.
package wait

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"cambium/internal/advice"
	"cambium/internal/retry"
	"cambium/platform/network"
)

// Ready waits until all wanted addresses and routes exist, and at least one address of each lease. IPv6 addresses count
// even during duplicate address detection, unless want.AwaitIPv6 is set; neighbor.Probe reports duplicates.
func Ready(ctx context.Context, k *network.Kernel, want network.Desired) (warnings []string, err error) {
	if want.Preconfigured {
		return nil, nil
	}
	err = Until(ctx, k, func(have network.State) error {
		warnings = nil
		var missing []error
		for _, l := range want.Links {
			link, found := have.Link(l.Name)
			if !found {
				if len(l.Networks) > 0 {
					missing = append(missing, fmt.Errorf("network %s: there is no link %s", l.NetworkNames(), l.Name))
				}
				continue
			}
			missing = append(missing, missingAddresses(link, l, want.AwaitIPv6)...)
			late, warn := missingLeases(link, l, want.AwaitIPv6)
			missing, warnings = append(missing, late...), append(warnings, warn...)
			missing = append(missing, missingRoutes(have, l)...)
		}
		return errors.Join(missing...)
	})
	return warnings, err
}

func missingAddresses(have network.Link, want network.WantLink, awaitIPv6 bool) (missing []error) {
	for _, a := range want.Addresses {
		i := slices.IndexFunc(have.Addresses, func(h network.Address) bool { return h.Prefix == a.Prefix })
		switch {
		case i < 0:
			missing = append(missing, fmt.Errorf("network %q: address %s is not on %s", a.Network, a.Prefix, have.Name))
		case have.Addresses[i].DADFailed && awaitIPv6:
			missing = append(
				missing,
				retry.Final(advice.With(
					"find the other machine, and give one of the two another address",
					fmt.Errorf("network %q: address %s on %s is used by another machine", a.Network, a.Prefix,
						have.Name),
				)),
			)
		case have.Addresses[i].Tentative && awaitIPv6:
			missing = append(
				missing,
				fmt.Errorf("network %q: address %s on %s is still being checked for duplicates", a.Network,
					a.Prefix, have.Name),
			)
		}
	}
	return missing
}

// missingLeases returns an error for each missing lease, and warnings for leases with an unexpected address.
func missingLeases(have network.Link, want network.WantLink, awaitIPv6 bool) (missing []error, warnings []string) {
	var leased []netip.Addr
	for _, a := range have.Addresses {
		static := slices.ContainsFunc(want.Addresses, func(w network.WantAddress) bool { return w.Prefix == a.Prefix })
		if a.Global() && a.Usable() && !static {
			leased = append(leased, a.Prefix.Addr())
		}
	}
	for _, l := range want.Leases {
		if l.IP.Is6() && !awaitIPv6 && len(want.Leases) > 1 {
			continue // do not wait for router advertisements
		}
		family := slices.ContainsFunc(leased,
			func(ip netip.Addr) bool { return !l.IP.IsValid() || ip.Is4() == l.IP.Is4() })
		switch {
		case !family:
			missing = append(
				missing,
				advice.With("check that a DHCP server serves the network to which "+have.Name+" is attached",
					fmt.Errorf("network %q: no DHCP lease on %s", l.Network, have.Name)),
			)
		case l.IP.IsValid() && !slices.Contains(leased, l.IP):
			warnings = append(
				warnings,
				fmt.Sprintf("network %q: the DHCP server assigned %v on %s, not %s", l.Network, leased, have.Name,
					l.IP),
			)
		}
	}
	return missing, warnings
}

func missingRoutes(have network.State, want network.WantLink) (missing []error) {
	for _, r := range want.Routes {
		route := r.ForLink(want.Name)
		if !slices.ContainsFunc(have.Routes, func(h network.Route) bool {
			return h.Link == route.Link && h.To == route.To && h.Gateway == route.Gateway
		}) {
			missing = append(missing, fmt.Errorf("network %q: there is no route %s", r.Network, route))
		}
	}
	return missing
}
