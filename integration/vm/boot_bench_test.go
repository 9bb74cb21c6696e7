//go:build vm && bench

package vm

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"cambium/integration/lab"
	"cambium/integration/lab/baseline"
)

// booted is what one virtual machine tells of its agent.
type booted struct {
	first, restart time.Duration // exec to pong
	rss, anon      int           // kB, at rest after the first boot
}

// pongAfter returns when the first pong arrives. Each ping is waited for, since an agent may hold
// it, and others are sent meanwhile, since one that nobody hears is lost.
func pongAfter(b testing.TB, i *lab.Instance) time.Time {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), readyTimeout)
	defer cancel()
	asking := *i.Agent
	asking.Timeout = 900 * time.Millisecond
	first := make(chan time.Time, 1)
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		go func() {
			if value, err := asking.Call(ctx, "ping"); err == nil && string(value) == `"pong"` {
				select {
				case first <- time.Now():
				default:
				}
			}
		}()
		select {
		case at := <-first:
			return at
		case <-ctx.Done():
			b.Fatal("no pong")
		case <-ticker.C:
		}
	}
}

// execAt is when the agent's process began, by the host's clock, and its pid. The machine's clock
// is read in the middle of a call, whose length bounds the error.
func execAt(b testing.TB, i *lab.Instance) (at time.Time, pid string) {
	b.Helper()
	asked := time.Now()
	out := strings.Fields(run(b, i, "sh", "-c", "cat /proc/uptime; systemctl show -P ExecMainStartTimestampMonotonic bosh-agent; systemctl show -P MainPID bosh-agent"))
	if len(out) != 4 {
		b.Fatalf("times of the agent: %q", out)
	}
	up, err1 := strconv.ParseFloat(out[0], 64)
	began, err2 := strconv.ParseFloat(out[2], 64)
	if err1 != nil || err2 != nil || began == 0 {
		b.Fatalf("times of the agent: %q", out)
	}
	return asked.Add(-time.Duration((up - began/1e6) * float64(time.Second))), out[3]
}

func bootVM(b testing.TB, agent string) (m booted) {
	b.Helper()
	l := newLab(b, func(o *lab.Options) { o.Agent = agent })
	i := start(b, l, lab.VM{Ephemeral: 10 * lab.GiB, Files: baseline.Files(), Edit: func(d lab.Document) { d.Set("disks.ephemeral", "/dev/vdb") }})
	end := pongAfter(b, i)
	began, pid := execAt(b, i)
	m.first = end.Sub(began)
	time.Sleep(3 * time.Second)
	for line := range strings.Lines(run(b, i, "cat", "/proc/"+pid+"/status")) {
		switch words := strings.Fields(line); words[0] {
		case "VmRSS:":
			m.rss, _ = strconv.Atoi(words[1])
		case "RssAnon:":
			m.anon, _ = strconv.Atoi(words[1])
		}
	}
	run(b, i, "systemctl", "restart", "--no-block", "bosh-agent")
	// The old process must be gone before a pong can be the new one's.
	eventually(b, "another process", func() bool {
		now := strings.TrimSpace(run(b, i, "systemctl", "show", "-P", "MainPID", "bosh-agent"))
		return now != pid && now != "0"
	})
	end = pongAfter(b, i)
	began, _ = execAt(b, i)
	m.restart = end.Sub(began)
	return m
}

// BenchmarkBoot compares this agent with the baseline in virtual machines, where starting a program
// costs far more than in a container.
func BenchmarkBoot(b *testing.B) {
	need(b)
	ours, err := agentBinary()
	if err != nil {
		b.Fatal(err)
	}
	other, err := baseline.Build(b.Context(), "../..")
	if err != nil {
		b.Fatal(err)
	}
	all := map[string]booted{}
	for name, binary := range map[string]string{"ours": ours, "baseline": other} {
		b.Run(name, func(b *testing.B) { all[name] = bootVM(b, binary) })
	}
	a, z := all["ours"], all["baseline"]
	if a.first == 0 || z.first == 0 {
		b.Fatal("an agent was not measured")
	}
	fmt.Printf("\n  in a virtual machine   first boot    restart   VmRSS kB  RssAnon kB\n")
	for _, name := range []string{"ours", "baseline"} {
		m := all[name]
		fmt.Printf("  %-20s %12s %10s %10d %11d\n", name, m.first.Round(time.Millisecond), m.restart.Round(time.Millisecond), m.rss, m.anon)
	}
	fmt.Printf("  first boot %.1f times faster, wanted 10; restart %.1f times, wanted 10; VmRSS %d %%, wanted 80; RssAnon %d %%, wanted 100\n",
		z.first.Seconds()/a.first.Seconds(), z.restart.Seconds()/a.restart.Seconds(), 100*a.rss/z.rss, 100*a.anon/z.anon)
}
