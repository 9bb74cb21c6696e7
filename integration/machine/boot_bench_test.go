//go:build machine && bench

package machine

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"cambium/integration/lab"
	"cambium/integration/lab/execs"
	"cambium/integration/lab/machine"
)

// baselineScripts are the stemcell's programs that the baseline cannot boot without; each does
// what it does on a stemcell, or nothing where that takes time of its own.
var baselineScripts = map[string]string{
	"bosh-agent-rc":                   "exit 0",
	"restart_networking":              "exec systemctl restart systemd-networkd",
	"bosh-start-logging-and-auditing": "exit 0",
	"sync-time":                       "exit 0",
	"setup-logrotate.sh":              "exit 0",
	"iptables":                        "case $1 in --version) echo 'iptables v1.8.9 (nf_tables)';; esac",
	"ip6tables":                       "case $1 in --version) echo 'ip6tables v1.8.9 (nf_tables)';; esac",
}

func baselineFiles() (files []machine.File) {
	for name, body := range baselineScripts {
		files = append(files, machine.File{Path: "/var/vcap/bosh/bin/" + name, Data: []byte("#!/bin/sh\n" + body + "\n"), Mode: 0o755})
	}
	// The baseline finds its NICs in sysfs, which in a container shows those of the host.
	return append(files, machine.File{Path: "/etc/systemd/system/bosh-agent.service.d/sys.conf", Mode: 0o644, Data: []byte(`[Service]
ExecStartPre=/bin/sh -c 'mountpoint -q /run/sys && exit 0; mkdir -p /run/sys && mount -t sysfs sysfs /run/sys && mount --bind /run/sys/class/net /sys/class/net && mount --bind /run/sys/devices/virtual/net /sys/devices/virtual/net'
`)})
}

// measured is one boot, or one restart.
type measured struct {
	pong     time.Duration
	programs int
	rssKB    int
	anonKB   int
	peakKB   int
	writtenB int
}

// pong asks until the agent answers; the shortest wait keeps the error below a few milliseconds.
func pong(b testing.TB, i *lab.Instance, limit time.Duration) time.Time {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), limit)
	defer cancel()
	asking := *i.Agent
	asking.Timeout = 10 * time.Millisecond
	for ctx.Err() == nil {
		if value, err := asking.Call(ctx, "ping"); err == nil && string(value) == `"pong"` {
			return time.Now()
		}
	}
	journal, _ := i.Journal(context.Background())
	b.Fatalf("no pong within %v:\n%s", limit, tail(journal, 6000))
	return time.Time{}
}

func vitalsOf(b testing.TB, pid int) (m measured) {
	b.Helper()
	for file, fields := range map[string]map[string]*int{
		"status": {"VmRSS:": &m.rssKB, "RssAnon:": &m.anonKB, "VmHWM:": &m.peakKB},
		"io":     {"write_bytes:": &m.writtenB},
	} {
		data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), file))
		if err != nil {
			b.Fatal(err)
		}
		for _, line := range strings.Split(string(data), "\n") {
			words := strings.Fields(line)
			if len(words) > 1 && fields[words[0]] != nil {
				*fields[words[0]], _ = strconv.Atoi(words[1])
			}
		}
	}
	return m
}

// bootOnce boots a blank machine with the agent and then restarts the agent on it.
func bootOnce(b testing.TB, agent string, files []machine.File) (first, restart measured) {
	b.Helper()
	l := newLab(b, func(o *lab.Options) { o.Agent = agent })
	watch, err := execs.Start("bosh-agent")
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = watch.Close() }()
	i := start(b, l, lab.VM{Ephemeral: 10 * lab.GiB, Files: files})
	end := pong(b, i, 2*time.Minute)
	namespace := strings.TrimSpace(run(b, i, "readlink", "/proc/self/ns/pid"))
	first = collect(b, watch, namespace, end, 0)
	run(b, i, "systemctl", "restart", "--no-block", "bosh-agent")
	// The old process must be gone before a pong can be the new one's.
	for deadline := time.Now().Add(time.Minute); ; {
		if all, _ := watch.Of(namespace); all.Processes > 1 || time.Now().After(deadline) {
			break
		}
	}
	end = pong(b, i, 2*time.Minute)
	restart = collect(b, watch, namespace, end, first.programs)
	return first, restart
}

func collect(b testing.TB, watch *execs.Watch, namespace string, end time.Time, before int) measured {
	b.Helper()
	all, err := watch.Of(namespace)
	if err != nil {
		b.Fatal(err)
	}
	m := vitalsOf(b, all.LastPID)
	m.pong, m.programs = end.Sub(all.Began), len(all.Programs)-before
	return m
}

// BenchmarkBoot compares this agent with the baseline in the same machines under the same files:
// exec to first pong of a first boot with a blank 10 GiB disk and a static network, and of a
// restart on the machine that this leaves.
func BenchmarkBoot(b *testing.B) {
	out, err := exec.Command("../../scripts/baseline").Output()
	if err != nil {
		b.Fatal(err)
	}
	ours, err := agentBinary()
	if err != nil {
		b.Fatal(err)
	}
	const rounds = 5
	kinds := []string{"first boot", "restart"}
	all := map[string][]measured{}
	for range rounds {
		for name, binary := range map[string]string{"ours": ours, "baseline": strings.TrimSpace(string(out))} {
			var files []machine.File
			if name == "baseline" {
				files = baselineFiles()
			}
			// A benchmark of its own, so that its lab is gone before the next one starts.
			b.Run(name, func(b *testing.B) {
				first, restart := bootOnce(b, binary, files)
				all[name+" first boot"] = append(all[name+" first boot"], first)
				all[name+" restart"] = append(all[name+" restart"], restart)
			})
		}
	}
	for _, kind := range kinds {
		a, z := all["ours "+kind], all["baseline "+kind]
		fmt.Printf("%-11s %10s %9s %9s %9s %9s %9s\n", kind, "pong", "programs", "rss kB", "anon kB", "peak kB", "written")
		for name, list := range map[string][]measured{"ours": a, "baseline": z} {
			fmt.Printf("  %-9s %10s %9d %9d %9d %9d %9d\n", name, median(list, func(m measured) int { return int(m.pong) }).time(), median(list, func(m measured) int { return m.programs }),
				median(list, func(m measured) int { return m.rssKB }), median(list, func(m measured) int { return m.anonKB }),
				median(list, func(m measured) int { return m.peakKB }), median(list, func(m measured) int { return m.writtenB }))
		}
		short := strings.ReplaceAll(kind, " ", "-")
		b.ReportMetric(ratio(z, a, func(m measured) int { return int(m.pong) }), short+"-times-faster")
		b.ReportMetric(ratio(a, z, func(m measured) int { return m.rssKB }), short+"-rss-share")
	}
}

type number int

func (n number) time() time.Duration { return time.Duration(n).Round(100 * time.Microsecond) }

func median(list []measured, of func(measured) int) number {
	values := make([]int, 0, len(list))
	for _, m := range list {
		values = append(values, of(m))
	}
	slices.Sort(values)
	return number(values[len(values)/2])
}

func ratio(a, b []measured, of func(measured) int) float64 {
	return float64(median(a, of)) / float64(max(median(b, of), 1))
}
