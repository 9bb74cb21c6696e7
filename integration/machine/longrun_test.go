//go:build machine

package machine

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/lab"
	"cambium/lab/director"
	"cambium/lab/release"
)

// load holds the numbers of operations in a long run.
type load struct{ requests, applies, mounts, migrations, restarts int }

// TestMachineLongRun is the short version of TestMachineSoakLongRun.
func TestMachineLongRun(t *testing.T) {
	t.Parallel()
	r := longRun(t, load{requests: 1000, applies: 10, mounts: 5, migrations: 1, restarts: 2}, 0)
	// Memory and what is kept for a while need more time than this to show a trend, goroutines more restarts.
	r.flat("file descriptors")
}

// longRunner is one agent that serves a whole long run, and what was measured meanwhile.
type longRunner struct {
	busy
	want     load
	counts   map[string]int // requests by method
	total    int            // requests
	begin    time.Time
	dns      int
	spare    string // a disk that is mounted and unmounted again and again
	last     int    // requests at the last sample
	inOne    int    // requests of the process that runs
	series   map[string]*series
	warmUp   time.Duration
	longLife bool // the first process, which serves most, runs
}

// series are measurements of one quantity over the number of requests.
type series struct{ x, y []float64 }

// add notes a measurement.
func (r *longRunner) add(name string, at int, value float64) {
	s := r.series[name]
	if s == nil {
		s = &series{}
		r.series[name] = s
	}
	s.x, s.y = append(s.x, float64(at)), append(s.y, value)
}

// counting counts the requests that a Director sends.
type counting struct {
	director.Transport
	r *longRunner
}

func (c counting) RoundTrip(ctx context.Context, request director.Request) ([]byte, error) {
	c.r.counts[request.Method]++
	c.r.total++
	c.r.inOne++
	return c.Transport.RoundTrip(ctx, request)
}

// longRun asks one agent for everything that a Director can ask for, in random order: more than half of it from one
// process, the rest from one that is started again and again. It measures memory, descriptors, threads, goroutines,
// disk and journal; not before the end of the warm-up.
func longRun(t *testing.T, want load, warmUp time.Duration) *longRunner {
	l := newLab(t, func(o *lab.Options) { o.Poll = 5 * time.Millisecond })
	scripted := release.Job{Name: "scripted", Files: release.Files{"monit": "", "bin/pre-start": "#!/bin/sh\n",
		"bin/run": "#!/bin/sh\necho done\n", "bin/drain": "#!/bin/sh\necho 0\n"}}
	m := manifest([]release.Job{forker(), scripted}, tool("0"))
	m.Groups[0].PersistentDisk = 64
	r := &longRunner{want: want, warmUp: warmUp, counts: map[string]int{}, series: map[string]*series{}}
	r.busy = busy{flows: flows{t: t, l: l, m: m, i: mustDeploy(t, l, m)}, tool: "0", size: 64 << 20}
	r.random = rand.New(rand.NewPCG(1, 2))
	r.i.Agent.Transport = counting{r.i.Agent.Transport, r}
	mounted, err := r.i.Agent.Scan(t.Context())
	if err != nil || len(mounted) != 1 {
		t.Fatalf("after the deploy: %v, %v", mounted, err)
	}
	r.disk = mounted[0]
	run(t, r.i, "sh", "-ec", "cd /var/vcap/store; head -c 4M /dev/urandom >large; mkdir a; "+
		"head -c 1M /dev/urandom | split -b 8k - a/f; sync")
	r.sum = run(t, r.i, "sh", "-c", killSum)
	r.apply()
	r.spare = r.blank()
	r.begin = time.Now()
	steps := r.steps()
	long := len(steps) * 6 / 10
	r.longLife = true
	each := max(1, len(steps)/100)
	for n, step := range steps[:long] {
		step()
		if n%each == each-1 {
			r.sample()
		}
	}
	r.restart()
	r.longLife = false
	rest := steps[long:]
	for n := range want.restarts - 1 {
		for at := n * len(rest) / (want.restarts - 1); at < (n+1)*len(rest)/(want.restarts-1); at++ {
			rest[at]()
		}
		r.sample()
		r.restart()
	}
	r.wantWhole("after the long run")
	t.Logf("%d requests in %s: %v", r.total, time.Since(r.begin).Round(time.Second), r.counts)
	return r
}

// steps returns the operations of the run, in random order.
func (r *longRunner) steps() (all []func()) {
	for range r.want.applies {
		all = append(all, r.apply)
	}
	for range r.want.mounts {
		all = append(all, r.mount)
	}
	for range r.want.migrations {
		all = append(all, r.migrate)
	}
	others := r.others()
	names := slices.Sorted(maps.Keys(others))
	for range max(1, r.want.applies/20) {
		for _, name := range names {
			all = append(all, others[name])
		}
	}
	cheap := []func(){func() { r.must([]any{"ping"}) }, func() { r.must([]any{"get_state"}) },
		func() { r.must([]any{"get_state", "full"}) }, func() { r.must([]any{"info"}) },
		func() { r.must([]any{"ping"}) }}
	// What an apply, a mount, a migration and the others need at least, with the poll of each task; the rest are the
	// requests that Directors send most.
	used := 4*r.want.applies + 4*r.want.mounts + 10*r.want.migrations + 35*max(1, r.want.applies/20)
	for n := range max(0, r.want.requests-used) {
		all = append(all, cheap[n%len(cheap)])
	}
	r.random.Shuffle(len(all), func(a, b int) { all[a], all[b] = all[b], all[a] })
	return all
}

