//go:build machine && soak

package machine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"cambium/lab"
	"cambium/lab/director"
	"cambium/lab/labtest"
	"cambium/lab/release"
)

// TestMachineSoakKilledAtRandom is the long version of the kills at random moments.
func TestMachineSoakKilledAtRandom(t *testing.T) { killAtRandom(t, 205) }

// TestMachineSoakStartSurvivesACut is the long version of the power cuts around a start: 100, on four machines.
func TestMachineSoakStartSurvivesACut(t *testing.T) {
	for n := range 4 {
		t.Run(strconv.Itoa(n+1), func(t *testing.T) {
			t.Parallel()
			cutAfterStarts(t, "monit", 25)
		})
	}
}

const (
	// atATime is the number of instances that the Director works on at once.
	atATime = 10
	// inotifyPerMachine is the number of root's inotify instances that a container needs: six of systemd, one of
	// logind, three of the agent. Those of D-Bus and resolved count for their own users. A user namespace would not
	// help: the kernel counts an instance in the parent namespaces too, for the user who made the namespace.
	inotifyPerMachine = 10
	// inFlight bounds how long before the end of a NATS server a request may have been published and still be lost. One
	// that the agent has received is answered when both are back.
	inFlight = 250 * time.Millisecond
)

// fromEnvironment reads a setting of the soak.
func fromEnvironment[T any](t *testing.T, name string, fallback T, parse func(string) (T, error)) T {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return fallback
	}
	value, err := parse(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return value
}

// soak is a deployment that is changed all the time.
type soak struct {
	t      *testing.T
	l      *lab.Lab
	slots  []*slot
	counts sync.Map // of operations, by name

	mu sync.Mutex // guards the fields below
	// outages are the times in which agents, by id, were not subscribed because the NATS server was restarted.
	outages map[string][]*span
	// returns holds the times from the return of the server until agents were subscribed again.
	returns []time.Duration
}

// span is a time from one moment to another, which is zero while it lasts.
type span struct{ from, to time.Time }

// holds reports whether a request can have been lost in an outage: it was published in that time, or just before.
func (s *span) holds(sent time.Time) bool {
	return sent.After(s.from.Add(-inFlight)) && (s.to.IsZero() || sent.Before(s.to))
}

func (s *span) String() string {
	return s.from.Format(time.StampMilli) + " to " + s.to.Format(time.StampMilli)
}

// slot is one instance of it. The mutex is held while a Director works on it.
type slot struct {
	flows
	mu    sync.Mutex
	made  int    // how many VMs the instance has had
	kept  string // what its store should hold
	steps int
	// agent is the one that must be heard by the Health Monitor, "" while there is none.
	agent string
}

// TestMachineSoakDeployments keeps containers busy with deployments, recreations, stops and rotations, ten at a time,
// while the NATS server is restarted. No alert is raised, no heartbeat is missed, nothing is left over, and no task fails,
// but for requests that NATS drops because their agent has not come back to the server yet; see lost.
// CAMBIUM_SOAK sets the duration (two hours), CAMBIUM_SOAK_MACHINES the number of containers (20).
func TestMachineSoakDeployments(t *testing.T) {
	length := fromEnvironment(t, "CAMBIUM_SOAK", 2*time.Hour, time.ParseDuration)
	machines := fromEnvironment(t, "CAMBIUM_SOAK_MACHINES", 20, strconv.Atoi)
	limit, err := os.ReadFile("/proc/sys/fs/inotify/max_user_instances")
	if err != nil {
		t.Fatal(err)
	}
	if has, err := strconv.Atoi(strings.TrimSpace(string(limit))); err != nil || has < machines*inotifyPerMachine {
		t.Fatalf("%d containers need %d inotify instances and the host has %s: run 'sysctl fs.inotify.max_user_instances=1024', or set CAMBIUM_SOAK_MACHINES",
			machines, machines*inotifyPerMachine, strings.TrimSpace(string(limit)))
	}
	s := &soak{t: t, l: newLab(t, func(o *lab.Options) { o.Poll = 0 }), outages: map[string][]*span{}}
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	places := make(chan struct{}, atATime)
	var running sync.WaitGroup
	for n := range machines {
		m := manifest([]release.Job{forker()}, tool("0"))
		m.Groups[0].PersistentDisk = 256
		one := &slot{flows: flows{t: t, l: s.l, m: m, disk: fmt.Sprintf("disk-%d", n)}}
		s.slots = append(s.slots, one)
		running.Go(func() { s.life(ctx, one, n, places) })
	}
	running.Go(func() { s.bounce(ctx) })
	running.Go(func() { s.watch(ctx) })
	running.Wait()
	s.counts.Range(func(name, count any) bool { t.Logf("%v: %d", name, *count.(*int)); return true })
	if slices.Sort(s.returns); len(s.returns) > 0 {
		t.Logf("agents were subscribed again %v (median), %v (longest) after the return of NATS",
			s.returns[len(s.returns)/2].Round(time.Millisecond), s.returns[len(s.returns)-1].Round(time.Millisecond))
	}
	s.checkAlerts()
	for _, one := range s.slots {
		if one.i == nil {
			continue
		}
		if left := run(t, one.i, "sh", "-c", "find /var/vcap/data/tmp /var/vcap/data/blobs /var/vcap/data/compile -mindepth 1; ls -d /var/vcap/store_migration_target/* 2>/dev/null || true"); left != "" {
			t.Errorf("%s: left over:\n%s", one.i.Short, left)
		}
	}
}

