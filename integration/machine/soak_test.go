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
	"sync/atomic"
	"testing"
	"time"

	"cambium/integration/lab"
	"cambium/integration/lab/director"
	"cambium/integration/lab/labtest"
	"cambium/integration/lab/release"
)

// TestMachineSoakKilledAtRandom is the long version of the kills at random moments.
func TestMachineSoakKilledAtRandom(t *testing.T) { killAtRandom(t, 200) }

const (
	// atATime is how many instances the Director works on at once.
	atATime = 10
	// inotifyPerMachine is how many inotify instances a container with its systemd and agent needs, of the host's.
	inotifyPerMachine = 12
	// alertDelay is how long monit's mail takes at most to become an alert.
	alertDelay = 15 * time.Second
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
	// bounced is how often the NATS server has been restarted.
	bounced atomic.Int64
}

// span is a time in which a Director works on an instance.
type span struct{ from, to time.Time }

// slot is one instance of it. The mutex is held while a Director works on it.
type slot struct {
	flows
	mu    sync.Mutex
	made  int    // how many VMs the instance has had
	kept  string // what its store should hold
	steps int
	// agent is the one that must be heard by the Health Monitor, "" while there is none.
	agent string
	// worked are the times in which its agents were asked to stop and start jobs.
	worked map[string][]span
}

// TestMachineSoakDeployments keeps containers busy with deployments, recreations, stops and rotations, ten at a time,
// while the NATS server is restarted. No alert is raised, no task fails, no heartbeat is missed, and nothing is left
// over. CAMBIUM_SOAK is how long (two hours), CAMBIUM_SOAK_MACHINES how many containers (20).
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
	s := &soak{t: t, l: newLab(t, func(o *lab.Options) { o.Poll = 0 })}
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

// checkAlerts: monit tells that a process does not exist when it looks between reload and start, with any agent. Outside of
// the Director's work an alert is false.
func (s *soak) checkAlerts() {
	during := 0
	for _, e := range s.l.Monitor.Events() {
		if e.Kind != "alert" {
			continue
		}
		if slices.ContainsFunc(s.slots, func(one *slot) bool {
			return slices.ContainsFunc(one.worked[e.Agent], func(w span) bool { return e.Time.After(w.from) && e.Time.Before(w.to.Add(alertDelay)) })
		}) {
			during++
			continue
		}
		s.t.Errorf("alert of %s: %s", e.Agent, e.Body)
	}
	s.t.Logf("alerts of monit while a Director worked on the instance: %d", during)
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

// operate does one thing to an instance. A request that is lost with the server fails a Director's task, since it does not
// repeat requests; the operator repeats the deployment.
func (s *soak) operate(ctx context.Context, one *slot, do func(context.Context, *slot) error) error {
	bounced, w := s.bounced.Load(), span{from: time.Now()}
	err := do(ctx, one)
	if errors.Is(err, director.ErrTimeout) && s.bounced.Load() != bounced && one.i != nil {
		s.count("lost with the NATS server")
		err = s.update(ctx, one)
		one.agent = one.i.AgentID
	}
	if one.i != nil {
		w.to = time.Now()
		if one.worked == nil {
			one.worked = map[string][]span{}
		}
		one.worked[one.i.AgentID] = append(one.worked[one.i.AgentID], w)
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

// expect compares the instance with what it should be.
func (s *soak) expect(ctx context.Context, one *slot) error {
	out, err := one.i.Output(ctx, "sh", "-c", "mountpoint -q /var/vcap/store && cat /var/vcap/store/kept")
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
	old, from := one.i, time.Now()
	if old != nil {
		one.agent = ""
		defer func() { one.worked[old.AgentID] = append(one.worked[old.AgentID], span{from, time.Now()}) }()
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
	return errors.Join(i.Settled(), s.expect(ctx, one))
}

// bounce restarts the NATS server now and then.
func (s *soak) bounce(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(20*time.Second + rand.N(20*time.Second)):
		}
		s.bounced.Add(1)
		if err := s.l.Bus.Bounce(ctx, rand.N(3*time.Second)); err != nil {
			s.t.Errorf("NATS does not come back: %v", err)
			return
		}
		s.count("restart of NATS")
	}
}

// watch is the Health Monitor: every agent that should run is heard.
func (s *soak) watch(ctx context.Context) {
	told := map[string]bool{}
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
			if age, ok := missed[one.agent]; ok && one.agent != "" && !told[one.agent] {
				told[one.agent] = true
				s.t.Errorf("the Health Monitor has not heard of %s for %s", one.i.Short, age.Round(time.Second))
			}
			one.mu.Unlock()
		}
	}
}