// apply deploys another version of the package, mostly beside the running jobs.
func (r *longRunner) apply() {
	r.t.Helper()
	if r.made%10 == 0 {
		a := r.applying()
		r.must(a.request)
		a.after()
		return
	}
	r.must(r.nextSpec())
}

func (r *longRunner) mount() {
	r.t.Helper()
	r.must([]any{"mount_disk", r.spare})
	r.must([]any{"unmount_disk", r.spare})
}

func (r *longRunner) migrate() {
	r.t.Helper()
	a := r.migrating()
	r.must(a.request)
	a.after()
}

// others are requests of all other kinds; shutdown ends the machine, and is not among them.
func (r *longRunner) others() map[string]func() {
	signed := func(verb string) map[string]any {
		id := fmt.Sprintf("longrun-%d", r.total)
		return map[string]any{"signed_url": r.l.Blobs.SignedURL(verb, id), "log_type": "job", "filters": []string{}}
	}
	return map[string]func(){
		"list_disk": func() { r.must([]any{"list_disk"}) },
		"update_settings": func() {
			a := r.updating()
			r.must(a.request)
		},
		"prepare":    func() { r.must([]any{"prepare", r.spec}) },
		"drain":      func() { r.must([]any{"drain", "update", r.spec}) },
		"run_script": func() { r.must([]any{"run_script", "pre-start", map[string]any{}}) },
		"run_errand": func() { r.must([]any{"run_errand", "scripted"}) },
		"compile": func() {
			a := r.compiling()
			r.must(a.request)
			a.after()
		},
		"fetch_logs":        func() { r.must([]any{"fetch_logs", "job", []string{}}) },
		"fetch_logs_signed": func() { r.must([]any{"fetch_logs_with_signed_url", signed("PUT")}) },
		"bundle_logs": func() {
			var made struct {
				Path string `json:"logs_tar_path"`
			}
			order := map[string]any{"owning_user": "vcap", "log_type": "job", "filters": []string{}}
			if err := r.i.Agent.Into(r.t.Context(), &made, "bundle_logs", order); err != nil {
				r.t.Fatal(err)
			}
			r.must([]any{"remove_file", made.Path})
		},
		"ssh": func() {
			r.must([]any{"ssh", "setup", map[string]any{"user": "bosh_long", "public_key": "ssh-ed25519 AAAA long"}})
			r.must([]any{"ssh", "cleanup", map[string]any{"user_regex": "^bosh_long$"}})
		},
		"sync_dns": func() {
			r.dns++
			data := fmt.Appendf(nil, `{"records":[["10.88.0.9","long-%d.internal"]],"version":%[1]d}`, r.dns)
			id, digest := putBlob(r.t, r.l, data)
			r.must([]any{"sync_dns", id, digest, r.dns})
		},
		"delete_arp_entries": func() {
			r.must([]any{"delete_arp_entries", map[string]any{"ips": []string{"10.88.0.99"}}})
		},
		"dynamic_disk": func() {
			r.must([]any{"add_dynamic_disk", "dynamic", map[string]any{"path": r.spareDevice()}})
			r.must([]any{"remove_dynamic_disk", "dynamic"})
		},
		"cancel_task": func() {
			value, err := r.i.Agent.Call(r.t.Context(), "run_errand", "scripted")
			var handle struct {
				ID string `json:"agent_task_id"`
			}
			if err == nil {
				err = json.Unmarshal(value, &handle)
			}
			if err != nil {
				r.t.Fatal(err)
			}
			r.must([]any{"cancel_task", handle.ID})
		},
	}
}

// spareDevice is the path of the disk that is mounted again and again.
func (r *longRunner) spareDevice() string {
	for _, a := range r.i.Disks() {
		if a.Disk.ID == r.spare {
			return a.Path
		}
	}
	r.t.Fatalf("the machine has no disk %s", r.spare)
	return ""
}

// measure prints: anonymous memory (KiB), threads, descriptors, files of the agent and of the data disk without logs
// (KiB), and lines and bytes of the journal since the last time.
const measure = `pid=$(systemctl show -P MainPID bosh-agent)
sed -n 's/^RssAnon:\s*\([0-9]*\).*/\1/p' /proc/$pid/status
sed -n 's/^Threads:\s*//p' /proc/$pid/status
ls /proc/$pid/fd | wc -l
du -skx /var/vcap/bosh | cut -f1; du -skx --exclude=log /var/vcap/data | cut -f1
journalctl --cursor-file=/run/longrun.cursor --identifier=bosh-agent -q -o cat | wc -lc`