// checkAlerts: nothing happens to the jobs that the Director has not asked for.
func (s *soak) checkAlerts() {
	for _, e := range s.l.Monitor.Events() {
		if e.Kind == "alert" {
			s.t.Errorf("alert of %s at %s: %s", e.Agent, e.Time.Format(time.TimeOnly), e.Body)
		}
	}
}

// watchedTransport is the way to one agent. It reports requests without an answer.
type watchedTransport struct {
	director.Transport
	s     *soak
	agent string
}

func (w watchedTransport) RoundTrip(ctx context.Context, r director.Request) ([]byte, error) {
	sent := time.Now()
	data, err := w.Transport.RoundTrip(ctx, r)
	if errors.Is(err, director.ErrTimeout) && r.Method != "ping" {
		w.s.lost(w.agent, r.Method, sent)
	}
	return data, err
}

// lost explains a request without an answer. NATS delivers at most once: what a Director publishes between its own return
// to a restarted server and the agent's is dropped, and of all methods a Director repeats get_state, get_task and
// upload_blob alone. A request that was published while the agent was subscribed must be answered.
func (s *soak) lost(agent, method string, sent time.Time) {
	s.count("dropped by a restarted NATS server: " + method)
	s.mu.Lock()
	defer s.mu.Unlock()
	outages := s.outages[agent]
	if !slices.ContainsFunc(outages, func(o *span) bool { return o.holds(sent) }) {
		s.t.Errorf("%s to %s, published at %s, has no answer, and the agent was subscribed; it was not at %v", method, agent,
			sent.Format(time.StampMilli), outages)
	}
}

// life is that of one instance: it is created, and changed until the time is over.
func (s *soak) life(ctx context.Context, one *slot, n int, places chan struct{}) {
	random := rand.New(rand.NewPCG(uint64(n), uint64(time.Now().UnixNano())))
	operations := []struct {
		name string
		do   func(context.Context, *slot) error
	}{{"deploy", s.update}, {"recreate", s.recreate}, {"stop and start", s.stopStart}, {"rotate", s.rotate}}
	next := operations[1]
	for {
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			return
		}
		// What was begun is brought to its end.
		if ctx.Err() == nil {
			one.mu.Lock()
			err := s.operate(context.WithoutCancel(ctx), one, next.do)
			one.mu.Unlock()
			s.count(next.name)
			if err != nil {
				s.t.Errorf("%s of instance %d: %v", next.name, n, err)
				<-places
				return
			}
		}
		<-places
		next = operations[random.IntN(len(operations))]
	}
}

// operate does one thing to an instance. The operator repeats a deployment that failed because a request was dropped.
func (s *soak) operate(ctx context.Context, one *slot, do func(context.Context, *slot) error) error {
	const attempts = 5
	err := do(ctx, one)
	for n := 1; n < attempts && errors.Is(err, director.ErrTimeout) && one.i != nil; n++ {
		s.count("repeated after a dropped request")
		err = s.update(ctx, one)
		one.agent = one.i.AgentID
	}
	return err
}

var countLock sync.Mutex

func (s *soak) count(name string) {
	countLock.Lock()
	defer countLock.Unlock()
	count, _ := s.counts.LoadOrStore(name, new(int))
	*count.(*int)++
}

// expect compares the instance with what it should be. A first recreation that was cut short has not written to the store.
func (s *soak) expect(ctx context.Context, one *slot) error {
	out, err := one.i.Output(ctx, "sh", "-ec",
		"mountpoint -q /var/vcap/store; cd /var/vcap/store; test ! -e kept || cat kept")
	if err == nil && out != one.kept {
		err = fmt.Errorf("the store holds %q, want %q", out, one.kept)
	}
	return errors.Join(err, one.i.Agent.WaitRunning(ctx, time.Minute))
}

func (s *soak) update(ctx context.Context, one *slot) error {
	one.steps++
	one.m.Groups[0].Packages = []release.Package{tool(strconv.Itoa(one.steps))}
	err := one.play(ctx, func(p *director.Plan, d director.Deployment, upload func(context.Context) error) {
		p.Add("upload_blob", upload)
		one.i.Agent.Update(p, one.i, d, one.disk)
	}, nil)
	return errors.Join(err, s.expect(ctx, one))
}

