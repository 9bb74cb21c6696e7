//go:build ns

package natsbus

import (
	"net"
	"testing"

	"cambium/internal/eventually"
	"cambium/internal/nstest"
	"cambium/internal/secret"
	"cambium/internal/testca"
	"cambium/internal/testnats"
)

// TestNSPartition takes the link to the server down at its far end: no reset and no error, as when
// a switch fails.
func TestNSPartition(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		d := testnats.Start(t, nil, agentID)
		d.Down()
		pair, err := d.CA.Server("127.0.0.1", "10.9.0.1")
		if err != nil {
			t.Fatal(err)
		}
		d.SetServerCertificate(pair)
		d.Up()

		peer := nstest.NewPeer(t)
		peer.Veth(t, "bus0", "")
		peer.Address(t, "bus0", "10.9.0.1/24")
		nstest.Up(t, "bus0", "10.9.0.2/24")
		var listener net.Listener
		peer.Do(t, func() (err error) {
			listener, err = net.Listen("tcp", "10.9.0.1:4222")
			return err
		})
		testnats.NewLink(t, listener, d.Address())

		id := identity(d, testca.AgentName(agentID))
		id.URLs = []secret.URL{secret.NewURL("nats://10.9.0.1:4222")}
		b := start(t, d, Options{Identity: id, pace: quick()})
		eventually.True(t, "connected", b.Connected)
		far, err := peer.Handle.LinkByName("bus0")
		if err != nil {
			t.Fatal(err)
		}
		if err := peer.Handle.LinkSetDown(far); err != nil {
			t.Fatal(err)
		}
		eventually.True(t, "loss noticed", func() bool { return !b.Connected() })
		if err := peer.Handle.LinkSetUp(far); err != nil {
			t.Fatal(err)
		}
		eventually.True(t, "connected again", b.Connected)
		if got := d.Director().Call(agentID, "ping"); got != pongReply {
			t.Errorf("got %s", got)
		}
	})
}
