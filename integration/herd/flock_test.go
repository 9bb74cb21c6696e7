package herd

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"regexp"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/agent"
	"cambium/agent/action"
	"cambium/internal/secret"
	"cambium/jobs"
	"cambium/mbus"
	"cambium/mbus/natsbus"
)

// member is an agent as its process is told about it.
type member struct {
	ID          string   `json:"id"`
	URLs        []string `json:"urls"`
	CA          string   `json:"ca"`
	Certificate string   `json:"certificate"`
	PrivateKey  string   `json:"private_key"`
}

func (m member) identity() natsbus.Identity {
	id := natsbus.Identity{CA: m.CA, Certificate: m.Certificate, PrivateKey: secret.New(m.PrivateKey)}
	for _, u := range m.URLs {
		id.URLs = append(id.URLs, secret.NewURL(u))
	}
	return id
}

// order is a JSON document that the test sends to a flock, which answers each with a report.
type order struct {
	Start []member `json:"start"`
	// Names makes agents serve sync_dns, with the blobs of this store.
	Names *names `json:"names"`
	// Collect has the garbage collected before memory is measured.
	Collect bool `json:"collect"`
}

// report holds the events of a flock since the last report, and its present resources.
type report struct {
	// Attempts are the times of attempts to connect, in nanoseconds.
	Attempts []int64 `json:"attempts"`
	Failures map[string]int
	Resident int64 `json:"resident"` // bytes
	Files    int   `json:"files"`
	Started  int   `json:"started"` // of all time
}

// flock is the agents of one process.
type flock struct {
	out     *json.Encoder
	started int
	names   *names

	mu       sync.Mutex // guards the fields below
	attempts []int64
	failures map[string]int
}

// addresses would make each failure a kind of its own.
var addresses = regexp.MustCompile(`[0-9.]+:[0-9]+`)

func newFlock(out io.Writer) *flock {
	return &flock{out: json.NewEncoder(out), failures: map[string]int{}}
}

// run obeys orders until there are no more.
func (f *flock) run(in io.Reader) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for orders := json.NewDecoder(in); ; {
		var o order
		if err := orders.Decode(&o); err != nil {
			return
		}
		if o.Names != nil {
			f.names = o.Names
		}
		for _, m := range o.Start {
			if err := f.start(ctx, m); err != nil {
				panic(err)
			}
			f.started++
		}
		if o.Collect {
			debug.FreeOSMemory()
		}
		if err := f.out.Encode(f.report()); err != nil {
			return
		}
	}
}

func (f *flock) report() report {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := report{Attempts: f.attempts, Failures: f.failures, Started: f.started, Resident: resident("self")}
	f.attempts, f.failures = nil, map[string]int{}
	if open, err := os.ReadDir("/proc/self/fd"); err == nil {
		r.Files = len(open)
	}
	return r
}

// resident is the memory of a process.
func resident(pid string) (bytes int64) {
	status, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		return 0
	}
	_, line, _ := strings.Cut(string(status), "VmRSS:")
	if _, err := fmt.Sscan(line, &bytes); err != nil {
		return 0
	}
	return bytes << 10
}

// one is an agent: the bus client, heartbeats, and the actions that the test asks for.
type one struct {
	ctx   context.Context
	bus   *natsbus.Bus
	self  member
	table action.Table
}

func (f *flock) start(ctx context.Context, m member) error {
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	a := &one{ctx: ctx, self: m}
	if f.names != nil {
		dns, err := f.names.of(m.ID)
		if err != nil {
			return err
		}
		a.table = action.Actions(action.Deps{DNS: dns})
	}
	again := make(chan struct{}, 1)
	var err error
	a.bus, err = natsbus.New(natsbus.Options{AgentID: m.ID, Identity: m.identity(), Handler: a,
		Log: logrus.NewEntry(quiet),
		BeforeConnect: func(context.Context, []netip.AddrPort) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.attempts = append(f.attempts, time.Now().UnixNano())
		},
		OnConnect: func(string) {
			select {
			case again <- struct{}{}:
			default:
			}
		},
		OnFailure: func(failure natsbus.Failure) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.failures[addresses.ReplaceAllString(failure.Err.Error(), "ADDRESS")]++
		}})
	if err != nil {
		return err
	}
	ready := make(chan struct{})
	close(ready)
	beats := agent.Heartbeats{Bus: a.bus, Jobs: idle{}, Ready: ready, Connected: again,
		Log:    logrus.NewEntry(quiet),
		Vitals: func(context.Context) (any, error) { return json.RawMessage(vitals), nil }}
	go func() { _ = a.bus.Run(ctx) }()
	go func() { _ = beats.Run(ctx) }()
	return nil
}

