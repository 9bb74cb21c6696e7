//go:build machine && bench

package machine

import (
	"context"
	"fmt"
	"regexp"
	"sync"
	"testing"
	"time"

	"cambium/lab"
	"cambium/lab/director"
	"cambium/lab/release"
)

// waits are the times between the ends of tasks and the caller's knowledge of them.
type waits struct {
	short, long           time.Duration // sums, of tasks below one second and above five
	shortTasks, longTasks int
	wall                  time.Duration
}

var taskEnded = regexp.MustCompile(`(?m)^.*?(\d{4}-\d\d-\d\dT[0-9:.]+Z) \w+ - task (?:done|failed) .*\btask=(\S+) took=(\S+)$`)

// BenchmarkTaskAnswers deploys, updates, recreates, stops and starts with answers to get_task held and not held, through
// a client that polls as a Director does.
func BenchmarkTaskAnswers(b *testing.B) {
	for range b.N {
		var short, long [2]waits // not held, held
		for n, hold := range []int{0, 2} {
			short[n], long[n] = taskWaits(b, hold, forker()), taskWaits(b, hold, forker(), slow())
		}
		fmt.Printf("\n  between a task's end and its Director's knowledge, in a deploy, an update, a recreation, a stop and a start\n")
		fmt.Printf("  %-34s %12s %12s %8s\n", "", "not held", "held", "share")
		row := func(what string, before, after time.Duration, tasks int) {
			fmt.Printf("  %-34s %12s %12s %8.2f  (%d tasks)\n", what, before.Round(time.Millisecond),
				after.Round(time.Millisecond), float64(after)/float64(max(before, 1)), tasks)
		}
		row("tasks below 1 s", short[0].short, short[1].short, short[1].shortTasks)
		row("wall time", short[0].wall, short[1].wall, short[1].shortTasks)
		row("tasks above 5 s", long[0].long, long[1].long, long[1].longTasks)
		row("wall time with tasks above 5 s", long[0].wall, long[1].wall, long[1].shortTasks+long[1].longTasks)
	}
}

// slow is a job all of whose scripts take more than five seconds, each another time: the ends of tasks spread evenly
// over the three seconds of a held answer and the pause after it. The count lies on the persistent disk, which a new VM
// gets.
func slow() release.Job {
	script := func(more string) string {
		return "#!/bin/bash\nn=$(cat /var/vcap/store/count 2>/dev/null || echo 0)\necho $((n + 1)) >/var/vcap/store/count\n" +
			"ms=$((5100 + n * 250 % 3000))\nsleep $((ms / 1000)).$(printf %03d $((ms % 1000)))\n" + more + "\n"
	}
	files := release.Files{"monit": "", "bin/drain": script("echo 0")}
	for _, name := range []string{"pre-start", "post-start", "pre-stop", "post-stop", "post-deploy"} {
		files["bin/"+name] = script("")
	}
	return release.Job{Name: "slow", Files: files}
}

// observer collects when a Director learns of the ends of tasks.
type observer struct {
	mu    sync.Mutex
	known map[string]time.Time
}

func (o *observer) attach(i *lab.Instance) {
	i.Agent.Ended = func(_, task string) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.known[task] = time.Now()
	}
}

// add counts the tasks that the instance's agent has logged.
func (o *observer) add(b *testing.B, i *lab.Instance, w *waits) {
	b.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, match := range taskEnded.FindAllStringSubmatch(agentLog(b, i), -1) {
		at, err := time.Parse(time.RFC3339Nano, match[1])
		if err != nil {
			b.Fatal(err)
		}
		took, err := time.ParseDuration(match[3])
		if err != nil {
			b.Fatal(err)
		}
		learned, asked := o.known[match[2]]
		switch wait := learned.Sub(at); {
		case !asked:
		case took < time.Second:
			w.short, w.shortTasks = w.short+wait, w.shortTasks+1
		case took > 5*time.Second:
			w.long, w.longTasks = w.long+wait, w.longTasks+1
		}
	}
}

func taskWaits(b *testing.B, hold int, jobs ...release.Job) (w waits) {
	b.Helper()
	l := newLab(b, func(o *lab.Options) { o.Poll = 0 }) // a second, as a Director
	o := &observer{known: map[string]time.Time{}}
	group := release.Group{Name: "app", Instances: 1, EphemeralDisk: 4096, PersistentDisk: 1024, Jobs: jobs,
		Packages: []release.Package{tool("1")},
		Env:      map[string]any{"bosh": map[string]any{"agent": map[string]any{"task_answer_hold": hold}}}}
	m := release.Manifest{Name: "dep", Groups: []release.Group{group}}
	ctx, cancel := context.WithTimeout(b.Context(), 10*time.Minute)
	defer cancel()
	begun := time.Now()
	// The instance exists only once create_vm has ended, so the first report of a step attaches the observer.
	observed := false
	deploy := func() {
		if err := l.Deploy(ctx, m, func(string, string, time.Duration, error) {
			if i := l.Machines()["app-0"]; i != nil && !observed {
				observed = true
				o.attach(i)
			}
		}); err != nil {
			b.Fatal(err)
		}
	}
	deploy()
	m.Groups[0].Packages = []release.Package{tool("2")}
	deploy()
	old := l.Machines()["app-0"]
	i := recreated(b, ctx, l, old, m, o, &w, hold)
	f := flows{l: l, m: m, i: i}
	if err := f.play(ctx, func(p *director.Plan, d director.Deployment, upload func(context.Context) error) {
		p.Add("upload_blob", upload)
		i.Agent.Stop(p, d, false)
		i.Agent.Start(p, d)
	}, nil); err != nil {
		b.Fatal(err)
	}
	w.wall = time.Since(begun)
	o.add(b, i, &w)
	if w.shortTasks == 0 {
		b.Fatal("the agent's log names no task that the client asked for")
	}
	return w
}

// recreated stops an instance, moves its disk to a new VM and starts it there.
func recreated(b *testing.B, ctx context.Context, l *lab.Lab, old *lab.Instance, m release.Manifest, o *observer,
	w *waits, hold int) *lab.Instance {
	b.Helper()
	check := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	mounted, err := old.Agent.Scan(ctx)
	check(err)
	if len(mounted) != 1 {
		b.Fatalf("disks %v are mounted, want one", mounted)
	}
	disk := mounted[0]
	f := flows{l: l, m: m, i: old, disk: disk}
	check(f.play(ctx, func(p *director.Plan, d director.Deployment, _ func(context.Context) error) {
		old.Agent.Stop(p, d, true)
		old.Agent.Detach(p, old, disk)
	}, nil))
	o.add(b, old, w)
	i, err := l.Create(ctx, lab.VM{Name: "app-again", Ephemeral: 4 * lab.GiB, Edit: func(d lab.Document) {
		d.Set("env.bosh.agent", map[string]any{"task_answer_hold": hold})
	}})
	check(err)
	o.attach(i)
	check(old.MoveDisk(disk, i))
	check(old.Delete(ctx))
	check(i.Start(ctx))
	f.i = i
	settings, err := i.Permanent()
	check(err)
	check(f.play(ctx, func(p *director.Plan, d director.Deployment, upload func(context.Context) error) {
		d.Settings = settings
		i.Agent.RecreateVM(p, i, d, upload)
	}, nil))
	check(i.ExpelFirstIdentity())
	return i
}

// agentLog returns the agent's log so far.
func agentLog(b testing.TB, i *lab.Instance) string {
	b.Helper()
	return run(b, i, "journalctl", "-o", "cat", "--identifier=bosh-agent")
}
