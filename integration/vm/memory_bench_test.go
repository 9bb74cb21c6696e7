//go:build vm && bench

package vm

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"cambium/lab"
	"cambium/lab/baseline"
	"cambium/lab/labtest"
	"cambium/lab/machine"
)

const (
	samplerProgram = "/usr/local/bin/sample-memory"
	samplesFile    = "/run/memory-samples"
	agentGroup     = "/sys/fs/cgroup/system.slice/bosh-agent.service"
	samplePause    = 10 * time.Millisecond
	requests       = 1000
)

// sampler adds a service that reads the memory of the agent's control group again and again, from before the agent's
// start on. It runs in a control group of its own, so that it is not counted.
func sampler() []machine.File {
	program := fmt.Sprintf(`#!/usr/bin/perl
use IO::Handle;
open(my $samples, '>', '%s') or die; $samples->autoflush(1);
while (1) {
	if (open(my $stat, '<', '%s/memory.stat')) {
		my %%value = map { split } <$stat>;
		print $samples "$value{anon} $value{kernel}\n" if defined $value{kernel};
	}
	select(undef, undef, undef, %.3f);
}
`, samplesFile, agentGroup, samplePause.Seconds())
	return []machine.File{
		{Path: samplerProgram, Data: []byte(program), Mode: 0o755},
		{Path: "/etc/systemd/system/sample-memory.service", Mode: 0o644,
			Data: []byte("[Unit]\nDefaultDependencies=no\nAfter=sysinit.target\n[Service]\nExecStart=" + samplerProgram + "\n")},
		{Path: "/etc/systemd/system/bosh-agent.service.d/sample-memory.conf", Mode: 0o644,
			Data: []byte("[Unit]\nWants=sample-memory.service\nAfter=sample-memory.service\n[Service]\nMemoryAccounting=yes\n")},
	}
}

// charged is the memory, in kB, that the kernel charges to the agent's control group, including the programs that the
// agent starts. Page cache is not part of the samples, since it is given up under pressure; it is part of memory.peak.
type charged struct {
	samples      int
	highest      int // anonymous plus kernel memory, the highest sample of a phase
	anon, kernel int // of that sample
	last         int // the last sample: the agent is at rest again
	peak         int // memory.peak since the agent's start
}

// chargedSince reads the samples that were taken since that many, and returns how many there are.
func chargedSince(b testing.TB, i *lab.Instance, before int) (c charged, total int) {
	b.Helper()
	time.Sleep(rest)
	peak, err := strconv.Atoi(strings.TrimSpace(run(b, i, "cat", agentGroup+"/memory.peak")))
	if err != nil {
		b.Fatal(err)
	}
	c.peak = peak / 1024
	lines := strings.Split(strings.TrimSpace(run(b, i, "cat", samplesFile)), "\n")
	for _, line := range lines[min(before, len(lines)):] {
		var anon, kernel int
		if _, err := fmt.Sscan(line, &anon, &kernel); err != nil {
			b.Fatalf("memory of the control group: %q: %v", line, err)
		}
		c.last = (anon + kernel) / 1024
		if c.last > c.highest {
			c.highest, c.anon, c.kernel = c.last, anon/1024, kernel/1024
		}
		c.samples++
	}
	if c.samples == 0 {
		b.Fatal("the memory of the control group was not sampled")
	}
	return c, len(lines)
}

// footprint is the memory of one agent in one machine.
type footprint struct{ boot, busy charged }

func measureMemory(b testing.TB, agent string) (f footprint) {
	b.Helper()
	l := newLab(b, func(o *lab.Options) { o.Agent, o.Poll = agent, 10*time.Millisecond })
	i := start(b, l, lab.VM{Ephemeral: 10 * lab.GiB, Files: append(baseline.Files(), sampler()...),
		Edit: func(d lab.Document) { d.Set("disks.ephemeral", "/dev/vdb") }})
	virtual.Pong(b, i, pings)
	var taken int
	f.boot, taken = chargedSince(b, i, 0)
	labtest.Requests(b, i, requests)
	f.busy, _ = chargedSince(b, i, taken)
	return f
}

// BenchmarkMemory compares what a machine pays for each agent: over a first boot, and over 1,000 requests. It boots
// machines of its own, because the sampling takes processor time.
func BenchmarkMemory(b *testing.B) {
	virtual.Need(b)
	subjects := labtest.Subjects(b)
	all := map[string][]footprint{}
	for range rounds {
		for _, a := range subjects {
			b.Run("agent="+a.Name, func(b *testing.B) {
				f := measureMemory(b, a.Binary)
				all[a.Name] = append(all[a.Name], f)
				b.ReportMetric(0, "ns/op") // of the whole machine
				for unit, kB := range map[string]int{"boot-highest-kB": f.boot.highest, "boot-after-kB": f.boot.last,
					"boot-peak-kB": f.boot.peak, "requests-highest-kB": f.busy.highest,
					"requests-after-kB": f.busy.last,
					"requests-peak-kB":  f.busy.peak} {
					b.ReportMetric(float64(kB), unit)
				}
			})
		}
	}
	for _, a := range subjects {
		if len(all[a.Name]) != rounds {
			b.Fatalf("%s was not measured", a.Name)
		}
	}
	fmt.Printf("\n  control group of the agent's unit, kB, medians of %d machines\n", rounds)
	for _, row := range []struct {
		what string
		of   func(footprint) int
	}{
		{"anon+kernel, highest, first boot", func(f footprint) int { return f.boot.highest }},
		{"anon+kernel, after it", func(f footprint) int { return f.boot.last }},
		{"anon+kernel, highest, requests", func(f footprint) int { return f.busy.highest }},
		{"anon+kernel, after them", func(f footprint) int { return f.busy.last }},
		{"memory.peak, first boot", func(f footprint) int { return f.boot.peak }},
		{"memory.peak, requests", func(f footprint) int { return f.busy.peak }},
	} {
		each := map[string]int{}
		for name, list := range all {
			var values []int
			for _, f := range list {
				values = append(values, row.of(f))
			}
			slices.Sort(values)
			each[name] = values[len(values)/2]
		}
		fmt.Println(labtest.Share(row.what, each, 1))
	}
}
