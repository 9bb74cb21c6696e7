package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/mdlayher/socket"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Warnings are sentences about what works, but not as it should.
type Warnings []string

// watcher tells that something about links, addresses, routes or neighbours has changed. What
// it was is not of interest: who waits looks at the whole again, which cannot miss anything.
type watcher struct{ conn *socket.Conn }

func watch() (*watcher, error) {
	conn, err := socket.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE, "rtnetlink", nil)
	if err != nil {
		return nil, fmt.Errorf("watch the network: %w", err)
	}
	groups := unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR | unix.RTMGRP_IPV4_ROUTE | unix.RTMGRP_IPV6_ROUTE
	if err := conn.Bind(&unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: uint32(groups)}); err != nil {
		return nil, errors.Join(fmt.Errorf("watch the network: %w", err), conn.Close())
	}
	return &watcher{conn}, nil
}

func (w *watcher) close() { _ = w.conn.Close() }

// next returns after an event, or with the context's cause.
func (w *watcher) next(ctx context.Context) error {
	var buffer [1]byte
	// The rest of a datagram is dropped, which is fine. So is an overflow (ENOBUFS): it means
	// that there were events.
	_, _, err := w.conn.Recvfrom(ctx, buffer[:], 0)
	if err == nil || errors.Is(err, unix.ENOBUFS) {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// until looks at the machine now and after each event, until missing returns nil. When ctx ends
// first, the last answer is the error.
func (k *Kernel) until(ctx context.Context, missing func(State) error) error {
	w, err := watch()
	if err != nil {
		return err
	}
	defer w.close()
	for {
		have, err := k.observeKernel()
		if err != nil {
			return err
		}
		if err = missing(have); err == nil {
			return nil
		}
		var final finalError
		if errors.As(err, &final) {
			return final.error
		}
		if ended := w.next(ctx); ended != nil {
			return fmt.Errorf("%w (%w)", err, ended)
		}
	}
}

// finalError is one that no event will heal.
type finalError struct{ error }

// WaitReady waits until everything wanted is there and usable: static addresses, routes, and at
// least one address from each lease. IPv6 addresses that are still checked for duplicates count
// as usable unless want.AwaitIPv6 is set; Probe reports on them. The time limit is ctx's.
func (k *Kernel) WaitReady(ctx context.Context, want Desired) (Warnings, error) {
	if want.Preconfigured {
		return nil, nil
	}
	var warnings Warnings
	err := k.until(ctx, func(have State) error {
		warnings = nil
		var missing []error
		for _, l := range want.Links {
			link, found := have.Link(l.Name)
			if !found {
				if len(l.Networks) > 0 {
					missing = append(missing, fmt.Errorf("network %s: there is no link %s", l.networks(), l.Name))
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

func missingAddresses(have Link, want WantLink, awaitIPv6 bool) (missing []error) {
	for _, a := range want.Addresses {
		i := slices.IndexFunc(have.Addresses, func(h Address) bool { return h.Prefix == a.Prefix })
		switch {
		case i < 0:
			missing = append(missing, fmt.Errorf("network %q: address %s is not on %s", a.Network, a.Prefix, have.Name))
		case have.Addresses[i].DADFailed && awaitIPv6:
			missing = append(missing, finalError{fmt.Errorf("network %q: address %s on %s is used by another machine", a.Network, a.Prefix, have.Name)})
		case have.Addresses[i].Tentative && awaitIPv6:
			missing = append(missing, fmt.Errorf("network %q: address %s on %s is still being checked for duplicates", a.Network, a.Prefix, have.Name))
		}
	}
	return missing
}

// missingLeases checks that a lease came, and warns if it is not the one that the document names.
func missingLeases(have Link, want WantLink, awaitIPv6 bool) (missing []error, warnings Warnings) {
	var leased []netip.Addr
	for _, a := range have.Addresses {
		static := slices.ContainsFunc(want.Addresses, func(w WantAddress) bool { return w.Prefix == a.Prefix })
		if a.Global() && a.Usable() && !static {
			leased = append(leased, a.Prefix.Addr())
		}
	}
	for _, l := range want.Leases {
		if l.IP.Is6() && !awaitIPv6 && len(want.Leases) > 1 {
			continue // comes with a router advertisement, at its own pace
		}
		family := slices.ContainsFunc(leased, func(ip netip.Addr) bool { return !l.IP.IsValid() || ip.Is4() == l.IP.Is4() })
		switch {
		case !family:
			missing = append(missing, fmt.Errorf("network %q: no DHCP lease on %s", l.Network, have.Name))
		case l.IP.IsValid() && !slices.Contains(leased, l.IP):
			warnings = append(warnings, fmt.Sprintf("network %q: the DHCP server gave %v on %s, not %s", l.Network, leased, have.Name, l.IP))
		}
	}
	return missing, warnings
}

func missingRoutes(have State, want WantLink) (missing []error) {
	for _, r := range want.Routes {
		route := r.route(want.Name)
		if !slices.ContainsFunc(have.Routes, func(h Route) bool { return h.Link == route.Link && h.To == route.To && h.Gateway == route.Gateway }) {
			missing = append(missing, fmt.Errorf("network %q: there is no route %s", r.Network, route))
		}
	}
	return missing
}

// Cables lists the machine's NICs by name and hardware address, and which of them have a carrier.
func (k *Kernel) Cables() (nics, carriers []string, err error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, nil, fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	links, err := dump("links", h.LinkList)
	if err != nil {
		return nil, nil, err
	}
	for _, l := range links {
		a := l.Attrs()
		if !k.isNIC(a) {
			continue
		}
		nic := a.Name + " " + a.HardwareAddr.String()
		if nics = append(nics, nic); a.RawFlags&unix.IFF_LOWER_UP != 0 {
			carriers = append(carriers, nic)
		}
	}
	slices.Sort(nics)
	slices.Sort(carriers)
	return nics, carriers, nil
}

// Watch calls changed once it listens, and again whenever something about the network has
// changed, until ctx ends.
func (k *Kernel) Watch(ctx context.Context, changed func()) error {
	w, err := watch()
	if err != nil {
		return err
	}
	defer w.close()
	for {
		changed()
		if err := w.next(ctx); err != nil {
			return err
		}
	}
}

// WaitLinks waits until there is a NIC for each of the hardware addresses; NICs may be attached
// late. The error names those that did not come in time.
func (k *Kernel) WaitLinks(ctx context.Context, macs []MAC) error {
	return k.until(ctx, func(have State) error {
		var missing []error
		for _, mac := range macs {
			if !slices.ContainsFunc(have.NICs(), func(l Link) bool { return l.MAC == mac }) {
				missing = append(missing, fmt.Errorf("no NIC has the hardware address %s", mac))
			}
		}
		return errors.Join(missing...)
	})
}
