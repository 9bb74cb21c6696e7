package wait

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"cambium/platform/network"
)

// Resolve returns the address of each dynamic network: that of its link, or else of the link with the default route.
// The error names networks without an address; the others are returned nevertheless.
func Resolve(ctx context.Context, k *network.Kernel, networks []network.Dynamic) (map[string]network.Resolved, error) {
	if len(networks) == 0 {
		return nil, nil
	}
	have, err := leased(ctx, k, networks)
	if err != nil {
		return nil, err
	}
	found := map[string]network.Resolved{}
	var failed []error
	for _, n := range networks {
		r, err := resolve(k, have, n)
		if err != nil {
			failed = append(failed, fmt.Errorf("network %q: %w", n.Network, err))
			continue
		}
		found[n.Network] = r
	}
	return found, errors.Join(failed...)
}

// leaseLimit bounds the wait for the routes of a lease.
const leaseLimit = time.Second

// leased observes the links. If networkd has just set a lease's address, it waits for the routes, which follow shortly,
// to know the gateway.
func leased(ctx context.Context, k *network.Kernel, networks []network.Dynamic) (have network.State, err error) {
	ctx, cancel := context.WithTimeout(ctx, leaseLimit)
	defer cancel()
	err = Until(ctx, k, func(s network.State) error {
		have = s
		for _, n := range networks {
			l, _ := s.Link(n.Link)
			_, routed := defaultRoute(s, n)
			if !n.IPv6 && l.NetworkFile != "" && !routed && !k.Networkd().HasLease(l.Index) &&
				slices.ContainsFunc(l.Addresses, func(a network.Address) bool { return a.Dynamic }) {
				return fmt.Errorf("network %q: the lease on %s is incomplete", n.Network, l.Name)
			}
		}
		return nil
	})
	if len(have.Links) > 0 {
		return have, nil
	}
	return have, err
}

func resolve(k *network.Kernel, have network.State, n network.Dynamic) (network.Resolved, error) {
	family := "IPv4"
	if n.IPv6 {
		family = "IPv6"
	}
	via, hasDefault := defaultRoute(have, n)
	link := n.Link
	if link == "" {
		if !hasDefault {
			return network.Resolved{}, fmt.Errorf("there is no %s default route", family)
		}
		link = via.Link
	}
	l, found := have.Link(link)
	if !found {
		return network.Resolved{}, fmt.Errorf("there is no link %s", link)
	}
	prefix, found := primary(l, n.IPv6)
	if !found {
		return network.Resolved{}, fmt.Errorf("%s has no %s address", link, family)
	}
	r := network.Resolved{
		IP:      prefix.Addr().String(),
		Netmask: net.IP(net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())).String(),
	}
	switch {
	case hasDefault:
		r.Gateway = via.Gateway.String()
	case !n.IPv6:
		// The lease contains a router even if its default route is ignored.
		router, _, _ := strings.Cut(k.Networkd().Lease(l.Index, "ROUTER"), " ")
		if _, err := netip.ParseAddr(router); err == nil {
			r.Gateway = router
		}
	}
	return r, nil
}

// defaultRoute returns the preferred default route of the network's link and address family, or of any link if the
// network has none.
func defaultRoute(have network.State, n network.Dynamic) (best network.Route, found bool) {
	for _, r := range have.Routes {
		if !r.Default() || !r.Gateway.IsValid() || r.To.Addr().Is6() != n.IPv6 || n.Link != "" && r.Link != n.Link {
			continue
		}
		// On a link with a static default route, too, prefer the lease's.
		leased := n.Link != "" && r.Origin == network.OriginDHCP && best.Origin != network.OriginDHCP
		if !found || leased || r.Metric < best.Metric && (n.Link == "" || r.Origin == best.Origin) {
			best, found = r, true
		}
	}
	return best, found
}

// primary returns the address of a dynamic network on its link: the leased one, else the first global one, else (for
// IPv4) the first.
func primary(l network.Link, ipv6 bool) (netip.Prefix, bool) {
	family := slices.DeleteFunc(slices.Clone(l.Addresses),
		func(a network.Address) bool { return a.Prefix.Addr().Is6() != ipv6 })
	for _, fits := range []func(network.Address) bool{func(a network.Address) bool { return a.Global() && a.Dynamic },
		network.Address.Global} {
		if i := slices.IndexFunc(family, fits); i >= 0 {
			return family[i].Prefix, true
		}
	}
	if ipv6 || len(family) == 0 {
		return netip.Prefix{}, false
	}
	return family[0].Prefix, true
}
