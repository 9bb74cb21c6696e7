//go:build vm && bench

package vm

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"cambium/cmd/agent/timeline"
	"cambium/cmd/lab/picture"
	"cambium/internal/eventually"
	"cambium/internal/status"
	"cambium/lab"
	"cambium/lab/baseline"
	"cambium/lab/labtest"
	"cambium/lab/machine"
	"cambium/lab/machine/qemu"

	"golang.org/x/sys/unix"
)

// memory is the memory of an agent at rest, its peak, and the amount that the agent has written so far, in kB.
type memory struct{ rss, anon, peak, written int }

// booted holds the measurements of the agent in one virtual machine.
type booted struct {
	first, restart time.Duration // exec to pong
	boot, again    account       // after the first boot, and after a restart
	busy           memory        // after 1,000 requests
	disks          labtest.DiskTimes
	steps          []status.Step // of the first boot
	document       []byte        // status after the first boot; the baseline has none
	observed       time.Duration // exec to pong of that boot
}

// account holds the costs of a boot besides time.
type account struct {
	memory
	programs int
	disk     int // kB written to the ephemeral disk, by all processes
}

// accountFile is the file in which the kernel records every process that ends.
const accountFile = "/var/acct"

// accounting has the kernel record processes from before the agent's exec on, which costs next to nothing.
func accounting() []machine.File {
	const program = "/usr/local/bin/account"
	return []machine.File{
		{Path: program, Data: []byte(fmt.Sprintf("#!/usr/bin/perl\nmy $file = '%s'; open(F, '>>', $file) or die; close F; syscall(%d, $file) == 0 or die $!;\n", accountFile, unix.SYS_ACCT)), Mode: 0o755},
		{Path: "/etc/systemd/system/bosh-agent.service.d/account.conf", Data: []byte("[Service]\nExecStartPre=" + program + "\n"), Mode: 0o644},
	}
}

// programsOf counts the processes below pid that have executed a program and ended. The kernel's
// records are those of acct(5), version 3.
func programsOf(b testing.TB, i *lab.Instance, pid string) (programs int) {
	b.Helper()
	data, err := base64.StdEncoding.DecodeString(strings.TrimSpace(run(b, i, "base64", "-w0", accountFile)))
	if err != nil {
		b.Fatal(err)
	}
	const length, flags, forked, own, parent = 64, 0, 1, 16, 20
	agent, err := strconv.Atoi(pid)
	if err != nil {
		b.Fatal(err)
	}
	family := map[uint32]bool{uint32(agent): true}
	for more := true; more; { // children end before their parents
		more = false
		for r := data; len(r) >= length; r = r[length:] {
			if id := binary.LittleEndian.Uint32(r[own:]); family[binary.LittleEndian.Uint32(r[parent:])] && !family[id] {
				family[id], more = true, true
				if r[flags]&forked == 0 {
					programs++
				}
			}
		}
	}
	return programs
}

// accountOf returns the costs of an agent at rest so far.
func accountOf(b testing.TB, i *lab.Instance, pid string) (a account) {
	b.Helper()
	a.memory = memoryOf(b, i, pid)
	a.programs = programsOf(b, i, pid)
	fields := strings.Fields(run(b, i, "sh", "-c", "sync -f /var/vcap/data; cat /sys/block/vdb/stat"))
	if len(fields) < 7 {
		b.Fatalf("statistics of the disk: %q", fields)
	}
	sectors, err := strconv.Atoi(fields[6])
	if err != nil {
		b.Fatal(err)
	}
	a.disk = sectors / 2
	return a
}

const (
	// pings is the interval between checks whether the agent listens.
	pings = 5 * time.Millisecond
	// rest is the time that an agent is left alone before its memory is read.
	rest = 3 * time.Second
)

// execAt returns the start of the agent's process, by the host's clock, and its pid.
func execAt(b testing.TB, i *lab.Instance) (at time.Time, pid string) {
	b.Helper()
	out := strings.Fields(run(b, i, "sh", "-c",
		"systemctl show -P ExecMainStartTimestampMonotonic bosh-agent; systemctl show -P MainPID bosh-agent"))
	if len(out) != 2 {
		b.Fatalf("times of the agent: %q", out)
	}
	began, err := strconv.ParseFloat(out[0], 64)
	if err != nil || began == 0 {
		b.Fatalf("times of the agent: %q", out)
	}
	return poweredOn(b, i).Add(time.Duration(began * float64(time.Microsecond))), out[1]
}