// sample measures, per process what belongs to a process.
func (r *longRunner) sample() {
	r.t.Helper()
	words := strings.Fields(run(r.t, r.i, "sh", "-c", measure))
	if len(words) != 7 {
		r.t.Fatalf("measured %q", words)
	}
	var v [7]float64
	for n, word := range words {
		v[n], _ = strconv.ParseFloat(word, 64)
	}
	if time.Since(r.begin) < r.warmUp {
		r.last = r.total
		return
	}
	if r.longLife {
		r.add("memory (anonymous, KiB)", r.total, v[0])
		r.add("threads", r.total, v[1])
		r.add("file descriptors", r.total, v[2])
	}
	r.add("files of the agent (KiB)", r.total, v[3])
	r.add("data disk without logs (KiB)", r.total, v[4])
	if r.last > 0 && r.total > r.last {
		r.add("journal (lines per request)", r.total, v[5]/float64(r.total-r.last))
		r.add("journal (bytes per request)", r.total, v[6]/float64(r.total-r.last))
	}
	r.last = r.total
}

// restart ends the process so that Go's runtime lists its goroutines, and waits for the next one.
func (r *longRunner) restart() {
	r.t.Helper()
	served := r.inOne
	text := run(r.t, r.i, "sh", "-ec", `pid=$(systemctl show -P MainPID bosh-agent); kill -QUIT $pid
while now=$(systemctl show -P MainPID bosh-agent); [ "$now" = 0 ] || [ "$now" = $pid ]; do sleep 0.02; done
journalctl --sync; journalctl _PID=$pid -q -o cat | grep -c '^goroutine [0-9]'`)
	goroutines, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err != nil || goroutines < 5 {
		r.t.Fatalf("goroutines of the process: %q, %v", text, err)
	}
	r.add("goroutines", served, goroutines)
	ready(r.t, r.i)
	eventually.True(r.t, "the agent after its restart", func() bool { return agentStatus(r.t, r.i).State == "ready" })
	r.inOne = 0
	words := strings.Fields(run(r.t, r.i, "sh", "-c", measure))
	if memory, err := strconv.ParseFloat(words[0], 64); err == nil {
		r.add("memory after a restart (KiB)", r.total, memory)
	}
	r.last = r.total
}

// trend is a line through measurements.
type trend struct {
	n                   int
	mean, slope, spread float64 // the slope is per 10,000 requests; spread is its standard error
	over                float64 // requests from the first to the last measurement
}

func (s *series) trend() (t trend) {
	t.n = len(s.x)
	var mx, my float64
	for k := range s.x {
		mx, my = mx+s.x[k]/float64(t.n), my+s.y[k]/float64(t.n)
	}
	var xx, xy float64
	for k := range s.x {
		xx, xy = xx+(s.x[k]-mx)*(s.x[k]-mx), xy+(s.x[k]-mx)*(s.y[k]-my)
	}
	slope := xy / xx
	var rest float64
	for k := range s.x {
		rest += math.Pow(s.y[k]-my-slope*(s.x[k]-mx), 2)
	}
	t.mean, t.slope, t.spread = my, slope*1e4, math.Sqrt(rest/float64(t.n-2)/xx)*1e4
	t.over = slices.Max(s.x) - slices.Min(s.x)
	return t
}

// grows reports a trend that is not noise: the slope is more than three standard errors above zero, and the growth over
// the run is more than a twentieth of what there is.
func (t trend) grows() bool {
	return t.slope > 3*t.spread && t.slope*t.over/1e4 > t.mean/20
}

// What grows is told from what varies, and from what grows by next to nothing.
func TestMachineTrend(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		at   func(k int) float64
		want bool
	}{
		"a leak":            {func(k int) float64 { return 1000 + 10*float64(k) + 5*float64(k%3) }, true},
		"noise":             {func(k int) float64 { return 1000 + 100*float64(k*7%5) }, false},
		"a twentieth":       {func(k int) float64 { return 1000 + float64(k) }, false},
		"nothing changes":   {func(int) float64 { return 1000 }, false},
		"what gets smaller": {func(k int) float64 { return 1000 - 10*float64(k) }, false},
	} {
		var s series
		for k := range 40 {
			s.x, s.y = append(s.x, 250*float64(k)), append(s.y, c.at(k))
		}
		if got := s.trend().grows(); got != c.want {
			t.Errorf("%s: grows is %v, want %v (%+v)", name, got, c.want, s.trend())
		}
	}
}

// flat fails the test if one of the quantities grows.
func (r *longRunner) flat(names ...string) {
	r.t.Helper()
	for _, name := range names {
		s := r.series[name]
		if s == nil || len(s.x) < 3 {
			r.t.Errorf("%s was measured less than three times: %+v", name, s)
			continue
		}
		t := s.trend()
		r.t.Logf("%s: mean %.1f, slope %.3f ± %.3f per 10,000 requests over %.0f requests (%d samples)",
			name, t.mean, t.slope, t.spread, t.over, t.n)
		if t.grows() {
			r.t.Errorf("%s grows: %v over %v", name, s.y, s.x)
		}
	}
}