// Handle implements mbus.Handler.
func (a *one) Handle(_ context.Context, r mbus.Request, reply func(mbus.Reply)) {
	switch {
	case r.Method == "ping":
		reply(mbus.Value("pong"))
	case r.Method == "update_settings" && len(r.Arguments) == 1:
		go func() {
			if err := a.rotate(r.Arguments[0]); err != nil {
				reply(mbus.Exception(err.Error()))
				return
			}
			reply(mbus.Value("ok"))
		}()
	case a.table[r.Method].Bind != nil:
		go a.act(r, reply)
	default:
		reply(mbus.Exception("unknown message " + r.Method))
	}
}

// act runs an action of the table.
func (a *one) act(r mbus.Request, reply func(mbus.Reply)) {
	run, err := a.table[r.Method].Bind(r.Arguments)
	var value any
	if err == nil {
		value, err = run(a.ctx)
	}
	if err != nil {
		reply(mbus.Exception(err.Error()))
		return
	}
	reply(mbus.Value(value))
}

// update is the argument of update_settings that has certificates.
type update struct {
	MBus struct {
		Cert struct {
			CA          string `json:"ca"`
			Certificate string `json:"certificate"`
			PrivateKey  string `json:"private_key"`
		} `json:"cert"`
	} `json:"mbus"`
}

// rotate adopts certificates as the action does: a second connection first.
func (a *one) rotate(argument json.RawMessage) error {
	var u update
	if err := json.Unmarshal(argument, &u); err != nil {
		return err
	}
	next := a.self
	next.CA, next.Certificate, next.PrivateKey = u.MBus.Cert.CA, u.MBus.Cert.Certificate, u.MBus.Cert.PrivateKey
	ctx, cancel := context.WithTimeout(a.ctx, time.Minute)
	defer cancel()
	rotation, err := a.bus.Rotate(ctx, next.identity())
	if err != nil {
		return err
	}
	rotation.Commit(a.ctx)
	return nil
}

// vitals are as long as those of a VM with three disks.
const vitals = `{"cpu":{"sys":"0.3","user":"1.2","wait":"0.0"},"disk":{"ephemeral":{"inode_percent":"1","percent":"4"},` +
	`"persistent":{"inode_percent":"0","percent":"12"},"system":{"inode_percent":"31","percent":"45"}},` +
	`"load":["0.01","0.04","0.05"],"mem":{"kb":"812336","percent":"20"},"swap":{"kb":"0","percent":"0"},` +
	`"uptime":{"secs":86400}}`

// idle is an instance without jobs.
type idle struct{}

func (idle) Spec() (jobs.Spec, error)                                { return jobs.Spec{}, nil }
func (idle) Observe(context.Context) (string, []jobs.Process, error) { return "running", nil, nil }

// flocks are the processes of the agents, which share them evenly.
type flocks struct {
	t   *testing.T
	all []*remote
}

// remote is a flock in a process of its own.
type remote struct {
	pid int
	in  *json.Encoder
	out *json.Decoder
}

func newFlocks(t *testing.T, n int) *flocks {
	t.Helper()
	f := &flocks{t: t}
	for range n {
		process, in, out := child(t, "flock")
		t.Cleanup(func() {
			_ = in.Close()
			_ = process.Wait()
		})
		f.all = append(f.all, &remote{pid: process.Process.Pid, in: json.NewEncoder(in), out: json.NewDecoder(out)})
	}
	return f
}

// order gives each flock its order, and returns the sum of their reports.
func (f *flocks) order(of func(i int) order) (sum report) {
	f.t.Helper()
	sum.Failures = map[string]int{}
	var failed atomic.Pointer[error]
	reports := make([]report, len(f.all))
	var group sync.WaitGroup
	for i, r := range f.all {
		group.Go(func() {
			err := r.in.Encode(of(i))
			if err == nil {
				err = r.out.Decode(&reports[i])
			}
			if err != nil {
				failed.Store(&err)
			}
		})
	}
	group.Wait()
	if err := failed.Load(); err != nil {
		f.t.Fatal("a process of agents has ended: ", *err)
	}
	for _, r := range reports {
		sum.Attempts = append(sum.Attempts, r.Attempts...)
		sum.Resident += r.Resident
		sum.Files = max(sum.Files, r.Files)
		sum.Started += r.Started
		for text, n := range r.Failures {
			sum.Failures[text] += n
		}
	}
	return sum
}

// start spreads agents over the processes.
func (f *flocks) start(all []member) {
	f.t.Helper()
	f.order(func(i int) (o order) {
		for j := i; j < len(all); j += len(f.all) {
			o.Start = append(o.Start, all[j])
		}
		return o
	})
}

// report returns the sum of all flocks' reports since the last one.
func (f *flocks) report() report {
	f.t.Helper()
	return f.order(func(int) order { return order{} })
}

// memory returns the bytes that all processes occupy after a garbage collection.
func (f *flocks) memory() int64 {
	f.t.Helper()
	f.order(func(int) order { return order{Collect: true} })
	return f.report().Resident
}
