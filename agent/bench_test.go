package agent

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cambium/agent/action"
)

// BenchmarkPing is the round trip of a Director over NATS with mutual TLS, alone and with many
// in flight, on an idle machine and beside a migration and states that take a second each.
func BenchmarkPing(b *testing.B) {
	for _, busy := range []bool{false, true} {
		for _, inFlight := range []int{1, 64} {
			name := fmt.Sprintf("idle/%d", inFlight)
			if busy {
				name = fmt.Sprintf("busy/%d", inFlight)
			}
			b.Run(name, func(b *testing.B) { benchmarkPing(b, busy, inFlight) })
		}
	}
}

func benchmarkPing(b *testing.B, busy bool, inFlight int) {
	w := newWorld(b, nil).ready()
	if busy {
		stop := makeBusy(w)
		defer stop()
	}
	var mu sync.Mutex
	times := make([]time.Duration, 0, b.N)
	var next atomic.Int64
	var group sync.WaitGroup
	b.ResetTimer()
	for range inFlight {
		group.Go(func() {
			for next.Add(1) <= int64(b.N) {
				start := time.Now()
				w.director.Call(agentID, "ping")
				took := time.Since(start)
				mu.Lock()
				times = append(times, took)
				mu.Unlock()
			}
		})
	}
	group.Wait()
	b.StopTimer()
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(times[len(times)*99/100].Microseconds()), "p99-µs")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ping/s")
}

// makeBusy starts a migration that does not end and keeps eight slow states in flight.
func makeBusy(w *world) (stop func()) {
	w.machine.migrate = make(chan struct{})
	w.director.Call(agentID, "migrate_disk")
	slow := make(chan struct{})
	w.machine.slow = slow
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for ctx.Err() == nil {
				subject, replies := w.director.Send(agentID, "get_state", "full")
				select {
				case <-replies:
				case <-ctx.Done():
				}
				w.director.Forget(subject)
			}
		})
	}
	group.Go(func() {
		for ctx.Err() == nil {
			select {
			case slow <- struct{}{}:
				time.Sleep(100 * time.Millisecond)
			case <-ctx.Done():
			}
		}
	})
	return func() {
		cancel()
		close(slow)
		group.Wait()
		close(w.machine.migrate)
	}
}

// BenchmarkTask is a task from its request to its value, its record included.
func BenchmarkTask(b *testing.B) {
	var runs atomic.Int64
	w := newWorld(b, action.Table{"apply": counting(action.Instance, action.Async, &runs)}).ready()
	b.ResetTimer()
	for range b.N {
		id := handle.FindStringSubmatch(w.director.Call(agentID, "apply"))[1]
		for {
			if o, err := w.tasks.Outcome(id); err != nil || !o.Running {
				break
			}
		}
	}
}
