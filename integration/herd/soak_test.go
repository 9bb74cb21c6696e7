//go:build soak

package herd

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"cambium/internal/eventually"
)

// sizes are the parts of the test: `-run TestSoakHerd/SAN/3000` runs one of them, and the page keeps the others.
var sizes = []int{100, 300, 1000, 3000, 10000}

// mostBySubject is the largest herd that is tried with nats-sync's names: of 10,000 agents, on two processors, not all
// had logged in after twelve minutes.
const mostBySubject = 3000

// syncEvery is the interval at which nats-sync writes the file of users.
const syncEvery = 10 * time.Second

// figures holds the measurements of a herd of one size. Times are in seconds.
type figures struct {
	Agents  int
	Naming  naming
	When    string
	Commit  string
	Machine string
	Load    string

	ColdStart, ColdPeak, ColdAllowed float64
	ColdAttempts                     int

	Lost                                int // agents of the server that died
	Death, DeathPeak, DeathAllowed      float64
	DeathAttempts                       int
	Joined                              int
	JoinMedian, JoinLongest, ReloadTime float64
	UsersFile                           int // bytes

	Rotation float64

	AgentMemory, ConnectionMemory int64 // bytes for each
	ServerPerConnect              float64
	ReloadWork                    float64 // processor time of all servers
	HeartbeatGap, HeartbeatRate   float64
	SlowConsumers                 int64
}

// TestSoakHerd measures herds of growing size, and writes the page and the picture. It fails if an agent does not come
// back or a server falls over; times are its result, not a condition.
func TestSoakHerd(t *testing.T) {
	for _, by := range []naming{bySubject, bySAN} {
		t.Run(string(by), func(t *testing.T) {
			for _, n := range sizes {
				if by == bySubject && n > mostBySubject {
					continue
				}
				t.Run(strconv.Itoa(n), func(t *testing.T) {
					f := measure(t, n, by)
					t.Logf("%+v", f)
					if t.Failed() {
						return
					}
					r := load(t)
					r.Herds = slices.DeleteFunc(r.Herds, func(other figures) bool {
						return other.Agents == f.Agents && other.Naming == f.Naming
					})
					r.Herds = append(r.Herds, f)
					save(t, r)
				})
			}
		})
	}
}

// measure runs the whole of it once.
func measure(t *testing.T, n int, by naming) (f figures) {
	const batches = 3
	joining := batches * min(n/10, inFlight)
	h := newHerd(t, n, 2, by)
	known, fresh := h.members[:n-joining], h.members[n-joining:]
	f = figures{Agents: n, Naming: by, When: time.Now().UTC().Format(time.DateOnly), Joined: joining,
		Machine: machine(), Commit: commit(t), Load: load1()}
	empty := h.flocks.memory()
	h.cold(known, &f)
	h.cluster.joined()
	begin := time.Now()

	after := h.join(known, slices.Collect(slices.Chunk(fresh, joining/batches)), syncEvery)
	f.JoinMedian, f.JoinLongest = after[len(after)/2].Seconds(), after[len(after)-1].Seconds()
	f.UsersFile = h.cluster.fileBytes
	work := h.serverTime()
	f.ReloadTime = h.reloaded().Seconds()
	f.ReloadWork = (h.serverTime() - work).Seconds()
	t.Logf("in the file of %d bytes; reload %.3f s; answers after %v", f.UsersFile, f.ReloadTime, after)
	_, before, _ := h.monitor.seen()
	f.HeartbeatRate = float64(before) / time.Since(begin).Seconds()

	h.flocks.report()
	var died time.Duration
	f.Lost, died = h.death(h.members)
	f.Death = died.Seconds()
	r := h.flocks.report()
	f.DeathAttempts, f.DeathPeak = len(r.Attempts), float64(peak(r.Attempts))
	// The first pause after a loss is up to two seconds.
	f.DeathAllowed = allowed(f.Lost, 1.0/2)
	t.Logf("death: %v, failures %v", died, r.Failures)

	f.AgentMemory = (h.flocks.memory() - empty) / int64(n)
	f.ConnectionMemory = h.serverMemory(n)
	f.Rotation = h.rotate(h.members).Seconds()
	_, _, gap := h.monitor.seen()
	f.HeartbeatGap = gap.Seconds()
	for _, node := range h.cluster.nodes {
		f.SlowConsumers += h.cluster.state(node).SlowConsumers
	}
	return f
}

