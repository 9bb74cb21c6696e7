//go:build ns

package bootstrap

import (
	"context"
	"errors"
	"testing"
	"time"

	"cambium/bootstrap/engine"
	"cambium/internal/nstest"
	"cambium/platform/network"
	"cambium/settings"

	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netlink"
)

// TestNSLinksAreNoticed: a NIC that is attached, and one that gets a carrier, end the pause of a
// failed boot; another link does not.
func TestNSLinksAreNoticed(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		peer := nstest.NewPeer(t)
		m := &Machine{Network: &network.Kernel{Root: t.TempDir()}, Log: logrus.NewEntry(logrus.New())}
		noticed := func(change func()) string {
			before := m.hardware()
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			done := make(chan string)
			go func() { done <- m.awaitHardware(ctx, before) }()
			change()
			return <-done
		}
		if got := noticed(func() { peer.NIC(t, "eth0", "02:00:00:00:00:01") }); got != "links" {
			t.Errorf("a NIC that is attached: got %q, want links", got)
		}
		if got := noticed(func() {
			link, err := netlink.LinkByName("eth0")
			if err == nil {
				err = netlink.LinkSetUp(link)
			}
			if err != nil {
				t.Error(err)
			}
		}); got != "links" {
			t.Errorf("a carrier: got %q, want links", got)
		}
		if got := noticed(func() { peer.Veth(t, "veth9", "") }); got != "" {
			t.Errorf("a link that is not a NIC: got %q, want nothing", got)
		}
	})
}

// TestNSNICThatComesLate: the network step waits for the NIC of a hardware address, and plans for it once it is there.
func TestNSNICThatComesLate(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		const first, late = "02:00:00:00:00:01", "02:00:00:00:00:02"
		peer := nstest.NewPeer(t)
		peer.NIC(t, "eth0", first)
		m := &Machine{Network: &network.Kernel{Root: t.TempDir()}}
		nets := map[string]settings.Network{
			"a": {Type: "manual", IP: "10.0.0.5", Netmask: "255.255.255.0", MAC: first},
			"b": {Type: "manual", IP: "10.1.0.5", Netmask: "255.255.255.0", MAC: late},
		}
		var want network.Desired
		planned := make(chan error, 1)
		waits := make(chan struct{})
		step := engine.Step{Name: "network", Deadline: time.Minute, Run: func(ctx context.Context, s *engine.Span) error {
			close(waits)
			_, plan, planErr, err := m.observeNetwork(ctx, s, nets)
			want = plan
			planned <- errors.Join(planErr, err)
			return nil
		}}
		go func() { _, _, _ = newEngine(t).Run(t.Context(), []engine.Step{step}) }()
		<-waits
		select {
		case err := <-planned:
			t.Fatalf("without the second NIC: got a plan, %v", err)
		case <-time.After(200 * time.Millisecond):
		}
		peer.NIC(t, "eth1", late)
		if err := <-planned; err != nil || len(want.Links) != 2 {
			t.Errorf("with both NICs: %+v, %v", want, err)
		}
	})
}
