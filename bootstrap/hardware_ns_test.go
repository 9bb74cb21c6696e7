//go:build ns

package bootstrap

import (
	"context"
	"testing"
	"time"

	"cambium/internal/nstest"
	"cambium/platform/network"

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
