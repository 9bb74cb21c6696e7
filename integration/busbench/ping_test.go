//go:build bench

// Package busbench compares the agent's answers with those of a baseline agent: both as real
// programs, on the same NATS server with mutual TLS, in one run, as ratios.
package busbench

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/internal/nstest"
	"cambium/internal/testca"
	"cambium/internal/testnats"
)

// Programs are found before the test enters its namespaces, where nothing can be built.
const (
	oursVariable     = "BUSBENCH_AGENT"
	baselineVariable = "BUSBENCH_BASELINE"
	// previousVariable may name an older build of this agent, to compare with as well.
	previousVariable = "PREVIOUS"
)

// TestBenchPing needs network namespaces: a baseline agent writes firewall rules.
func TestBenchPing(t *testing.T) {
	if os.Getenv(oursVariable) == "" {
		t.Setenv(oursVariable, build(t))
		out, err := exec.Command("../../scripts/baseline").Output()
		if err != nil {
			t.Fatalf("baseline: %v", err)
		}
		t.Setenv(baselineVariable, strings.TrimSpace(string(out)))
	}
	nstest.Run(t, compare)
}

func build(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "agent")
	command := exec.Command("go", "build", "-trimpath", "-tags", "nethttpomithttp2", "-ldflags", "-s -w", "-o", path,
		"../../cmd/agent")
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return path
}

type figures struct {
	rate     float64 // per second
	p50, p99 time.Duration
	cpu      time.Duration // of the agent, per ping
}

// side is one of those that answer.
type side struct {
	id  string
	pid int
}

func compare(t *testing.T) {
	d := testnats.Start(t, nil, "ours", "baseline", "previous", libraryFloor, bareFloor)
	agents := []side{
		{"ours", run(t, d, "ours", os.Getenv(oursVariable))},
		{"baseline", run(t, d, "baseline", os.Getenv(baselineVariable))},
	}
	if program := os.Getenv(previousVariable); program != "" {
		agents = append(agents, side{"previous", run(t, d, "previous", program)})
	}
	sides := append(slices.Clone(agents), side{libraryFloor, runFloor(t, d, libraryFloor)},
		side{bareFloor, runFloor(t, d, bareFloor)})
	r := d.Director()
	for _, s := range sides {
		ready(t, r, s.id)
	}
	w := asker(t, d)
	for _, inFlight := range []int{1, 64} {
		report(t, fmt.Sprintf("%2d in flight", inFlight), sides, func(s side) figures {
			before := processor(t, s.pid)
			f := measure(t, w, s.id, inFlight, pings)
			f.cpu = (processor(t, s.pid) - before) / pings
			return f
		})
	}
	for _, s := range agents {
		errand(t, r, s.id)
	}
	for _, inFlight := range []int{1, 64} {
		report(t, fmt.Sprintf("%2d in flight beside an errand and states", inFlight), agents, func(s side) figures {
			stop := states(r, s.id)
			defer stop()
			return measure(t, w, s.id, inFlight, busyPings)
		})
	}
}

// report measures all sides in turn, so that other load of the machine affects them alike.
func report(t *testing.T, what string, sides []side, measure func(side) figures) {
	t.Helper()
	all := map[string][]figures{}
	for round := range rounds + 1 {
		for _, s := range sides {
			if f := measure(s); round > 0 { // the first one warms up
				all[s.id] = append(all[s.id], f)
			}
		}
	}
	baseline := median(all["baseline"])
	for _, s := range sides {
		f := median(all[s.id])
		t.Logf("%s: %-8s %6.0f/s p50 %-8v p99 %-8v cpu %-5v of the baseline: rate %.1f, p50 %.2f, p99 %.2f", what, s.id,
			f.rate, f.p50.Round(time.Microsecond), f.p99.Round(time.Microsecond), f.cpu,
			f.rate/baseline.rate, ratio(f.p50, baseline.p50), ratio(f.p99, baseline.p99))
	}
}

// errand starts a task that does not end.
func errand(t *testing.T, r *testnats.Director, id string) {
	t.Helper()
	reply := r.Call(id, "run_errand", errandJob)
	var handle struct {
		Value struct {
			ID string `json:"agent_task_id"`
		}
	}
	if err := json.Unmarshal([]byte(reply), &handle); err != nil || handle.Value.ID == "" {
		t.Fatalf("%s: run_errand: %s", id, reply)
	}
	time.Sleep(200 * time.Millisecond) // an errand that fails has done so by then
	if repeated := r.Call(id, "get_task", handle.Value.ID); repeated != reply {
		t.Fatalf("%s: the errand ended: %s", id, repeated)
	}
}

// states asks for the full state eighty times a second, eight at once: the same load for each
// agent, however fast it answers.
func states(r *testnats.Director, id string) (stop func()) {
	ended := make(chan struct{})
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for {
				subject, replies := r.Send(id, "get_state", "full")
				select {
				case <-replies:
				case <-ended:
				}
				r.Forget(subject)
				select {
				case <-ended:
					return
				case <-time.After(100 * time.Millisecond):
				}
			}
		})
	}
	return func() {
		close(ended)
		group.Wait()
	}
}

const (
	rounds    = 5
	pings     = 10000
	busyPings = 2000
	errandJob = "waiter"
)

