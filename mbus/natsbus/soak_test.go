//go:build soak

package natsbus

import (
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/internal/testca"
	"cambium/internal/testnats"
)

// TestSoakAuthRevoked takes the agent's account away for a minute, with the real pauses: the
// agent tries about every second and is back within seconds of being known again. The library
// alone would have given up at the second refusal.
func TestSoakAuthRevoked(t *testing.T) {
	d := testnats.Start(t, nil, agentID)
	b := start(t, d, Options{})
	eventually.True(t, "connected", b.Connected)
	known := testnats.Agent(testca.AgentName(agentID), agentID)
	for range 2 { // the second time is like the first
		before := connections(t, d)
		d.SetUsers()
		eventually.True(t, "thrown out", func() bool { return !b.Connected() })
		time.Sleep(time.Minute)
		tries := connections(t, d) - before
		if b.Connected() || tries < 40 || tries > 120 {
			t.Errorf("%d tries in a minute, connected %v; want about one per second", tries, b.Connected())
		}
		d.SetUsers(known)
		granted := time.Now()
		eventually.True(t, "connected again", b.Connected)
		back := time.Since(granted)
		t.Logf("%d tries in a minute, back %v after the account was", tries, back.Round(time.Millisecond))
		if back > 10*time.Second {
			t.Errorf("back after %v", back)
		}
		if got := d.Director().Call(agentID, "ping"); got != pongReply {
			t.Errorf("got %s", got)
		}
	}
}

func connections(t *testing.T, d *testnats.Deployment) int {
	t.Helper()
	v, err := d.Server.Varz(nil)
	if err != nil {
		t.Fatal(err)
	}
	return int(v.TotalConnections)
}
