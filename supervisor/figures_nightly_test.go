//go:build nightly && root

package supervisor

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/internal/skiptest"
)

const (
	figuresPage = "../docs/results/supervisor.md"
	realCycle   = 10 * time.Second
	realGrace   = 2 * time.Second
	deaths      = 20
	idle        = 50
	idleTime    = time.Minute
	restarts    = 10_000
)

// TestNightlyFigures measures both supervisors with the cycle of a machine, and what restarts leave in ours, and writes
// the page.
func TestNightlyFigures(t *testing.T) {
	needMonit(t)
	agent := os.Getenv("CAMBIUM_AGENT")
	if agent == "" {
		skiptest.Skip(t, "CAMBIUM_AGENT names no agent")
	}
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		t.Fatal(err)
	}
	var a, b latencies
	var both sync.WaitGroup
	both.Go(func() { t.Run("monit", func(t *testing.T) { b = measureDeaths(newMonit(t, realCycle, mortals())) }) })
	both.Go(func() {
		t.Run("ours", func(t *testing.T) {
			w := prepare(t, mortals())
			w.grace = realGrace
			w.run(realCycle)
			a = measureDeaths(w)
		})
	})
	both.Wait()
	if t.Failed() {
		return
	}
	if longest := slices.Max(a.restart); longest > realCycle {
		t.Errorf("a restart took %v, more than a cycle", longest)
	}
	c, d := measureIdle(t, agent)
	left := measureRestarts(t)
	page := fmt.Sprintf(`# The supervisor beside monit

Written by `+"`go test -tags nightly,root -run NightlyFigures -timeout 1h ./supervisor`"+` on %s, on %d processors
(%s/%s, %s; load averages before: %s), with monit 5.33 of Debian. Both have a cycle
of %v; ours waits %v for a job that replaces its process by itself.

| | | ours | monit |
|---|---|---|---|
| %d deaths at random times: until the start program runs | median | %v | %v |
| | longest | %v | %v |
| until the alert arrives | median | %v | %v |
| | longest | %v | %v |
| %d idle services: resident memory | | %d MiB | %d MiB |
| CPU time in %v | | %v | %v |
| %d restarts: growth of the heap by each; no descriptor or goroutine is left | | %.1f bytes | not measured |
`, time.Now().Format(time.DateOnly), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version(),
		strings.Join(strings.Fields(string(load))[:3], " "), realCycle, realGrace, deaths, median(a.restart),
		median(b.restart), longest(a.restart), longest(b.restart),
		median(a.alert), median(b.alert), longest(a.alert), longest(b.alert),
		idle, c.memory>>10, d.memory>>10, idleTime, c.cpu, d.cpu,
		restarts, left)
	if err := os.WriteFile(figuresPage, []byte(page), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Log(page)
}

// latencies are the times from a death to what follows.
type latencies struct{ restart, alert []time.Duration }

func median(all []time.Duration) time.Duration {
	return slices.Sorted(slices.Values(all))[len(all)/2].Round(10 * time.Millisecond)
}

func longest(all []time.Duration) time.Duration { return slices.Max(all).Round(10 * time.Millisecond) }

// mortals are services whose start program notes when it runs.
func mortals() map[string]string {
	files := map[string]string{"ctl": "#!/bin/sh\ndate +%s%N >>DIR/$2.started\nsleep 1000 & echo $! >DIR/$2.pid\n"}
	for i := range deaths {
		name := fmt.Sprintf("s%d", i)
		files[name+".monitrc"] = check("DIR", name, "")
	}
	return files
}

// started returns the times at which the start program of a service ran.
func (w *world) started(name string) (all []time.Time) {
	text, _ := os.ReadFile(filepath.Join(w.dir, name+".started")) // none: it has not run
	for _, word := range strings.Fields(string(text)) {
		if at, err := strconv.ParseInt(word, 10, 64); err == nil {
			all = append(all, time.Unix(0, at))
		}
	}
	return all
}

// alerted returns the time of the first alert about an event of a service after some time, and whether there was one.
func (w *world) alerted(name, event string, after time.Time) (at time.Time, found bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.mails {
		if m.at.After(after) && strings.Contains(m.text, "Service: "+name+"\nEvent: "+event) {
			return m.at, true
		}
	}
	return time.Time{}, false
}

