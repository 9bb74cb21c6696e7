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

	"cambium/integration/lab"
	"cambium/integration/lab/baseline"
	"cambium/integration/lab/execs"
	"cambium/integration/lab/labtest"
	"cambium/internal/status"
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

// sample is everything one machine tells of its agent.
type sample struct {
	first, restart measured
	disks          labtest.DiskTimes
	busy, idle     measured // after 1,000 requests, and after some time more
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

// writtenTo is what has been written to the machine's ephemeral disk, in kB.
func writtenTo(b testing.TB, i *lab.Instance) int {
	b.Helper()
	fields := strings.Fields(run(b, i, "sh", "-c", "sync -f /var/vcap/data; cat /sys/dev/block/$(findmnt -nf -o MAJ:MIN /var/vcap/data | tr -d '[:space:]')/stat"))
	if len(fields) < 7 {
		b.Fatalf("statistics of the disk: %q", fields)
	}
	sectors, err := strconv.Atoi(fields[6])
	if err != nil {
		b.Fatal(err)
	}
	return sectors / 2
}

// idleTime is how long an agent is left alone before its memory is read again.
func idleTime(b testing.TB) time.Duration {
	b.Helper()
	text := os.Getenv("BENCH_IDLE")
	if text == "" {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		b.Fatalf("BENCH_IDLE: %v", err)
	}
	return d
}

// rest is how long an agent is left alone before its memory is read.
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
		s.steps = statusOf(b, raw).Steps
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
	if idle := idleTime(b); idle > 0 {
		time.Sleep(idle)
		s.idle = vitalsOf(b, all.LastPID)
		fmt.Printf("%s: VmRSS %d kB and RssAnon %d kB after 1,000 requests, %d and %d after %s more\n",
			filepath.Base(agent), s.busy.rss, s.busy.anon, s.idle.rss, s.idle.anon, idle)
	}
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

// rounds is how often each agent is measured; the medians are compared.
const rounds = 5

// BenchmarkBoot compares this agent with the baseline in the same machines under the same files.
func BenchmarkBoot(b *testing.B) {
	count := rounds
	if idleTime(b) > 0 {
		count = 1 // ten minutes each are enough
	}
	agents := []struct{ name, binary string }{{"ours", labtest.Agent(b)}, {"baseline", labtest.Baseline(b)}}
	all := map[string][]sample{}
	var alone []kernelWork
	for range count {
		for _, a := range agents {
			// A benchmark of its own, so that its lab is gone before the next one starts.
			b.Run(a.name, func(b *testing.B) {
				s, i := observe(b, a.binary)
				all[a.name] = append(all[a.name], s)
				if a.name == "ours" {
					alone = append(alone, measureKernelWork(b, i))
				}
			})
		}
	}
	if len(all["ours"]) == 0 || len(all["baseline"]) == 0 {
		b.Fatal("an agent was not measured")
	}
	report(all["ours"], all["baseline"], alone)
}

// report prints the table and how the targets are met.
func report(ours, base []sample, alone []kernelWork) {
	value := func(list []sample, of func(sample) int) int {
		var values []int
		for _, s := range list {
			values = append(values, of(s))
		}
		slices.Sort(values)
		return values[len(values)/2]
	}
	row := func(name string, list []sample, of func(sample) measured) {
		m := func(field func(measured) int) int { return value(list, func(s sample) int { return field(of(s)) }) }
		fmt.Printf("  %-22s %9s %8d %8d %8d %8d %10d %9d\n", name, short(m(func(m measured) int { return m.pong })), m(func(m measured) int { return m.programs }),
			m(func(m measured) int { return m.rss }), m(func(m measured) int { return m.anon }), m(func(m measured) int { return m.peak }),
			m(func(m measured) int { return m.written }), m(func(m measured) int { return m.disk }))
	}
	fmt.Printf("\n  %-22s %9s %8s %8s %8s %8s %10s %9s\n", "medians, kB", "pong", "programs", "rss", "anon", "peak", "written", "to disk")
	for _, phase := range []struct {
		name string
		of   func(sample) measured
	}{{"first boot", func(s sample) measured { return s.first }}, {"agent restart", func(s sample) measured { return s.restart }},
		{"1,000 requests", func(s sample) measured { return s.busy }}, {"idle", func(s sample) measured { return s.idle }}} {
		if phase.name == "idle" && ours[0].idle.rss == 0 {
			continue
		}
		row("ours, "+phase.name, ours, phase.of)
		row("baseline, "+phase.name, base, phase.of)
	}
	fmt.Printf("\n  steps of our first boot, in one of them:\n")
	for _, s := range ours[0].steps {
		if s.End > 0 {
			fmt.Printf("    %-18s %9s .. %9s\n", s.Name, short(int(s.Start)), short(int(s.End)))
		}
	}
	fmt.Println()
	sum := value(ours, func(s sample) int { return s.first.pong })
	work := medianWork(alone)
	fmt.Printf("  kernel work alone: %s\n", work)
	times := func(what string, wanted float64, of func(sample) int) {
		fmt.Println(labtest.Faster(what, time.Duration(value(ours, of)), time.Duration(value(base, of)), wanted))
	}
	share := func(what string, wanted float64, of func(sample) int) {
		if value(ours, of) > 0 {
			fmt.Println(labtest.Share(what, value(ours, of), value(base, of), wanted))
		}
	}
	times("first boot, exec to pong", 10, func(s sample) int { return s.first.pong })
	within := float64(sum) / float64(max(int(work.sum()), 1))
	fmt.Printf("  %-34s %9s of %9s: %5.1f times, wanted at most 3 %s\n", "first boot to kernel work alone", short(sum), short(int(work.sum())), within, labtest.Met(within <= 3))
	times("agent restart, exec to pong", 10, func(s sample) int { return s.restart.pong })
	times("mount_disk, blank", 5, func(s sample) int { return int(s.disks.Blank) })
	times("mount_disk, formatted", 5, func(s sample) int { return int(s.disks.Formatted) })
	times("unmount_disk", 5, func(s sample) int { return int(s.disks.Unmount) })
	times("migrate_disk, 200 MiB", 2, func(s sample) int { return int(s.disks.Migrate) })
	times("ping beside it, p99", 3, func(s sample) int { return int(s.disks.Ping) })
	share("VmRSS after boot, kB", 0.8, func(s sample) int { return s.first.rss })
	share("VmRSS after 1,000 requests, kB", 0.8, func(s sample) int { return s.busy.rss })
	share("VmRSS after idling, kB", 0.8, func(s sample) int { return s.idle.rss })
	share("RssAnon after boot, kB", 1, func(s sample) int { return s.first.anon })
	share("RssAnon after 1,000 requests, kB", 1, func(s sample) int { return s.busy.anon })
	share("RssAnon after idling, kB", 1, func(s sample) int { return s.idle.anon })
}

func short(ns int) string { return time.Duration(ns).Round(100 * time.Microsecond).String() }
