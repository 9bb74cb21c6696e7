//go:build soak

package natsbus

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

var faultCount = flag.Int("faults", 300, "how many faults happen to the cluster")

const (
	// soakPing is the interval of the PINGs: that of the agent would make each unnoticed loss take half a minute.
	soakPing = time.Second
	// recoveryTime is the time allowed for the agent's recovery, in addition to that in which it notices a loss.
	recoveryTime = 5 * time.Second
	clusterPage  = "../../docs/results/bus-cluster.md"
)

// suffered adds up the effects of all faults of one kind.
type suffered struct {
	recoveries []time.Duration
	outcome
}

// TestSoakCluster has faults happen in random order to one cluster and one agent, and writes the page of results. It
// fails if the agent takes longer than it may, if a request is executed twice, or if a task is lost.
func TestSoakCluster(t *testing.T) {
	limit := soakPing*(allowedMisses+1) + recoveryTime
	c := newCluster(t, soon(soakPing))
	all := make([]suffered, len(faults))
	begin := time.Now()
	late := 0
	for n := range *faultCount {
		i := n % len(faults)
		if i == 0 && n > 0 {
			rand.Shuffle(len(faults), func(a, b int) {
				faults[a], faults[b] = faults[b], faults[a]
				all[a], all[b] = all[b], all[a]
			})
		}
		recovery, o := c.suffer(faults[i])
		t.Logf("%3d %-45s %8v %+v", n, faults[i].name, recovery.Round(time.Millisecond), o)
		if recovery > limit {
			t.Errorf("%s: the agent answered after %v, want at most %v", faults[i].name, recovery, limit)
			late++
		}
		if o.repeated > 0 || o.lostTasks > 0 || faults[i].harmless && o.dropped > 0 {
			t.Errorf("%s: %+v", faults[i].name, o)
		}
		all[i].recoveries = append(all[i].recoveries, recovery)
		all[i].add(o)
	}
	page := clusterReport(all, begin, limit, late)
	if err := os.MkdirAll(filepath.Dir(clusterPage), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(clusterPage, []byte(page), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (o *outcome) add(more outcome) {
	o.requests += more.requests
	o.dropped += more.dropped
	o.silent += more.silent
	o.repeated += more.repeated
	o.lostTasks += more.lostTasks
}

func clusterReport(all []suffered, begin time.Time, limit time.Duration, late int) string {
	var page strings.Builder
	var sum suffered
	order := make([]int, len(faults))
	for i, s := range all {
		order[i] = i
		slices.Sort(s.recoveries)
		sum.recoveries = append(sum.recoveries, s.recoveries...)
		sum.add(s.outcome)
	}
	slices.Sort(sum.recoveries)
	slices.SortFunc(order, func(a, b int) int { return strings.Compare(faults[a].name, faults[b].name) })
	fmt.Fprintf(&page, `# A cluster of three NATS servers, and what happens to it

Written by `+"`go test -tags soak -run SoakCluster ./mbus/natsbus`"+` on %s: %d faults in %v, on %d processors
(%s/%s, %s), nats-server %s, nats.go %s. [Protocol](../protocol.md#a-cluster-of-nats-servers) says how to run such a cluster.

One agent, whose settings name all three servers, and a Director that asks it for a task every %v while each fault
happens. All connections use mutual TLS. The agent sends a PING every %v here (%v in production) and takes a server for
lost if %d are unanswered when the next is due. Hence it may take %v + %v = %v. Later than that: %d times.

- **answers after**: from the fault to the first answer; from its end, if no server could be reached meanwhile.
- **dropped**: no agent was subscribed when the request arrived. NATS delivers at most once. The Director asks only from
  the fault to the answer, so that most requests are dropped if the agent is cut off.
- **no reply**: executed, but the reply was lost with the Director's own server, after the agent's server had confirmed
  it.
- **executed twice** and **tasks lost** (answered with an id that is unknown later) must be 0.

| fault | times | answers after: median | longest | requests | dropped | no reply | executed twice | tasks lost |
|---|---|---|---|---|---|---|---|---|
`, begin.UTC().Format(time.DateOnly), len(sum.recoveries), time.Since(begin).Round(time.Second), runtime.NumCPU(),
		runtime.GOOS, runtime.GOARCH, runtime.Version(), server.VERSION, nats.Version, askEvery, soakPing, usual.ping,
		allowedMisses, soakPing*(allowedMisses+1), recoveryTime, limit, late)
	row := func(name string, s suffered) {
		if n := len(s.recoveries); n > 0 {
			fmt.Fprintf(&page, "| %s | %d | %v | %v | %d | %d | %d | %d | %d |\n", name, n,
				s.recoveries[n/2].Round(time.Millisecond), s.recoveries[n-1].Round(time.Millisecond),
				s.requests, s.dropped, s.silent, s.repeated, s.lostTasks)
		}
	}
	for _, i := range order {
		row(faults[i].name, all[i])
	}
	row("**all**", sum)
	return page.String()
}