// measureDeaths kills each service once, over three cycles.
func measureDeaths(w *world) (found latencies) {
	var names []string
	var at []time.Duration
	for i := range deaths {
		names, at = append(names, fmt.Sprintf("s%d", i)), append(at, rand.N(3*realCycle))
		// With the end of one trouble, the next one is worth an alert again.
		eventually.True(w.t, names[i]+" runs", func() bool {
			_, is := w.alerted(names[i], "Exists", time.Time{})
			return is
		})
	}
	slices.Sort(at)
	begin, died := time.Now(), map[string]time.Time{}
	for i, name := range names {
		time.Sleep(time.Until(begin.Add(at[i])))
		died[name] = time.Now()
		w.kill(name)
	}
	for _, name := range names {
		eventually.True(w.t, "restart of "+name, func() bool { return len(w.started(name)) == 2 })
		found.restart = append(found.restart, w.started(name)[1].Sub(died[name]))
		eventually.True(w.t, "alert about "+name, func() bool {
			at, is := w.alerted(name, "Does not exist", died[name])
			if is {
				found.alert = append(found.alert, at.Sub(died[name]))
			}
			return is
		})
	}
	return found
}

// cost is the memory and CPU time that a supervisor uses.
type cost struct {
	memory int // KiB
	cpu    time.Duration
}

// measureIdle has both supervise processes to which nothing happens. The agent has its own network and /run.
func measureIdle(t *testing.T, agent string) (ours, monit cost) {
	pids := func(files map[string]string, dir string) {
		for i := range idle {
			name := fmt.Sprintf("s%d", i)
			files[dir+name+".monitrc"] = check("DIR", name, "  if totalmem > 1000 MB for 3 cycles then alert")
			files[name+".pid"] = strconv.Itoa(living(t))
		}
	}
	files := map[string]string{}
	pids(files, "")
	m := newMonit(t, realCycle, files)
	for i := range idle {
		m.awaitSeen(fmt.Sprintf("s%d", i), "running")
	}
	base := t.TempDir()
	if err := os.MkdirAll(filepath.Join(base, "monit", "job"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if strings.HasSuffix(name, ".monitrc") {
			text = strings.ReplaceAll(text, "DIR", m.dir)
			if err := os.WriteFile(filepath.Join(base, "monit", "job", name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	supervise := exec.Command("/bin/sh", "-c",
		`mount -t tmpfs none /run && ip link set lo up && exec "$0" supervise -b "$1"`, agent, base)
	supervise.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET}
	supervise.Stdout, supervise.Stderr = t.Output(), t.Output()
	if err := supervise.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = supervise.Process.Kill() // it may have ended
		_ = supervise.Wait()         // killed
	}()
	eventually.True(t, "the state", func() bool {
		text, err := os.ReadFile(filepath.Join(base, "monit", "supervisor.json"))
		return err == nil && strings.Contains(string(text), fmt.Sprintf("s%d", idle-1))
	})
	time.Sleep(2 * realCycle) // both have settled
	ours.cpu, monit.cpu = cpuTime(t, supervise.Process.Pid), cpuTime(t, m.daemon)
	time.Sleep(idleTime)
	ours.cpu, monit.cpu = cpuTime(t, supervise.Process.Pid)-ours.cpu, cpuTime(t, m.daemon)-monit.cpu
	ours.memory, monit.memory = resident(t, supervise.Process.Pid), resident(t, m.daemon)
	return ours, monit
}

// measureRestarts returns by how many bytes the heap grows with each restart: the slope of the line through all points.
func measureRestarts(t *testing.T) (slope float64) {
	w, services := quick(t)
	warm := w.restart(services, 20)
	before := warm[len(warm)-1]
	held := w.restart(services, restarts/len(services))
	before.settled(t)
	var x, y, xx, xy float64
	for i, h := range held {
		made := float64(i * len(services))
		x, y, xx, xy = x+made, y+float64(h.heap), xx+made*made, xy+made*float64(h.heap)
	}
	n := float64(len(held))
	slope = (n*xy - x*y) / (n*xx - x*x)
	t.Logf("%d restarts: %.1f bytes per restart, at the end %+v", len(held)*len(services), slope, held[len(held)-1])
	if slope > 32 {
		t.Errorf("memory grows by %.1f bytes per restart", slope)
	}
	return slope
}

func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	p, ok := parseStat(pid, text, time.Time{})
	if !ok {
		t.Fatalf("unexpected %q", text)
	}
	return time.Duration(p.ticks) * time.Second / hertz
}

func resident(t *testing.T, pid int) int {
	t.Helper()
	return int(readProcesses()[pid].kilobytes)
}