func (s *soak) stopStart(ctx context.Context, one *slot) error {
	err := one.play(ctx, func(p *director.Plan, d director.Deployment, upload func(context.Context) error) {
		p.Add("upload_blob", upload)
		one.i.Agent.Stop(p, d, false)
		one.i.Agent.Start(p, d)
	}, nil)
	return errors.Join(err, s.expect(ctx, one))
}

// rotate gives the agent another certificate.
func (s *soak) rotate(ctx context.Context, one *slot) error {
	settings, err := one.i.Permanent()
	if err != nil {
		return err
	}
	if _, err := one.i.Agent.Do(ctx, "update_settings", settings); err != nil {
		return err
	}
	return s.expect(ctx, one)
}

// recreate makes the VM of an instance anew, or for the first time.
func (s *soak) recreate(ctx context.Context, one *slot) error {
	old := one.i
	if old != nil {
		one.agent = ""
		if err := one.play(ctx, func(p *director.Plan, d director.Deployment, _ func(context.Context) error) {
			old.Agent.Stop(p, d, true)
			old.Agent.Detach(p, old, one.disk)
		}, nil); err != nil {
			return err
		}
	}
	one.made++
	i, err := s.l.Create(ctx, lab.VM{Name: fmt.Sprintf("%s-%d", one.disk, one.made), Ephemeral: lab.GiB})
	if err != nil {
		return err
	}
	labtest.Explain(s.t, i)
	one.i = i
	i.Agent.Transport = watchedTransport{i.Agent.Transport, s, i.AgentID}
	if old == nil {
		err = i.NewDisk(one.disk, 256<<20)
	} else {
		err = errors.Join(old.MoveDisk(one.disk, i), old.Delete(ctx))
	}
	if err != nil {
		return err
	}
	if err := i.Start(ctx); err != nil {
		return err
	}
	settings, err := i.Permanent()
	if err != nil {
		return err
	}
	if err := one.play(ctx, func(p *director.Plan, d director.Deployment, upload func(context.Context) error) {
		d.Settings = settings
		i.Agent.RecreateVM(p, i, d, upload)
	}, nil); err != nil {
		return err
	}
	one.agent = i.AgentID
	one.kept += fmt.Sprintln("vm", one.made)
	if _, err := i.Output(ctx, "sh", "-c", fmt.Sprintf("echo vm %d >>/var/vcap/store/kept; sync", one.made)); err != nil {
		return err
	}
	return errors.Join(i.ExpelFirstIdentity(), s.expect(ctx, one))
}

// bounce restarts the NATS server now and then. It waits until the agents are back before it does so again.
func (s *soak) bounce(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(20*time.Second + rand.N(20*time.Second)):
		}
		subscribed := map[*lab.Instance]bool{}
		for _, i := range s.l.Machines() {
			subscribed[i] = i.Listening()
		}
		stopped, err := s.l.Bus.Bounce(ctx, rand.N(3*time.Second))
		if err != nil {
			s.t.Errorf("NATS does not come back: %v", err)
			return
		}
		s.count("restart of NATS")
		started := time.Now()
		var waiting sync.WaitGroup
		for _, i := range s.l.Machines() { // with those that have been made since
			outage := &span{from: stopped}
			s.mu.Lock()
			s.outages[i.AgentID] = append(s.outages[i.AgentID], outage)
			s.mu.Unlock()
			waiting.Go(func() {
				s.awaitSubscriber(i, started)
				s.mu.Lock()
				defer s.mu.Unlock()
				outage.to = time.Now()
				if subscribed[i] {
					s.returns = append(s.returns, outage.to.Sub(started))
				}
			})
		}
		waiting.Wait()
	}
}

// awaitSubscriber waits until an agent is subscribed at the server that was started, or its machine is deleted.
func (s *soak) awaitSubscriber(i *lab.Instance, started time.Time) {
	const limit = 30 * time.Second
	for !i.Listening() && time.Since(started) < limit && s.l.Machines()[i.Short] == i {
		time.Sleep(10 * time.Millisecond)
	}
}

// watch is the Health Monitor: every agent that should run is heard.
func (s *soak) watch(ctx context.Context) {
	reported := map[string]bool{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(5 * time.Second):
		}
		missed := s.l.Monitor.Missed(time.Now())
		for _, one := range s.slots {
			if !one.mu.TryLock() {
				continue // in the hands of the Director
			}
			if age, ok := missed[one.agent]; ok && one.agent != "" && !reported[one.agent] {
				reported[one.agent] = true
				s.t.Errorf("the Health Monitor has not heard of %s for %s", one.i.Short, age.Round(time.Second))
			}
			one.mu.Unlock()
		}
	}
}

// TestMachineSoakKilledInTasks kills the agent 252 times in tasks.
func TestMachineSoakKilledInTasks(t *testing.T) { killInTasks(t, "systemd", 42) }

// TestMachineSoakKilledAtStepBoundaries kills it at the beginning and at the end of each step of a first boot.
func TestMachineSoakKilledAtStepBoundaries(t *testing.T) { killAtStepBoundaries(t) }
