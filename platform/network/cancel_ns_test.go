//go:build ns

package network_test

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"time"

	"cambium/desired"
	"cambium/internal/nstest"
	"cambium/platform/network"
	"cambium/platform/network/neighbor"
	"cambium/platform/network/wait"
	"cambium/settings"
)

// TestNSWaitsEndWhenCanceled: a wait for something that never happens, with a distant deadline, ends when its caller is
// canceled.
func TestNSWaitsEndWhenCanceled(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		k, peer := newKernel(t), nstest.NewPeer(t)
		peer.NIC(t, "eth0", "02:00:00:00:00:01")
		apply(t, k, nets{"a": settings.Network{Type: "manual", IP: "10.0.0.2", Netmask: "255.255.255.0",
			MAC: "02:00:00:00:00:01"}})
		gateways := []neighbor.Gateway{{Link: "eth0", IP: netip.MustParseAddr("10.0.0.254")},
			{Link: "eth0", IP: netip.MustParseAddr("fe80::254")}}
		// From here on there are addresses of both families to ask from.
		var have network.State
		if err := wait.Until(within(t, time.Minute), k, func(s network.State) error {
			have = s
			if l, _ := s.Link("eth0"); len(l.Addresses) < 2 || !l.Addresses[0].Usable() || !l.Addresses[1].Usable() {
				return errors.New("addresses are missing")
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		other := network.Desired{Links: []network.WantLink{{Name: "eth0", Networks: []string{"b"},
			Addresses: []network.WantAddress{{Prefix: netip.MustParsePrefix("10.9.9.9/24"), Network: "b"}}}}}
		var stopped sync.WaitGroup
		for name, waitFor := range map[string]func(context.Context) error{
			"a NIC": func(ctx context.Context) error {
				return wait.Until(ctx, k, func(network.State) error { return desired.ErrNoNIC })
			},
			"an address": func(ctx context.Context) error {
				_, err := wait.Ready(ctx, k, other)
				return err
			},
			"an event": func(ctx context.Context) error { return wait.Watch(ctx, func() {}) },
			"gateways": func(ctx context.Context) error {
				if answered := neighbor.Answering(ctx, have, gateways); len(answered) > 0 {
					return errors.New("a gateway has answered that does not exist")
				}
				return context.Cause(ctx)
			},
		} {
			stopped.Go(func() {
				deadline := time.Now().Add(2 * time.Minute)
				cause := errors.New("the agent stops")
				ctx, cancel := context.WithCancelCause(t.Context())
				ctx, free := context.WithDeadline(ctx, deadline)
				defer free()
				// By then it waits; otherwise it must not begin.
				time.AfterFunc(time.Second, func() { cancel(cause) })
				if err := waitFor(ctx); !errors.Is(err, cause) {
					t.Errorf("the wait for %s ended with %v, want the cause", name, err)
				}
				if late := time.Since(deadline); late >= 0 {
					t.Errorf("the wait for %s went on to its deadline", name)
				}
			})
		}
		stopped.Wait()
	})
}