// cold starts servers that all agents wait for.
func (h *herd) cold(known []member, f *figures) {
	h.t.Helper()
	h.cluster.setUsers(ids(known))
	h.flocks.start(known)
	// After seven passes over all servers the pauses have grown to their longest.
	tried := 0
	eventually.True(h.t, "the agents' attempts", func() bool {
		tried += len(h.flocks.report().Attempts)
		return tried >= 7*len(h.cluster.nodes)*len(known)
	})
	begin := time.Now()
	h.up()
	f.ColdStart = longest(h.director.pings(ids(known), begin)).Seconds()
	f.ServerPerConnect = h.serverTime().Seconds() / float64(len(known))
	r := h.flocks.report()
	// Those before the servers were there were refused by the kernel.
	up := slices.DeleteFunc(r.Attempts, func(at int64) bool { return at < h.listening().UnixNano() })
	f.ColdAttempts, f.ColdPeak = len(up), float64(peak(up))
	// Of pauses drawn evenly from w seconds this share ends within the first second.
	const w = 8.0
	f.ColdAllowed = allowed(len(known), 2/w-1/(w*w))
	h.t.Logf("cold start: %.1f s, failures %v", f.ColdStart, r.Failures)
}

// listening returns the time at which the first server began to accept connections.
func (h *herd) listening() (first time.Time) {
	for _, n := range h.cluster.nodes {
		if at := h.cluster.state(n).Start; first.IsZero() || at.Before(first) {
			first = at
		}
	}
	return first
}

// allowed returns how many of n attempts jitter may put into one second, each with the given probability: the expected
// number, plus three standard deviations for chance.
func allowed(n int, share float64) float64 {
	return float64(n)*share + 3*math.Sqrt(float64(n)*share*(1-share))
}

// peak is the largest number of times within one second.
func peak(at []int64) (most int) {
	slices.Sort(at)
	first := 0
	for i := range at {
		for at[i]-at[first] > int64(time.Second) {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}

// reloaded has the servers read the file of users once more, and returns how long the slowest took.
func (h *herd) reloaded() (longest time.Duration) {
	h.t.Helper()
	before := map[*node]time.Time{}
	for _, n := range h.cluster.nodes {
		before[n] = h.cluster.state(n).ConfigLoadTime
	}
	begin := time.Now()
	h.cluster.reload()
	for _, n := range h.cluster.nodes {
		eventually.True(h.t, "a reload", func() bool { return h.cluster.state(n).ConfigLoadTime.After(before[n]) })
		longest = max(longest, h.cluster.state(n).ConfigLoadTime.Sub(begin))
	}
	return longest
}

// serverTime is the processor time of all servers so far.
func (h *herd) serverTime() (sum time.Duration) {
	h.t.Helper()
	for _, n := range h.cluster.nodes {
		stat := string(must[[]byte](h.t)(os.ReadFile(fmt.Sprintf("/proc/%d/stat", n.process.Process.Pid))))
		fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
		for _, i := range []int{11, 12} { // user and system, in hundredths of a second
			ticks := must[int64](h.t)(strconv.ParseInt(fields[i], 10, 64))
			sum += time.Duration(ticks) * 10 * time.Millisecond
		}
	}
	return sum
}

// serverMemory returns the memory of the servers, in bytes for each of n connections.
func (h *herd) serverMemory(n int) (sum int64) {
	for _, node := range h.cluster.nodes {
		sum += resident(strconv.Itoa(node.process.Process.Pid))
	}
	return sum / int64(n)
}

func machine() string {
	model := "unknown processor"
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if _, after, ok := strings.Cut(string(info), "model name\t: "); ok {
			model, _, _ = strings.Cut(after, "\n")
		}
	}
	return fmt.Sprintf("%d processors (%s), %s/%s, %s, nats-server %s, nats.go %s", runtime.NumCPU(), model, runtime.GOOS,
		runtime.GOARCH, runtime.Version(), server.VERSION, nats.Version)
}

func commit(t *testing.T) string {
	t.Helper()
	return strings.TrimSpace(string(must[[]byte](t)(exec.Command("git", "rev-parse", "--short", "HEAD").Output())))
}
