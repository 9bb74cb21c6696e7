//go:build machine && bench

package machine

import (
	"context"
	"fmt"
	"regexp"
	"sync"
	"testing"
	"time"

	"cambium/integration/lab"
	"cambium/integration/lab/director"
	"cambium/integration/lab/release"
)

// waits are the times between the ends of tasks and the caller's knowledge of them.
type waits struct {
	short, long           time.Duration // sums, of tasks below one second and above five
	shortTasks, longTasks int
	wall                  time.Duration
}

var taskEnded = regexp.MustCompile(`(?m)^.*?(\d{4}-\d\d-\d\dT[0-9:.]+Z) \w+ - task (?:done|failed) .*\btask=(\S+) took=(\S+)$`)

// BenchmarkTaskAnswers deploys, updates, stops and starts with answers to get_task held and not held, through a
// client that polls as a Director does.
func BenchmarkTaskAnswers(b *testing.B) {
	for range b.N {
		atOnce, held := taskWaits(b, 0), taskWaits(b, 2)
		fmt.Printf("\n  between a task's end and its Director's knowledge, in a deploy, an update, a stop and a start\n")
		fmt.Printf("  %-24s %12s %12s %8s\n", "", "not held", "held", "share")
		row := func(what string, before, after time.Duration, tasks int) {
			fmt.Printf("  %-24s %12s %12s %8.2f  (%d tasks)\n", what, before.Round(time.Millisecond), after.Round(time.Millisecond), float64(after)/float64(max(before, 1)), tasks)
		}
		row("tasks below 1 s", atOnce.short, held.short, held.shortTasks)
		row("tasks above 5 s", atOnce.long, held.long, held.longTasks)
		row("wall time", atOnce.wall, held.wall, held.shortTasks+held.longTasks)
	}
}

func taskWaits(b *testing.B, hold int) (w waits) {
	b.Helper()
	l := newLab(b)
	known := map[string]time.Time{}
	var mu sync.Mutex
	group := release.Group{Name: "app", Instances: 1, EphemeralDisk: 4096, PersistentDisk: 1024, Jobs: []release.Job{forker()}, Packages: []release.Package{tool("1")},
		Env: map[string]any{"bosh": map[string]any{"agent": map[string]any{"task_answer_hold": hold}}}}
	m := release.Manifest{Name: "dep", Groups: []release.Group{group}}
	ctx, cancel := context.WithTimeout(b.Context(), 5*time.Minute)
	defer cancel()
	begun := time.Now()
	// The instance exists only once create_vm has ended, so the first report of a step attaches the observer.
	observed := false
	deploy := func() {
		if err := l.Deploy(ctx, m, func(string, string, time.Duration, error) {
			if i := l.Machines()["app-0"]; i != nil && !observed {
				observed = true
				i.Agent.Ended = func(_, task string) {
					mu.Lock()
					defer mu.Unlock()
					known[task] = time.Now()
				}
			}
		}); err != nil {
			b.Fatal(err)
		}
	}
	deploy()
	m.Groups[0].Packages = []release.Package{tool("2")}
	deploy()
	i := l.Machines()["app-0"]
	var p director.Plan
	i.Agent.Stop(&p, director.Deployment{}, true)
	p.Add("start", func(ctx context.Context) error { _, err := i.Agent.Do(ctx, "start"); return err })
	if err := p.Run(ctx, nil); err != nil {
		b.Fatal(err)
	}
	w.wall = time.Since(begun)
	for _, match := range taskEnded.FindAllStringSubmatch(agentLog(b, i), -1) {
		at, err := time.Parse(time.RFC3339Nano, match[1])
		if err != nil {
			b.Fatal(err)
		}
		took, err := time.ParseDuration(match[3])
		if err != nil {
			b.Fatal(err)
		}
		told, asked := known[match[2]]
		switch wait := told.Sub(at); {
		case !asked:
		case took < time.Second:
			w.short, w.shortTasks = w.short+wait, w.shortTasks+1
		case took > 5*time.Second:
			w.long, w.longTasks = w.long+wait, w.longTasks+1
		}
	}
	if w.shortTasks == 0 {
		b.Fatal("the agent's log names no task that the client asked for")
	}
	return w
}

// agentLog is what the agent has logged.
func agentLog(b testing.TB, i *lab.Instance) string {
	b.Helper()
	return run(b, i, "journalctl", "-o", "cat", "--identifier=bosh-agent")
}