// poweredOn is the beginning of the machine's clock, by the host's. The machine is asked for its time in
// the middle of a call: the shortest of several bounds the error best.
func poweredOn(b testing.TB, i *lab.Instance) (at time.Time) {
	b.Helper()
	shortest := time.Duration(math.MaxInt64)
	for range 8 {
		asked := time.Now()
		up, err := strconv.ParseFloat(strings.Fields(run(b, i, "cat", "/proc/uptime"))[0], 64)
		if err != nil {
			b.Fatal(err)
		}
		if took := time.Since(asked); took < shortest {
			shortest = took
			at = asked.Add(took/2 - time.Duration(up*float64(time.Second)))
		}
	}
	return at
}

func memoryOf(b testing.TB, i *lab.Instance, pid string) (m memory) {
	b.Helper()
	time.Sleep(rest)
	for line := range strings.Lines(run(b, i, "cat", "/proc/"+pid+"/status", "/proc/"+pid+"/io")) {
		switch words := strings.Fields(line); words[0] {
		case "VmRSS:":
			m.rss, _ = strconv.Atoi(words[1])
		case "RssAnon:":
			m.anon, _ = strconv.Atoi(words[1])
		case "VmHWM:":
			m.peak, _ = strconv.Atoi(words[1])
		case "write_bytes:":
			m.written, _ = strconv.Atoi(words[1])
			m.written /= 1024
		}
	}
	return m
}

// rounds is the number of boots of each agent, and restarts the number of restarts after each; medians are compared.
// benchstat sees differences from four rounds on.
const rounds, restarts = 4, 3

// shortestDrawn is the shortest step that the picture of the first boots shows.
const shortestDrawn = 10 * time.Millisecond

// bootVM boots a machine, and looks at what that took in between if m is set.
func bootVM(b testing.TB, agent string, m *booted) (first time.Duration, restartTimes []time.Duration, i *lab.Instance,
	pid string) {
	b.Helper()
	l := newLab(b, func(o *lab.Options) {
		o.Agent, o.Poll = agent, 10*time.Millisecond
		engine := virtual.Engine.(qemu.Engine)
		engine.Memory = 768
		o.Engine = engine
	})
	i = start(b, l, lab.VM{Ephemeral: 10 * lab.GiB, Files: append(baseline.Files(), accounting()...),
		Edit: func(d lab.Document) { d.Set("disks.ephemeral", "/dev/vdb") }})
	end := virtual.Pong(b, i, pings)
	began, pid := execAt(b, i)
	first = end.Sub(began)
	if m != nil {
		m.boot, m.observed = accountOf(b, i, pid), first
		if raw, err := i.Status(); err == nil {
			m.document = raw
			// An older build may have another document around the steps.
			var d struct {
				Steps []status.Step `json:"steps"`
			}
			if err := json.Unmarshal(raw, &d); err != nil {
				b.Fatal(err)
			}
			m.steps = d.Steps
		}
	}
	for range restarts {
		time.Sleep(rest) // what a boot leaves for later is done
		run(b, i, "systemctl", "restart", "--no-block", "bosh-agent")
		// The old process must be gone before a pong can be the new one's. The NATS server knows: programs that
		// ask in the machine would take the processor from the agent.
		eventually.True(b, "the old process' end", func() bool { return !i.Listening() })
		end := virtual.Pong(b, i, pings)
		began, pid = execAt(b, i)
		restartTimes = append(restartTimes, end.Sub(began))
	}
	if m != nil {
		m.again = accountOf(b, i, pid)
	}
	return first, restartTimes, i, pid
}

// live measures the agent of a machine after its boot: the life of a disk, and memory after 1,000 requests.
func live(b testing.TB, i *lab.Instance, pid string, m *booted) {
	b.Helper()
	m.disks = labtest.DiskLife(b, i, 50*time.Millisecond)
	labtest.Requests(b, i, 1000)
	m.busy = memoryOf(b, i, pid)
}

func middle(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}

// BenchmarkBoot compares this agent with the others in virtual machines, where starting a program costs far more than
// in a container.
func BenchmarkBoot(b *testing.B) {
	virtual.Need(b)
	subjects := labtest.Subjects(b)
	all := map[string]*booted{}
	first, restartTimes := map[string][]time.Duration{}, map[string][]time.Duration{}
	for round := range rounds {
		for _, a := range subjects {
			// A benchmark of its own, so that its lab is gone before the next one starts.
			b.Run("agent="+a.Name, func(b *testing.B) {
				var m *booted
				if round == 0 {
					m = &booted{}
					all[a.Name] = m
				}
				boot, restart, i, pid := bootVM(b, a.Binary, m)
				first[a.Name], restartTimes[a.Name] = append(first[a.Name], boot), append(restartTimes[a.Name], restart...)
				labtest.Report(b, boot, middle(slices.Clone(restart)))
				if m != nil {
					live(b, i, pid, m)
					m.disks.Report(b)
				}
			})
		}
	}
	for _, a := range subjects {
		if len(first[a.Name]) != rounds {
			b.Fatalf("%s was not measured", a.Name)
		}
		all[a.Name].first, all[a.Name].restart = middle(first[a.Name]), middle(restartTimes[a.Name])
	}
	report(subjects, all)
	if path := os.Getenv("PICTURE"); path != "" {
		if err := drawFirstBoots(path, all[labtest.Ours], all[labtest.BaselineName]); err != nil {
			b.Fatal(err)
		}
	}
}

