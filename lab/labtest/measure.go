//go:build linux

package labtest

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"cambium/lab"
)

// Pong returns when the first pong arrives. Like a Director, it sends one ping at a time, and none before the agent has
// subscribed. It polls the server for the subscription, which costs the machine nothing.
func (k Kind) Pong(t testing.TB, i *lab.Instance, every time.Duration) time.Time {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), k.Timeout)
	defer cancel()
	asking := *i.Agent
	asking.Timeout = 950 * time.Millisecond // an agent may hold it
	for {
		if i.Listening() {
			if value, err := asking.Call(ctx, "ping"); err == nil && string(value) == `"pong"` {
				return time.Now()
			}
		}
		select {
		case <-ctx.Done():
			t.Fatalf("no pong within %v", k.Timeout)
		case <-time.After(every):
		}
	}
}

// Requests sends the requests that a Director sends most often.
func Requests(t testing.TB, i *lab.Instance, times int) {
	t.Helper()
	for n := range times {
		method := []string{"ping", "get_state", "list_disk"}[n%3]
		if _, err := i.Agent.Call(t.Context(), method); err != nil {
			t.Fatalf("%s: %v", method, err)
		}
	}
}

// DiskTimes has the durations of the requests for a persistent disk. Ping is the p99 of pings during a migration.
type DiskTimes struct{ Blank, Formatted, Unmount, Migrate, Ping time.Duration }

// DiskLife mounts a blank disk, unmounts it, mounts it again, fills it, and migrates it to another. In a container, the
// lab creates the nodes of partitions, and the baseline does not wait for them: if it was too fast, DiskLife tries
// other disks. During the migration it pings at the interval every, which must be so long that the CPU time of the
// answers does not matter, even in an emulated machine.
func DiskLife(t testing.TB, i *lab.Instance, every time.Duration) (d DiskTimes) {
	t.Helper()
	var err error
	for n := range 3 {
		if d, err = diskLife(t.Context(), i, every, fmt.Sprintf("disk-%d", n), fmt.Sprintf("next-%d", n)); err == nil {
			return d
		}
		t.Logf("life of a disk: %v", err)
	}
	t.Fatal(err)
	return d
}

// Report reports the times of boots as metrics for benchstat.
func Report(b *testing.B, first, restart time.Duration) {
	b.ReportMetric(0, "ns/op") // of the whole machine
	b.ReportMetric(first.Seconds(), "first-boot-s")
	b.ReportMetric(restart.Seconds(), "agent-restart-s")
}

// Report reports the times as metrics.
func (d DiskTimes) Report(b *testing.B) {
	b.ReportMetric(d.Blank.Seconds(), "mount_disk-blank-s")
	b.ReportMetric(d.Formatted.Seconds(), "mount_disk-formatted-s")
	b.ReportMetric(d.Unmount.Seconds(), "unmount_disk-s")
	b.ReportMetric(d.Migrate.Seconds(), "migrate_disk-s")
	b.ReportMetric(d.Ping.Seconds(), "ping-beside-it-p99-s")
}

// fill is a script that writes 200 MiB: 3,840 files of 16 KiB, 20 of 1 MiB, and two large ones.
const fill = `cd /var/vcap/store && mkdir small middle && head -c 60M /dev/urandom | split -a 4 -b 16k - small/f &&
head -c 20M /dev/urandom | split -b 1M - middle/f && head -c 100M /dev/urandom >large && head -c 20M large >copy`

// sum is a script that hashes names, owners, modes and content of the store, and the sizes of files, but not those of
// directories, which may change.
const sum = `cd /var/vcap/store && find . -path ./lost+found -prune -o -type d -printf '%P %m %U\n' -o -printf '%P %m %U %s\n' -type f -exec md5sum {} + | sort | md5sum`

func diskLife(ctx context.Context, i *lab.Instance, every time.Duration, cid, next string) (d DiskTimes, err error) {
	do := func(method string, arguments ...any) (took time.Duration, err error) {
		begin := time.Now()
		if _, err := i.Agent.Do(ctx, method, arguments...); err != nil {
			return 0, fmt.Errorf("%s: %w", method, err)
		}
		return time.Since(begin), nil
	}
	for _, id := range []string{cid, next} {
		if err := attach(ctx, i, id); err != nil {
			return d, err
		}
	}
	var first, second time.Duration
	for _, step := range []struct {
		took *time.Duration
		name string
	}{{&d.Blank, "mount_disk"}, {&first, "unmount_disk"}, {&d.Formatted, "mount_disk"}, {&second, "unmount_disk"},
		{new(time.Duration), "mount_disk"}} {
		if *step.took, err = do(step.name, cid); err != nil {
			return d, err
		}
	}
	d.Unmount = (first + second) / 2
	if _, err := i.Output(ctx, "sh", "-ec", fill); err != nil {
		return d, err
	}
	before, err := content(ctx, i)
	if err != nil {
		return d, err
	}
	if _, err := do("mount_disk", next); err != nil {
		return d, err
	}
	// For both agents alike, the data is on the disk and not in the page cache.
	if err := forget(ctx, i); err != nil {
		return d, err
	}
	stop := pingNowAndThen(ctx, i, every)
	begin := time.Now()
	// A Director polls a task about once a second.
	patient := *i.Agent
	patient.Poll *= 20
	_, err = patient.Do(ctx, "migrate_disk", cid, next)
	d.Migrate, d.Ping = time.Since(begin), stop()
	if err != nil {
		return d, fmt.Errorf("migrate_disk: %w", err)
	}
	after, err := content(ctx, i)
	if err != nil {
		return d, err
	}
	if after != before {
		return d, fmt.Errorf("after the migration the store's sum is %s, was %s", after, before)
	}
	for _, step := range [][]any{{"unmount_disk", cid}, {"remove_persistent_disk", cid}, {"unmount_disk", next},
		{"remove_persistent_disk", next}} {
		if _, err := do(step[0].(string), step[1]); err != nil {
			return d, err
		}
	}
	return d, nil
}

