//go:build bench

// Package busbench compares the agent's answers with those of a baseline agent: both as real
// programs, on the same NATS server with mutual TLS, in one run, as ratios.
package busbench

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"cambium/internal/nstest"
	"cambium/internal/testca"
	"cambium/internal/testnats"
)

// Programs are found before the test enters its namespaces, where nothing can be built.
const (
	oursVariable     = "BUSBENCH_AGENT"
	baselineVariable = "BUSBENCH_BASELINE"
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
	command := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, "../../cmd/agent")
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

func compare(t *testing.T) {
	d := testnats.Start(t, nil, "ours", "baseline")
	pids := map[string]int{
		"ours":     run(t, d, "ours", os.Getenv(oursVariable)),
		"baseline": run(t, d, "baseline", os.Getenv(baselineVariable)),
	}
	r := d.Director()
	for id := range pids {
		ready(t, r, id)
	}
	for _, inFlight := range []int{1, 64} {
		all := map[string][]figures{}
		for round := range rounds + 1 {
			for _, id := range []string{"ours", "baseline"} {
				before := processor(t, pids[id])
				f := measure(t, r.Conn, id, inFlight, pings)
				f.cpu = (processor(t, pids[id]) - before) / pings
				if round > 0 { // the first one warms up
					all[id] = append(all[id], f)
				}
			}
		}
		ours, baseline := median(all["ours"]), median(all["baseline"])
		t.Logf("%2d in flight: ours %6.0f/s p50 %v p99 %v cpu %v; baseline %6.0f/s p50 %v p99 %v cpu %v; ratio: rate %.1f, p50 %.2f, p99 %.2f, cpu %.2f", inFlight,
			ours.rate, ours.p50, ours.p99, ours.cpu, baseline.rate, baseline.p50, baseline.p99, baseline.cpu,
			ours.rate/baseline.rate, ratio(ours.p50, baseline.p50), ratio(ours.p99, baseline.p99), ratio(ours.cpu, baseline.cpu))
	}
}

// Both take turns, so that what else the machine does hits both alike.
const (
	rounds = 7
	pings  = 10000
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
	testnats.Until(t, id+" answers", func() bool {
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

// measure keeps inFlight pings under way until n are answered. It spends as little as it can
// itself: each reply sends the next request.
func measure(t *testing.T, nc *nats.Conn, id string, inFlight, n int) figures {
	t.Helper()
	envelopes, started := make([][]byte, inFlight), make([]time.Time, inFlight)
	for slot := range envelopes {
		envelopes[slot] = testnats.Envelope("ping", fmt.Sprintf("director.bench.%s.%d", id, slot))
	}
	times := make([]time.Duration, 0, n)
	done := make(chan struct{})
	send := func(slot int) {
		started[slot] = time.Now()
		if err := nc.Publish("agent."+id, envelopes[slot]); err != nil {
			t.Error(err)
		}
	}
	sub, err := nc.Subscribe("director.bench.>", func(m *nats.Msg) {
		slot, err := strconv.Atoi(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:])
		if err != nil || len(times) == n {
			return
		}
		if times = append(times, time.Since(started[slot])); len(times) == n {
			close(done)
			return
		}
		send(slot)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	for slot := range inFlight {
		send(slot)
	}
	<-done
	took := time.Since(begin)
	if err := sub.Drain(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond) // the last replies find nobody
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

// run starts an agent on a machine that is none.
func run(t *testing.T, d *testnats.Deployment, id, program string) (pid int) {
	t.Helper()
	base := t.TempDir()
	pair := d.Client(testca.AgentName(id))
	settings := map[string]any{
		"agent_id": id, "mbus": d.URL().Reveal(), "vm": map[string]any{"name": id}, "ntp": []any{}, "networks": map[string]any{},
		"disks":     map[string]any{"persistent": map[string]any{}},
		"blobstore": map[string]any{"provider": "local", "options": map[string]any{"blobstore_path": filepath.Join(base, "blobs")}},
		"env": map[string]any{"bosh": map[string]any{"mbus": map[string]any{"cert": map[string]any{
			"ca": string(d.CA.PEM), "certificate": string(pair.Certificate), "private_key": string(pair.PrivateKey)}}}},
	}
	write(t, filepath.Join(base, "source.json"), settings)
	write(t, filepath.Join(base, "agent.json"), map[string]any{"Infrastructure": map[string]any{"Settings": map[string]any{
		"Sources": []any{map[string]any{"Type": "File", "SettingsPath": filepath.Join(base, "source.json")}}}}})
	if err := os.MkdirAll(filepath.Join(base, "bosh"), 0o755); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(base, "log"))
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(program, "-P", "dummy", "-C", filepath.Join(base, "agent.json"), "-M", "dummy-nats", "-b", base)
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
