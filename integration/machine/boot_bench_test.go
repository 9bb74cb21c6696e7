//go:build machine && bench

package machine

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"cambium/internal/status"
	"cambium/lab"
	"cambium/lab/baseline"
	"cambium/lab/execs"
	"cambium/lab/labtest"
)

// measured is one boot or one restart of an agent.
type measured struct {
	pong     int // nanoseconds from exec to the first pong
	programs int
	rss      int // kB, as the next three
	anon     int
	peak     int
	written  int // by the agent's own process
	disk     int // kB written to its ephemeral disk
}

// sample is everything that one machine shows of its agent.
type sample struct {
	first, restart measured
	disks          labtest.DiskTimes
	busy           measured // after 1,000 requests
	steps          []status.Step
}

// vitalsOf reads what the kernel counts for a process.
func vitalsOf(b testing.TB, pid int) (m measured) {
	b.Helper()
	for file, fields := range map[string]map[string]*int{
		"status": {"VmRSS:": &m.rss, "RssAnon:": &m.anon, "VmHWM:": &m.peak},
		"io":     {"write_bytes:": &m.written},
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
	m.written /= 1024
	return m
}

// writtenTo returns the kB written so far to the machine's ephemeral disk.
func writtenTo(b testing.TB, i *lab.Instance) int {
	b.Helper()
	fields := strings.Fields(run(b, i, "sh", "-c",
		"sync -f /var/vcap/data; cat /sys/dev/block/$(findmnt -nf -o MAJ:MIN /var/vcap/data | tr -d '[:space:]')/stat"))
	if len(fields) < 7 {
		b.Fatalf("statistics of the disk: %q", fields)
	}
	sectors, err := strconv.Atoi(fields[6])
	if err != nil {
		b.Fatal(err)
	}
	return sectors / 2
}

// rest is the time that an agent is left alone before its memory is read.
const rest = 1500 * time.Millisecond

// observe takes a blank machine with the agent through a first boot, a restart of the agent, the
// life of a persistent disk, and many requests.
func observe(b testing.TB, agent string) (s sample, i *lab.Instance) {
	b.Helper()
	l := newLab(b, func(o *lab.Options) { o.Agent, o.Poll = agent, time.Millisecond })
	watch, err := execs.Start("bosh-agent")
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = watch.Close() }()
	i = start(b, l, lab.VM{Ephemeral: 10 * lab.GiB, SCSI: true, Files: baseline.ContainerFiles()})
	end := containers.Pong(b, i, time.Millisecond)
	namespace := strings.TrimSpace(run(b, i, "readlink", "/proc/self/ns/pid"))
	s.first = collect(b, watch, namespace, end, 0)
	// Memory is that of an agent at rest, not of one that has just stopped running.
	time.Sleep(rest)
	now, _ := watch.Of(namespace)
	vitals := vitalsOf(b, now.LastPID)
	s.first.rss, s.first.anon = vitals.rss, vitals.anon
	s.first.disk = writtenTo(b, i)
	if raw, err := i.Status(); err == nil {
		s.steps = stepsOf(b, raw)
	}
	all, err := counted(watch, namespace)
	if err != nil {
		b.Fatal(err)
	}
	run(b, i, "systemctl", "restart", "--no-block", "bosh-agent")
	// The old process must be gone before a pong can be the new one's.
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if now, _ := watch.Of(namespace); now.Processes > all.Processes {
			break
		}
		if time.Now().After(deadline) {
			b.Fatal("the agent was not started again")
		}
	}
	end = containers.Pong(b, i, time.Millisecond)
	s.restart = collect(b, watch, namespace, end, len(all.Programs))
	s.disks = labtest.DiskLife(b, i, 2*time.Millisecond)
	labtest.Requests(b, i, 1000)
	time.Sleep(rest)
	all, _ = watch.Of(namespace)
	s.busy = vitalsOf(b, all.LastPID)
	return s, i
}

func collect(b testing.TB, watch *execs.Watch, namespace string, end time.Time, before int) measured {
	b.Helper()
	all, err := counted(watch, namespace)
	if err != nil {
		b.Fatal(err)
	}
	m := vitalsOf(b, all.LastPID)
	m.pong, m.programs = int(end.Sub(all.Began)), len(all.Programs)-before
	return m
}

