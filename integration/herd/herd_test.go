package herd

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/internal/testca"
)

// herd is a deployment: servers, agents and those who speak with them.
type herd struct {
	t        *testing.T
	cluster  *cluster
	flocks   *flocks
	members  []member
	director *director
	monitor  *monitor
}

// newHerd makes the certificates of so many agents, and starts nothing but the processes of the agents.
func newHerd(t *testing.T, agents, processes int, by naming) *herd {
	t.Helper()
	h := &herd{t: t, cluster: newCluster(t, 3, by), flocks: newFlocks(t, processes), members: make([]member, agents)}
	var group sync.WaitGroup
	for part := range runtime.NumCPU() {
		group.Go(func() {
			for i := part; i < agents; i += runtime.NumCPU() {
				id := fmt.Sprintf("0b52c7a4-5f1e-4c7e-9a35-%012d", i)
				pair, err := by.certificate(h.cluster.ca, testca.AgentName(id))
				if err != nil {
					t.Error(err)
					return
				}
				h.members[i] = member{ID: id, URLs: h.cluster.urls(), CA: string(h.cluster.ca.PEM),
					Certificate: string(pair.Certificate), PrivateKey: string(pair.PrivateKey)}
			}
		})
	}
	group.Wait()
	return h
}

func ids(members []member) (all []string) {
	for _, m := range members {
		all = append(all, m.ID)
	}
	return all
}

// up starts all servers.
func (h *herd) up() {
	h.t.Helper()
	for _, n := range h.cluster.nodes {
		h.cluster.up(n)
	}
	h.director, h.monitor = h.cluster.director(), h.cluster.monitor()
}

// join starts batches of agents, which the servers refuse until they are written into the file of users: a batch every so
// often. It returns how long after that each answered.
func (h *herd) join(known []member, batches [][]member, every time.Duration) (after []time.Duration) {
	h.t.Helper()
	var group sync.WaitGroup
	var mu sync.Mutex
	users := ids(known)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for _, batch := range batches {
		h.flocks.start(batch)
		h.refused(len(batch))
		<-tick.C
		users = append(users, ids(batch)...)
		h.cluster.setUsers(users)
		begin := time.Now()
		h.cluster.reload()
		group.Go(func() {
			answers := h.director.pings(ids(batch), begin)
			mu.Lock()
			defer mu.Unlock()
			for _, d := range answers {
				after = append(after, d)
			}
		})
	}
	group.Wait()
	slices.Sort(after)
	return after
}

// refused waits until each of n agents was refused, on average.
func (h *herd) refused(n int) {
	h.t.Helper()
	refusals := 0
	eventually.True(h.t, "refusals", func() bool {
		for text, times := range h.flocks.report().Failures {
			if text == refusal {
				refusals += times
			}
		}
		return refusals >= n
	})
}

const refusal = "the server does not admit this agent: nats: Authorization Violation"

// death kills a server that has agents, and returns when all answer again, with the number of agents that it had.
func (h *herd) death(all []member) (lost int, after time.Duration) {
	h.t.Helper()
	var n *node
	for _, candidate := range h.cluster.nodes {
		// A Director that has to reconnect itself would measure that.
		if h.director.conn.ConnectedAddr() != candidate.address+":4222" {
			n = candidate
		}
	}
	lost = h.cluster.state(n).Connections
	begin := time.Now()
	h.cluster.kill(n)
	after = longest(h.director.pings(ids(all), begin))
	h.cluster.up(n)
	h.cluster.joined()
	return lost, after
}

// rotate replaces authority and all certificates, in the order in which BOSH does, and returns how long the agents took.
func (h *herd) rotate(all []member) time.Duration {
	h.t.Helper()
	old, next := h.cluster.ca, must[*testca.CA](h.t)(testca.New("next.nats-ca.bosh-internal"))
	h.cluster.certify(old, next)
	h.cluster.reload()
	trusted := slices.Concat(old.PEM, next.PEM)
	begin := time.Now()
	h.director.each(ids(all), "update_settings", `{"value":"ok"}`, func(id string) any {
		return h.rotation(next, trusted, id)
	})
	took := time.Since(begin)
	h.cluster.certify(next, old)
	h.cluster.reload()
	h.director.pings(ids(all), time.Now())
	return took
}

// TestHerd is the short version: agents that start before their servers, new ones that the servers do not know yet, the
// death of a server, and new certificates for all.
func TestHerd(t *testing.T) {
	const settled, joining = 160, 40
	h := newHerd(t, settled+joining, 2, bySubject)
	known, fresh := h.members[:settled], h.members[settled:]
	h.cluster.setUsers(ids(known))
	h.flocks.start(known)
	h.up()
	h.director.pings(ids(known), time.Now())
	h.cluster.joined()
	after := h.join(known, slices.Collect(slices.Chunk(fresh, joining/2)), time.Second)
	lost, back := h.death(h.members)
	took := h.rotate(h.members)
	agents, beats, _ := h.monitor.seen()
	if agents != len(h.members) {
		t.Errorf("%d agents have sent heartbeats, want %d", agents, len(h.members))
	}
	t.Logf("new ones answer after %v; %d lost their server, back after %v; new certificates after %v; %d heartbeats",
		after[len(after)-1], lost, back, took, beats)
}
