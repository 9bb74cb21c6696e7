//go:build machine

package machine

import (
	"context"
	"slices"
	"strings"
	"testing"

	"cambium/lab/director"
	"cambium/lab/release"
)

// dependants is a base with three workers. Each leaves a mark when it is started or stopped, and takes two seconds to stop.
func dependants() release.Job {
	check := func(name, more string) string {
		return strings.NewReplacer("NAME", name, "MORE", more).Replace(`check process NAME
  with pidfile /var/vcap/sys/run/dependants/NAME.pid
  start program "/var/vcap/jobs/dependants/bin/ctl start NAME"
  stop program "/var/vcap/jobs/dependants/bin/ctl stop NAME"
  MORE
  group vcap
`)
	}
	return release.Job{Name: "dependants", Files: release.Files{
		"monit": check("base", "") + check("worker_1", "depends on base") + check("worker_2", "depends on base") +
			check("worker_3", "depends on base"),
		"bin/ctl": `#!/bin/bash
pid=/var/vcap/sys/run/dependants/$2.pid
echo "$1 $2" >>` + trace + `
case $1 in
start) setsid /var/vcap/packages/tool/bin/sleeper $2 </dev/null >/dev/null 2>&1 & echo $! >$pid ;;
stop) kill "$(cat $pid)"; sleep 2; rm -f $pid ;;
esac
`}}
}

// TestMachineDependants takes services that depend on each other, and are slow to stop, through all that a Director does
// with jobs: each is stopped once, dependants before their base, and nothing runs after a stop.
func TestMachineDependants(t *testing.T) {
	t.Parallel()
	dependantsFlow(t, "systemd")
}

func dependantsFlow(t *testing.T, supervisor string) {
	l := supervisedLab(t, supervisor)
	m := manifest([]release.Job{dependants()}, tool("one"))
	f := &flows{t: t, l: l, m: m, i: mustDeploy(t, l, m)}
	f.started("deploy")

	stop := func(p *director.Plan, d director.Deployment, _ func(context.Context) error) {
		f.i.Agent.Stop(p, d, true)
	}
	skipDrain := func(p *director.Plan, _ director.Deployment, _ func(context.Context) error) {
		p.Add("stop", func(ctx context.Context) error {
			_, err := f.i.Agent.Do(ctx, "stop")
			return err
		})
	}
	start := func(p *director.Plan, d director.Deployment, upload func(context.Context) error) {
		p.Add("upload_blob", upload)
		f.i.Agent.Start(p, d)
	}
	for _, step := range []struct {
		name string
		stop sequence
	}{{"stop", stop}, {"restart", stop}, {"stop --skip-drain", skipDrain}} {
		f.do(step.name, step.stop)
		f.stopped(step.name)
		f.do("start after "+step.name, start)
		f.started("start after " + step.name)
	}
	mustDeploy(t, l, manifest([]release.Job{dependants()}, tool("two")))
	marks := f.marks()
	if len(marks) != 8 {
		t.Fatalf("an update: got %q", marks)
	}
	f.compare("an update: stop", marks[:4], "stop")
	f.compare("an update: start", marks[4:], "start")
}

// marks returns the marks that the control scripts have left since the last call.
func (f *flows) marks() []string {
	f.t.Helper()
	return strings.Split(strings.TrimSpace(run(f.t, f.i, "sh", "-c", "cat "+trace+"; rm "+trace)), "\n")
}

// compare wants each service once, the base first when they start and last when they stop.
func (f *flows) compare(what string, marks []string, verb string) {
	f.t.Helper()
	base, workers := 0, marks[min(1, len(marks)):]
	if verb == "stop" {
		base = len(marks) - 1
		workers = marks[:base]
	}
	got := slices.Sorted(slices.Values(workers))
	want := []string{verb + " worker_1", verb + " worker_2", verb + " worker_3"}
	if marks[base] != verb+" base" || !slices.Equal(got, want) {
		f.t.Errorf("%s: got %q, want each once and the base first or last", what, marks)
	}
}

func (f *flows) started(what string) {
	f.t.Helper()
	f.compare(what, f.marks(), "start")
	if s := stateOf(f.t, f.i); s.JobState != "running" {
		f.t.Errorf("%s: got %s with %s", what, s.JobState, s.processes())
	}
}

func (f *flows) stopped(what string) {
	f.t.Helper()
	f.compare(what, f.marks(), "stop")
	if out, err := f.i.Output(f.t.Context(), "pgrep", "-af", "bin/sleeper"); err == nil {
		f.t.Errorf("%s: there still runs %s", what, out)
	}
	if s := stateOf(f.t, f.i); s.JobState != "stopped" {
		f.t.Errorf("%s: got %s", what, s.JobState)
	}
}