// rounds is the number of measurements of each agent; the medians are compared. benchstat gives bounds from six on.
const rounds = 6

// BenchmarkBoot compares this agent with the others in the same machines under the same files.
func BenchmarkBoot(b *testing.B) {
	subjects := labtest.Subjects(b)
	all := map[string][]sample{}
	var kernelOnly []kernelWork
	for range rounds {
		for _, a := range subjects {
			// A benchmark of its own, so that its lab is gone before the next one starts.
			b.Run("agent="+a.Name, func(b *testing.B) {
				s, i := observe(b, a.Binary)
				all[a.Name] = append(all[a.Name], s)
				labtest.Report(b, time.Duration(s.first.pong), time.Duration(s.restart.pong))
				s.disks.Report(b)
				if a.Name == labtest.Ours {
					kernelOnly = append(kernelOnly, measureKernelWork(b, i))
				}
			})
		}
	}
	for _, a := range subjects {
		if len(all[a.Name]) == 0 {
			b.Fatalf("%s was not measured", a.Name)
		}
	}
	report(subjects, all, kernelOnly)
}

// median is the median of one figure over the rounds.
func median(list []sample, of func(sample) int) int {
	var values []int
	for _, s := range list {
		values = append(values, of(s))
	}
	slices.Sort(values)
	return values[len(values)/2]
}

// report prints the table and how the targets are met.
func report(subjects []labtest.Subject, all map[string][]sample, kernelOnly []kernelWork) {
	fmt.Printf("\n  %-24s %9s %8s %8s %8s %8s %10s %9s\n", "medians, kB", "pong", "programs", "rss", "anon", "peak",
		"written", "to disk")
	for _, phase := range []struct {
		name string
		of   func(sample) measured
	}{{"first boot", func(s sample) measured { return s.first }},
		{"agent restart", func(s sample) measured { return s.restart }},
		{"1,000 requests", func(s sample) measured { return s.busy }}} {
		for _, a := range subjects {
			m := func(field func(measured) int) int {
				return median(all[a.Name], func(s sample) int { return field(phase.of(s)) })
			}
			fmt.Printf("  %-24s %9s %8d %8d %8d %8d %10d %9d\n", a.Name+", "+phase.name,
				short(m(func(m measured) int { return m.pong })), m(func(m measured) int { return m.programs }),
				m(func(m measured) int { return m.rss }), m(func(m measured) int { return m.anon }),
				m(func(m measured) int { return m.peak }),
				m(func(m measured) int { return m.written }), m(func(m measured) int { return m.disk }))
		}
	}
	ours := all[labtest.Ours]
	fmt.Printf("\n  steps of our first boot, in one of them:\n")
	for _, s := range ours[0].steps {
		if s.End > 0 {
			fmt.Printf("    %-18s %9s .. %9s\n", s.Name, short(int(s.Start)), short(int(s.End)))
		}
	}
	work := medianWork(kernelOnly)
	fmt.Printf("\n  kernel work alone: %s\n", work)
	times := func(what string, wanted float64, of func(sample) int) {
		each := map[string]time.Duration{}
		for name, list := range all {
			each[name] = time.Duration(median(list, of))
		}
		fmt.Println(labtest.Faster(what, each, wanted))
	}
	times("first boot, exec to pong", 10, func(s sample) int { return s.first.pong })
	first := median(ours, func(s sample) int { return s.first.pong })
	within := float64(first) / float64(max(int(work.sum()), 1))
	fmt.Printf("  %-34s %9s of %9s: %5.1f times, wanted at most 3 %s\n", "first boot to kernel work alone", short(first),
		short(int(work.sum())), within, labtest.Met(within <= 3))
	times("agent restart, exec to pong", 10, func(s sample) int { return s.restart.pong })
	times("mount_disk, blank", 5, func(s sample) int { return int(s.disks.Blank) })
	times("mount_disk, formatted", 5, func(s sample) int { return int(s.disks.Formatted) })
	times("unmount_disk", 5, func(s sample) int { return int(s.disks.Unmount) })
	times("migrate_disk, 200 MiB", 2, func(s sample) int { return int(s.disks.Migrate) })
	times("ping beside it, p99", 3, func(s sample) int { return int(s.disks.Ping) })
}

func short(ns int) string { return time.Duration(ns).Round(100 * time.Microsecond).String() }