// pingNowAndThen pings at each interval until stop is called, which returns the p99.
func pingNowAndThen(ctx context.Context, i *lab.Instance, every time.Duration) (stop func() time.Duration) {
	ctx, cancel := context.WithCancel(ctx)
	var times []time.Duration
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for ; ctx.Err() == nil; <-ticker.C {
			begin := time.Now()
			if _, err := i.Agent.Call(ctx, "ping"); err == nil {
				times = append(times, time.Since(begin))
			}
		}
	}()
	return func() time.Duration {
		cancel()
		<-done
		if len(times) == 0 {
			return 0
		}
		slices.Sort(times)
		return times[len(times)*99/100]
	}
}

// content returns the hash of the store, read from the disk.
func content(ctx context.Context, i *lab.Instance) (string, error) {
	if err := forget(ctx, i); err != nil {
		return "", err
	}
	return i.Output(ctx, "sh", "-ec", sum)
}

// forget syncs and drops the page cache of the machine. A container must not drop the host's.
func forget(ctx context.Context, i *lab.Instance) error {
	if _, err := i.Output(ctx, "sh", "-c", "sync; echo 3 2>/dev/null >/proc/sys/vm/drop_caches || true"); err != nil {
		return err
	}
	return os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0)
}

// attach attaches a blank disk and announces it to the agent by the kernel's name, since the baseline finds partitions
// only below that name.
func attach(ctx context.Context, i *lab.Instance, cid string) error {
	a, err := i.AttachNew(ctx, cid, 10*lab.GiB)
	if err != nil {
		return err
	}
	node, err := i.Output(ctx, "sh", "-c", `until [ -b "$0" ]; do sleep 0.05; done; readlink -f "$0"`, a.Path)
	if err != nil {
		return err
	}
	_, err = i.Agent.Do(ctx, "add_persistent_disk", cid, strings.TrimSpace(node))
	return err
}

// Names of the agents that a benchmark compares.
const (
	Ours         = "ours"
	BaselineName = "baseline"
	PreviousName = "previous"
)

// Subject is an agent that a benchmark measures.
type Subject struct{ Name, Binary string }

// Subjects returns the agents that a benchmark compares: this one, the baseline and, if PREVIOUS is set, the binary at
// that path: an older build of this agent, to measure before and after in one run.
func Subjects(t testing.TB) []Subject {
	t.Helper()
	all := []Subject{{Ours, Agent(t)}, {BaselineName, Baseline(t)}}
	if path := os.Getenv("PREVIOUS"); path != "" {
		if _, err := os.Stat(path); err != nil {
			t.Fatalf("PREVIOUS: %v", err)
		}
		all = append(all, Subject{PreviousName, path})
	}
	return all
}

// Faster compares our time with the baseline's. of has the times by the name of the subject.
func Faster(what string, of map[string]time.Duration, wanted float64) string {
	ours, base := of[Ours], of[BaselineName]
	ratio := base.Seconds() / max(ours, 1).Seconds()
	line := fmt.Sprintf("  %-34s %9s of %9s: %5.1f times faster, wanted %.0f %s", what, short(ours), short(base), ratio,
		wanted, Met(ratio >= wanted))
	if previous, measured := of[PreviousName]; measured {
		line += fmt.Sprintf(", previous %s", short(previous))
	}
	return line
}

// Share compares our amount with the baseline's. of has the amounts by the name of the subject.
func Share(what string, of map[string]int, wanted float64) string {
	ours, base := of[Ours], of[BaselineName]
	ratio := float64(ours) / float64(max(base, 1))
	line := fmt.Sprintf("  %-34s %9d of %9d: %5.2f, wanted %.2f %s", what, ours, base, ratio, wanted, Met(ratio <= wanted))
	if previous, measured := of[PreviousName]; measured {
		line += fmt.Sprintf(", previous %d", previous)
	}
	return line
}

func short(d time.Duration) string { return d.Round(100 * time.Microsecond).String() }

// Met formats whether a target was met.
func Met(yes bool) string {
	if yes {
		return "(met)"
	}
	return "(MISSED)"
}
