package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"cambium/internal/retry"
)

// announcements is how long to wait before each round: at once, quickly again in case a switch
// port was still learning, then for a minute and a half in all, which outlasts the caches of the
// routers and overlays that depend on it.
var announcements = append([]time.Duration{0, time.Second, 2 * time.Second},
	slices.Repeat([]time.Duration{5 * time.Second}, 18)...)

// Announce tells the neighbours where the machine's addresses are: gratuitous ARP for IPv4,
// unsolicited neighbour advertisements for IPv6. It repeats that for a while and returns when it
// is done or ctx ends; run it beside other work. Every round looks at the addresses anew, so a
// lease that comes late is announced too.
func (k *Kernel) Announce(ctx context.Context, want Desired) {
	if want.Preconfigured {
		return
	}
	for _, pause := range announcements {
		if retry.Sleep(ctx, pause) != nil {
			return
		}
		if err := k.announce(ctx, want); err != nil && ctx.Err() == nil {
			k.Log.WithError(err).Debug("cannot announce all addresses")
		}
	}
}

func (k *Kernel) announce(ctx context.Context, want Desired) error {
	have, err := k.observeKernel()
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
				failed = append(failed, announceAddress(ctx, l, a.Prefix.Addr()))
			}
		}
	}
	return errors.Join(failed...)
}

func announceAddress(ctx context.Context, l Link, ip netip.Addr) error {
	if ip.Is4() {
		conn, err := dialARP(l)
		if err != nil {
			return err
		}
		defer conn.close()
		return conn.announce(ctx, ip)
	}
	conn, err := dialND(l, ip)
	if err != nil {
		return err
	}
	defer conn.close()
	return conn.announce(ctx, ip)
}

// probeRounds and probePause are how often and how far apart an address is probed for.
const (
	probeRounds = 3
	probePause  = 300 * time.Millisecond
)

// Probe asks whether another machine uses one of our static addresses, by ARP for IPv4 and by the
// kernel's own detection for IPv6, and whether the gateways answer. It takes about a second; run
// it beside other work.
func (k *Kernel) Probe(ctx context.Context, want Desired) Warnings {
	if want.Preconfigured {
		return nil
	}
	have, err := k.observeKernel()
	if err != nil {
		return Warnings{err.Error()}
	}
	var (
		all   sync.WaitGroup
		mutex sync.Mutex
		found Warnings
	)
	report := func(w Warnings) {
		mutex.Lock()
		defer mutex.Unlock()
		found = append(found, w...)
	}
	for _, w := range want.Links {
		l, ok := have.Link(w.Name)
		if !ok {
			continue
		}
		for _, a := range w.Addresses {
			if a.Prefix.Addr().Is4() {
				all.Go(func() { report(probeARP(ctx, have, l, a)) })
			}
		}
		all.Go(func() { report(k.awaitDAD(ctx, w)) })
	}
	all.Go(func() { report(silentGateways(ctx, have, want)) })
	all.Wait()
	slices.Sort(found)
	return found
}

// silentGateways reports gateways that do not answer.
func silentGateways(ctx context.Context, have State, want Desired) (found Warnings) {
	ctx, cancel := context.WithTimeout(ctx, probeRounds*probePause)
	defer cancel()
	wanted := wantedGateways(want)
	answered := answering(ctx, have, wanted)
	for _, g := range wanted {
		if !slices.Contains(answered, g) {
			found = append(found, fmt.Sprintf("network %q: gateway %s does not answer on %s", g.network, g.ip, g.link))
		}
	}
	return found
}

// probeARP reports another owner of an IPv4 address.
func probeARP(ctx context.Context, have State, l Link, a WantAddress) Warnings {
	conn, err := dialARP(l)
	if err != nil {
		return nil // no Ethernet, no ARP
	}
	defer conn.close()
	ip := a.Prefix.Addr()
	other, err := ask(ctx, probeRounds,
		func(ctx context.Context) error { return conn.request(ctx, netip.IPv4Unspecified(), ip) },
		func(ctx context.Context) (arp, error) {
			return conn.receive(ctx, func(m arp) bool {
				return m.senderIP == ip && !slices.ContainsFunc(have.Links, func(l Link) bool { return l.MAC == macOf(m.senderMAC) })
			})
		})
	if err != nil {
		return nil
	}
	return Warnings{fmt.Sprintf("network %q: address %s on %s is also used by the machine with hardware address %s", a.Network, ip, l.Name, macOf(other.senderMAC))}
}

func macOf(b [6]byte) MAC {
	return MAC(fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3], b[4], b[5]))
}

// ask sends a question until there is an answer, rounds times at most.
func ask[T any](ctx context.Context, rounds int, send func(context.Context) error, receive func(context.Context) (T, error)) (T, error) {
	var none T
	err := errors.New("nobody asked")
	for range rounds {
		if err = send(ctx); err != nil {
			return none, err
		}
		round, cancel := context.WithTimeout(ctx, probePause)
		var answer T
		answer, err = receive(round)
		cancel()
		if err == nil {
			return answer, nil
		}
		if ctx.Err() != nil {
			return none, context.Cause(ctx)
		}
	}
	return none, err
}

// awaitDAD waits for the kernel's verdict on the link's IPv6 addresses.
func (k *Kernel) awaitDAD(ctx context.Context, want WantLink) (found Warnings) {
	// A second for each of the kernel's own tries, and as much again.
	ctx, cancel := context.WithTimeout(ctx, 4*time.Second)
	defer cancel()
	err := k.until(ctx, func(have State) error {
		found = nil
		l, _ := have.Link(want.Name)
		for _, a := range want.Addresses {
			i := slices.IndexFunc(l.Addresses, func(h Address) bool { return h.Prefix == a.Prefix })
			switch {
			case i < 0 || a.Prefix.Addr().Is4():
			case l.Addresses[i].DADFailed:
				found = append(found, fmt.Sprintf("network %q: address %s on %s is also used by another machine", a.Network, a.Prefix.Addr(), l.Name))
			case l.Addresses[i].Tentative:
				return fmt.Errorf("network %q: address %s on %s is still being checked for duplicates", a.Network, a.Prefix.Addr(), l.Name)
			}
		}
		return nil
	})
	if err != nil {
		found = append(found, err.Error())
	}
	return found
}

// answers reports whether a gateway answers on the link before ctx ends. From is the machine's
// own address in the gateway's subnet, or any of that family.
func answers(ctx context.Context, l Link, from, gateway netip.Addr) error {
	if gateway.Is4() {
		conn, err := dialARP(l)
		if err != nil {
			return err
		}
		defer conn.close()
		_, err = ask(ctx, endless,
			func(ctx context.Context) error { return conn.request(ctx, from, gateway) },
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
	_, err = ask(ctx, endless,
		func(ctx context.Context) error { return conn.request(ctx, gateway) },
		func(ctx context.Context) (struct{}, error) { return struct{}{}, conn.receive(ctx, gateway) })
	return err
}

// endless leaves it to the context to end the asking.
const endless = 1 << 30
