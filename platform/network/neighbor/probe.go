package neighbor

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"cambium/platform/network"
	"cambium/platform/network/wait"
)

// probeRounds is the number of probes for an address, and probePause the time between them.
const (
	probeRounds = 3
	probePause  = 300 * time.Millisecond
)

// Probe checks whether other machines use the wanted static addresses, by ARP for IPv4 and the kernel's detection for
// IPv6, and which gateways do not answer. It returns a description of each. It takes about a second, so run it in
// parallel to other work.
func Probe(ctx context.Context, k *network.Kernel, want network.Desired) (duplicates, silent []string) {
	if want.Preconfigured {
		return nil, nil
	}
	have, err := k.ObserveLinks()
	if err != nil {
		return nil, []string{err.Error()}
	}
	var (
		all   sync.WaitGroup
		mutex sync.Mutex
	)
	report := func(w []string) {
		mutex.Lock()
		defer mutex.Unlock()
		duplicates = append(duplicates, w...)
	}
	for _, w := range want.Links {
		l, ok := have.Link(w.Name)
		if !ok {
			continue
		}
		for _, a := range w.Addresses {
			if a.Prefix.Addr().Is4() {
				all.Go(func() {
					for _, d := range probeARP(ctx, have, l, a.Prefix.Addr()) {
						report([]string{fmt.Sprintf("network %q: %s", a.Network, d)})
					}
				})
			}
		}
		all.Go(func() { report(awaitDAD(ctx, k, w)) })
	}
	all.Go(func() { silent = silentGateways(ctx, have, want) })
	all.Wait()
	slices.Sort(duplicates)
	return duplicates, silent
}

// Duplicates describes the addresses of the machine's NICs that other machines use, too. It takes about a second.
func Duplicates(ctx context.Context, have network.State) (found []string) {
	var all sync.WaitGroup
	var mutex sync.Mutex
	for _, l := range have.NICs() {
		for _, a := range l.Addresses {
			ip := a.Prefix.Addr()
			switch {
			case a.DADFailed:
				mutex.Lock()
				found = append(found, fmt.Sprintf("address %s on %s is also used by another machine", ip, l.Name))
				mutex.Unlock()
			case l.Up && ip.Is4() && a.Global():
				all.Go(func() {
					others := probeARP(ctx, have, l, ip)
					mutex.Lock()
					defer mutex.Unlock()
					found = append(found, others...)
				})
			}
		}
	}
	all.Wait()
	slices.Sort(found)
	return found
}

// probeARP describes another machine with the same IPv4 address, if any.
func probeARP(ctx context.Context, have network.State, l network.Link, ip netip.Addr) []string {
	conn, err := dialARP(l)
	if err != nil {
		return nil // no Ethernet, no ARP
	}
	defer conn.close()
	other, err := ask(ctx, probeRounds,
		func() error { return conn.request(netip.IPv4Unspecified(), ip) },
		func(ctx context.Context) (arp, error) {
			return conn.receive(ctx, func(m arp) bool {
				return m.senderIP == ip &&
					!slices.ContainsFunc(have.Links, func(l network.Link) bool { return l.MAC == macOf(m.senderMAC) })
			})
		})
	if err != nil {
		return nil
	}
	return []string{fmt.Sprintf("address %s on %s is also used by the machine with hardware address %s", ip, l.Name,
		macOf(other.senderMAC))}
}

func macOf(b [6]byte) network.MAC {
	return network.MAC(fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3], b[4], b[5]))
}

// awaitDAD waits for the kernel's duplicate address detection on a link, and describes the duplicates.
func awaitDAD(ctx context.Context, k *network.Kernel, want network.WantLink) (found []string) {
	// The kernel needs a second for each of its tries. Wait twice as long.
	ctx, cancel := context.WithTimeout(ctx, 4*time.Second)
	defer cancel()
	err := wait.Until(ctx, k, func(have network.State) error {
		found = nil
		l, _ := have.Link(want.Name)
		for _, a := range want.Addresses {
			i := slices.IndexFunc(l.Addresses, func(h network.Address) bool { return h.Prefix == a.Prefix })
			switch {
			case i < 0 || a.Prefix.Addr().Is4():
			case l.Addresses[i].DADFailed:
				found = append(
					found,
					fmt.Sprintf("network %q: address %s on %s is also used by another machine", a.Network,
						a.Prefix.Addr(), l.Name),
				)
			case l.Addresses[i].Tentative:
				return fmt.Errorf("network %q: address %s on %s is still being checked for duplicates", a.Network,
					a.Prefix.Addr(), l.Name)
			}
		}
		return nil
	})
	if err != nil {
		found = append(found, err.Error())
	}
	return found
}