// drawFirstBoots draws a first boot of each agent on one time axis that begins with exec: ours by its steps, the
// baseline's as one bar.
func drawFirstBoots(path string, ours, theirs *booted) error {
	var d status.Document
	if err := json.Unmarshal(ours.document, &d); err != nil {
		return err
	}
	c := timeline.NewChart(d, 0)
	c.Title = "first boot in an emulated VM, by both agents on one axis"
	c.Text = fmt.Sprintf("from exec to the first pong: %.2f s, and %.1f s with cloudfoundry/bosh-agent, which reports no steps",
		ours.observed.Seconds(), theirs.observed.Seconds())
	rows := []timeline.Row{{Kind: timeline.KindTry, Label: "this agent: pong", Start: int64(ours.observed)}}
	for _, r := range c.Rows {
		if r.End -= c.Agent; r.Kind == timeline.KindStep && r.End-r.Start+c.Agent >= int64(shortestDrawn) {
			r.Start -= c.Agent
			for n := range r.Waits {
				r.Waits[n].Start -= c.Agent
				r.Waits[n].End -= c.Agent
			}
			rows = append(rows, r)
		}
	}
	c.Rows = append(rows,
		timeline.Row{Kind: timeline.KindTry, Label: "cloudfoundry/bosh-agent: pong", Start: int64(theirs.observed)},
		timeline.Row{Kind: timeline.KindStep, Label: "exec to pong", Outcome: status.Done, End: int64(theirs.observed)})
	c.Begin, c.Agent, c.End, c.Ready = 0, 0, int64(theirs.observed), int64(ours.observed)
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(picture.Draw(f, c), f.Close())
}

// report prints the table and how the targets are met.
func report(subjects []labtest.Subject, all map[string]*booted) {
	fmt.Printf("\n  %-24s %9s %8s %8s %8s %8s %10s %9s\n", "in a virtual machine, kB", "pong", "programs", "rss", "anon",
		"peak", "written", "to disk")
	for _, a := range subjects {
		m := all[a.Name]
		for _, row := range []struct {
			phase string
			pong  time.Duration
			account
		}{{"first boot", m.first, m.boot}, {"agent restart", m.restart, m.again},
			{"1,000 requests", 0, account{memory: m.busy}}} {
			fmt.Printf("  %-24s %9s %8d %8d %8d %8d %10d %9d\n", a.Name+", "+row.phase, row.pong.Round(time.Millisecond),
				row.programs, row.rss, row.anon, row.peak, row.written, row.disk)
		}
	}
	fmt.Printf("\n  steps of our first boot, in one of them:\n")
	for _, s := range all[labtest.Ours].steps {
		if s.End > 0 {
			fmt.Printf("    %-18s %9s .. %9s\n", s.Name, time.Duration(s.Start).Round(100*time.Microsecond),
				time.Duration(s.End).Round(100*time.Microsecond))
		}
	}
	fmt.Printf("\n  boots and restarts are medians, the rest is of one machine each\n")
	for _, row := range []struct {
		what   string
		wanted float64
		of     func(*booted) time.Duration
	}{
		{"first boot, exec to pong", 8, func(m *booted) time.Duration { return m.first }},
		{"agent restart, exec to pong", 13, func(m *booted) time.Duration { return m.restart }},
		{"mount_disk, blank", 5, func(m *booted) time.Duration { return m.disks.Blank }},
		{"mount_disk, formatted", 5, func(m *booted) time.Duration { return m.disks.Formatted }},
		{"unmount_disk", 5, func(m *booted) time.Duration { return m.disks.Unmount }},
		{"migrate_disk, 200 MiB", 2, func(m *booted) time.Duration { return m.disks.Migrate }},
		{"ping beside it, p99", 3, func(m *booted) time.Duration { return m.disks.Ping }},
	} {
		each := map[string]time.Duration{}
		for name, m := range all {
			each[name] = row.of(m)
		}
		fmt.Println(labtest.Faster(row.what, each, row.wanted))
	}
}