// median takes each figure's own, since a noisy machine spoils them independently.
func median(all []figures) (m figures) {
	pick := func(value func(figures) float64) float64 {
		var list []float64
		for _, f := range all {
			list = append(list, value(f))
		}
		slices.Sort(list)
		return list[len(list)/2]
	}
	m.rate = pick(func(f figures) float64 { return f.rate })
	m.p50 = time.Duration(pick(func(f figures) float64 { return float64(f.p50) }))
	m.p99 = time.Duration(pick(func(f figures) float64 { return float64(f.p99) }))
	m.cpu = time.Duration(pick(func(f figures) float64 { return float64(f.cpu) }))
	return m
}

func ratio(a, b time.Duration) float64 { return float64(a) / float64(b) }

func ready(t *testing.T, r *testnats.Director, id string) {
	t.Helper()
	eventually.True(t, id+" answers", func() bool {
		subject, replies := r.Send(id, "ping")
		defer r.Forget(subject)
		select {
		case reply := <-replies:
			return string(reply) == `{"value":"pong"}`
		case <-time.After(time.Second):
			return false
		}
	})
}

// measure keeps inFlight pings under way until n are answered.
func measure(t *testing.T, w *wire, id string, inFlight, n int) figures {
	t.Helper()
	envelopes, started := make([][]byte, inFlight), make([]time.Time, inFlight)
	for slot := range envelopes {
		envelopes[slot] = testnats.Envelope("ping", fmt.Sprintf("director.bench.%s.%d", id, slot))
	}
	times := make([]time.Duration, 0, n)
	begin := time.Now()
	for slot := range envelopes {
		started[slot] = begin
		w.publish("agent."+id, envelopes[slot])
	}
	for asked := inFlight; len(times) < n; {
		subject, _, err := w.next()
		if err != nil {
			t.Fatal(err)
		}
		slot, err := strconv.Atoi(string(subject[bytes.LastIndexByte(subject, '.')+1:]))
		if err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		times = append(times, now.Sub(started[slot]))
		if asked < n {
			asked++
			started[slot] = now
			w.publish("agent."+id, envelopes[slot])
		}
	}
	took := time.Since(begin)
	slices.Sort(times)
	return figures{rate: float64(n) / took.Seconds(), p50: times[n/2], p99: times[n*99/100]}
}

// processor is the time that a process has spent computing.
func processor(t *testing.T, pid int) time.Duration {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	var ticks int
	for _, f := range fields[11:13] {
		n, err := strconv.Atoi(f)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / 100
}

// run starts an agent without a machine (-P dummy).
func run(t *testing.T, d *testnats.Deployment, id, program string) (pid int) {
	t.Helper()
	base := t.TempDir()
	pair := d.Client(testca.AgentName(id))
	settings := map[string]any{
		"agent_id": id, "mbus": d.URL().Reveal(), "vm": map[string]any{"name": id}, "ntp": []any{},
		"networks": map[string]any{},
		"disks":    map[string]any{"persistent": map[string]any{}},
		"blobstore": map[string]any{"provider": "local",
			"options": map[string]any{"blobstore_path": filepath.Join(base, "blobs")}},
		"env": map[string]any{"bosh": map[string]any{"mbus": map[string]any{"cert": map[string]any{
			"ca": string(d.CA.PEM), "certificate": string(pair.Certificate), "private_key": string(pair.PrivateKey)}}}},
	}
	write(t, filepath.Join(base, "source.json"), settings)
	write(t, filepath.Join(base, "agent.json"), map[string]any{"Infrastructure": map[string]any{"Settings": map[string]any{
		"Sources": []any{map[string]any{"Type": "File", "SettingsPath": filepath.Join(base, "source.json")}}}}})
	if err := os.MkdirAll(filepath.Join(base, "bosh"), 0o755); err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(base, "jobs", errandJob, "bin", "run")
	if err := os.MkdirAll(filepath.Dir(script), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(script, []byte("#!/bin/sh\nexec sleep 1000\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(base, "bosh", "spec.json"),
		map[string]any{"rendered_templates_archive": map[string]any{"blobstore_id": "b", "sha1": "s"},
			"job": map[string]any{"name": errandJob, "template": errandJob,
				"templates": []any{map[string]any{"name": errandJob, "version": "1"}}}})
	log, err := os.Create(filepath.Join(base, "log"))
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(program, "-P", "dummy", "-C", filepath.Join(base, "agent.json"), "-M", "dummy-nats", "-b",
		base)
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
		if t.Failed() {
			data, _ := os.ReadFile(log.Name())
			t.Logf("%s:\n%s", id, data[max(0, len(data)-3000):])
		}
	})
	return command.Process.Pid
}

func write(t *testing.T, path string, v any) {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func asker(t *testing.T, d *testnats.Deployment) *wire {
	t.Helper()
	pair, err := d.Client(testca.DirectorName).TLS()
	if err != nil {
		t.Fatal(err)
	}
	w, err := dial(fmt.Sprintf("127.0.0.1:%d", d.Port()), &tls.Config{RootCAs: d.CA.Pool(), ServerName: "127.0.0.1",
		Certificates: []tls.Certificate{pair}}, "director.bench.>")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.conn.Close() })
	return w
}
