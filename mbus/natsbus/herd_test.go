//go:build bench

package natsbus

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"cambium/internal/eventually"
	"cambium/internal/testca"
	"cambium/internal/testnats"
)

// BenchmarkHerd is a deployment of 2,000 agents that loses its server and gets it back: how
// long until all answer, and how many tried within one second at most.
func BenchmarkHerd(b *testing.B) {
	const agents = 2000
	var ids []string
	for i := range agents {
		ids = append(ids, fmt.Sprintf("herd-%04d", i))
	}
	d := testnats.Start(b, func(o *server.Options) { o.MaxConn = 3 * agents }, ids...)
	var mu sync.Mutex
	var at []time.Time
	// One key for all: making 2,000 is not what is measured.
	pair := d.Client(testca.AgentName(ids[0]))
	users := []*server.User{testnats.User(testca.AgentName(ids[0]), []string{">"}, []string{"agent.*"})}
	d.SetUsers(users...)
	var herd []*Bus
	for _, id := range ids {
		herd = append(herd, start(b, d, Options{AgentID: id, Identity: identityWith(d, pair),
			BeforeConnect: func(context.Context, []netip.AddrPort) {
				mu.Lock()
				defer mu.Unlock()
				at = append(at, time.Now())
			}}))
	}
	all := func() bool {
		for _, bus := range herd {
			if !bus.Connected() {
				return false
			}
		}
		return true
	}
	eventually.True(b, "all connected", all)
	for range b.N {
		d.Down()
		eventually.True(b, "all lost", func() bool {
			for _, bus := range herd {
				if bus.Connected() {
					return false
				}
			}
			return true
		})
		time.Sleep(3 * time.Second) // a server's restart
		mu.Lock()
		at = nil
		mu.Unlock()
		up := time.Now()
		d.Up()
		eventually.True(b, "all back", all)
		back := time.Since(up)
		r := d.Director()
		var group sync.WaitGroup
		for chunk := range slices.Chunk(ids, 100) {
			group.Go(func() {
				for _, id := range chunk {
					r.Call(id, "ping")
				}
			})
		}
		group.Wait()
		b.ReportMetric(back.Seconds(), "s-until-connected")
		b.ReportMetric(time.Since(up).Seconds(), "s-until-answered")
		mu.Lock()
		most := peak(at)
		mu.Unlock()
		b.ReportMetric(float64(most), "peak-connects/s")
		// After three seconds most agents are in their second pause, drawn evenly from w seconds.
		// The share of them whose pause ends within any one second is at most 2/w - 1/w²; three
		// deviations more are chance.
		w := 2 * usual.afterLoss.Min.Seconds()
		share := 2/w - 1/(w*w)
		b.ReportMetric(agents*share+3*math.Sqrt(agents*share*(1-share)), "allowed-connects/s")
	}
}

// peak is the largest number of times within one second.
func peak(at []time.Time) (most int) {
	slices.SortFunc(at, time.Time.Compare)
	first := 0
	for i := range at {
		for at[i].Sub(at[first]) > time.Second {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}
